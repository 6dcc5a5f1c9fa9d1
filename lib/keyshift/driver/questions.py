"""What the driver asks the slots and routers of an attempt, and what it orders of them."""

import contextlib
import math
import queue
import secrets
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from keyshift.driver.appointments import Appointments
from keyshift.driver.attempt import StageAttempt
from keyshift.model.errors import KeyshiftError, MigrationFailed, ServiceUnavailable
from keyshift.model.keys import Move
from keyshift.model.records import Measured
from keyshift.protocol.coordinator import Appointment
from keyshift.runtime.protocol_log import LogEvent
from keyshift.waiting import wait_until
from keyshift.wire import nodes, protocol_logs
from keyshift.wire.nodes import Folder, Node, Saved, Writing
from keyshift.wire.savepoint import participants

SETTLE_S = 10.0  # until slots that were told that a unit has gone for good let go of its keys
CHECK_S = 0.2  # between two looks at them, and between two calls of ``check`` while answers are awaited
T = TypeVar("T")


class Questions:
    """What is asked in one attempt. ``measure`` is for any thread, all else is for one controlling thread.

    Methods that wait raise what ``alive`` raises, MigrationFailed if a slot does not answer in time, and
    ServiceUnavailable if a service is not there any more.
    """

    def __init__(self, attempt: StageAttempt, alive: Callable[[], None]) -> None:
        self.attempt, self._alive = attempt, alive
        self._measuring = threading.Lock()  # a question hides the one before it
        self._copying: tuple[str, tuple[Move, ...]] | None = None  # the name of the order, and what is copied

    def tell(self, node: Node[T], value: T) -> None:
        """Publish something for the tasks of the stage."""
        self.attempt.participant.publish(node, value)

    def call_savepoint(self, name: str, at_us: int = 0, stops: bool = True) -> int:
        """Let the routers of the first stage bring a savepoint to all slots. Of slots that work in turns it gives the
        epoch behind which it comes; see ``Appointments.make`` for ``at_us``. ``stops``: see ``SavepointCalled``. It
        waits until all routers have said the one before, if that holds.
        """

        def tell(appointment: Appointment | None = None) -> None:
            self.tell(nodes.SAVEPOINT, nodes.SavepointCalled(name, appointment, stops))

        def wanted() -> bool:
            self._alive()
            return True

        if not self.attempt.config.in_turns:
            tell()
            return 0
        last = self.attempt.participant.read(nodes.SAVEPOINT)
        if last and last.appointment and last.appointment.holds:
            # It was given up. A router that has not heard of it would hear of this one alone, and others have said it.
            routers = set(map(nodes.of_router, range(self.attempt.config.routers)))
            self.answers(nodes.saved(last.id), routers, f"savepoint {last.id}")
        try:
            return Appointments(self.attempt.config, self.attempt.participant).make(name, tell, wanted, at_us) or 0
        except Exception:
            with contextlib.suppress(KeyshiftError):  # then nobody is there who waits for it
                tell()
            raise

    def answers(
        self,
        folder: Folder[T],
        wanted: set[str],
        what: str,
        progress: Callable[[], object] = lambda: None,
        check: Callable[[], None] | None = None,
        within_s: float = math.inf,
    ) -> dict[str, T]:
        """Give the nodes in ``folder``, as soon as all that are ``wanted`` are there.

        The deadline is for silence: it begins anew with each answer, and while what ``progress`` gives changes.
        Raises MigrationFailed after it, with ``what`` was asked and who is missing. ``check``: instead of ``alive``.
        ``within_s``: a shorter deadline.
        """
        participant, deadline_s = self.attempt.participant, min(within_s, self.attempt.config.deadline_s)
        answered: queue.Queue[set[str]] = queue.Queue()
        missing = wanted

        def all_there() -> bool:
            nonlocal missing
            (check or self._alive)()
            with contextlib.suppress(queue.Empty):
                missing = wanted - answered.get(timeout=CHECK_S)
            return not missing

        end = participant.watch_children(folder, lambda names: answered.put(set(names)))
        try:
            there = wait_until(all_there, deadline_s, 0.0, lambda: (missing, progress()))
        finally:
            end()
        if not there:
            raise MigrationFailed(f"{what}: {', '.join(sorted(missing))} did not answer within {deadline_s:g} s")
        return participant.read_below(folder)

    def by_slot(
        self,
        folder: Folder[T],
        slots: Collection[int],
        what: str,
        progress: Callable[[], object] = lambda: None,
        within_s: float = math.inf,
    ) -> dict[int, T]:
        """Return what each of ``slots`` answers in ``folder``."""
        said = self.answers(folder, set(map(str, slots)), what, progress, within_s=within_s)
        return {int(slot): said[slot] for slot in sorted(said)}

    def saved(
        self,
        name: str,
        what: str,
        progress: Callable[[], object] = lambda: None,
        check: Callable[[], None] | None = None,
    ) -> dict[str, Saved]:
        """Return what all that take part say of a savepoint or snapshot; see ``answers``. It may take as long as a slot
        writes.
        """
        wanted = participants(self.attempt.config)
        return self.answers(nodes.saved(name), wanted, what, lambda: (progress(), self.writers()), check)

    def writers(self) -> list[Writing]:
        """Read what each slot that has ever written something down said last of it."""
        said = self.attempt.participant.read_below(nodes.WRITING)
        return [said[slot] for slot in sorted(said)]

    def measure(self, within_s: float = math.inf, progress: Callable[[], object] = lambda: None) -> dict[int, Measured]:
        """Ask each slot what it has seen since the attempt began. ``within_s``: a shorter deadline, for who only looks.

        A slot whose batch is over answers in the next one, which others may keep it waiting for: see ``answers``.
        """
        within_s = min(within_s, self.attempt.config.deadline_s)
        if not self._measuring.acquire(timeout=within_s):
            raise MigrationFailed(f"measure: what was asked before was not answered within {within_s:g} s")
        participant, answers = self.attempt.participant, nodes.measured(name := secrets.token_hex(3))
        with contextlib.ExitStack() as ending:
            ending.callback(self._measuring.release)
            # A job that lasts is asked often. What came late to a question before goes, too: there is one at a time.
            ending.callback(participant.withdraw, nodes.ALL_MEASURED)
            ending.callback(participant.withdraw, nodes.MEASURE)  # or slots would answer once more in their next batch
            self.tell(nodes.MEASURE, name)
            return self.by_slot(answers, range(self.attempt.config.slots), "measure", progress, within_s)

    def left_behind(self) -> set[tuple[int, int]]:
        """Give units, with slots that have keys of them which are elsewhere, too. Slots soon hear that they may go."""
        left: set[tuple[int, int]] = set()

        def settled() -> bool:
            nonlocal left
            left = {(unit, slot) for slot, measured in self.measure().items() for unit in measured.left_behind}
            return not left

        wait_until(settled, SETTLE_S, CHECK_S)
        return left

    def await_restored(self) -> dict[int, nodes.Restored]:
        """Return what each slot says of the units that it has restored, as soon as it has all of them."""
        progress = partial(self.attempt.participant.read_below, nodes.RESTORING)
        return self.by_slot(nodes.RESTORED, range(self.attempt.config.slots), "the restore", progress)

    def read_log(self, alive: bool) -> list[LogEvent]:
        """The last protocol events, of slots and routers as far as they answer. ``alive``: the query."""
        attempt = self.attempt
        with contextlib.suppress(ServiceUnavailable):  # then nobody answers
            tasks = attempt.config.slots + attempt.config.routers
            return protocol_logs.gather(attempt.participant, tasks, attempt.coordinator.log.records.values(), alive)
        return []

    # -- copies, which do not outlive an attempt ----------------------------------------------------------------------

    def copy(self, copies: tuple[Move, ...], every_s: float, lag_keys: int, whole: bool) -> None:
        """Keep copies of units at other slots from now on (unit, owner, holder). What was told of those before goes."""
        name = secrets.token_hex(3)
        self.attempt.participant.withdraw(nodes.ALL_COPIED)
        self.tell(nodes.COPIES, nodes.CopiesWanted(name, copies, every_s, lag_keys, whole))
        self._copying = name, copies

    @property
    def kept(self) -> tuple[Move, ...]:
        """The copies that were ordered last."""
        return self._copying[1] if self._copying else ()

    def end_copies(self) -> None:
        """Keep none from now on."""
        if self._copying is not None:
            self.copy((), 1.0, 0, whole=False)
            self._copying = None

    def await_copies(self) -> dict[int, nodes.CopiesClose] | None:
        """Wait until the copies ordered last are close. Gives what each owner measured, None if there are none."""
        if self._copying is None:
            return None
        name, copies = self._copying
        owners, read = {copy.source for copy in copies}, self.attempt.participant.read_below
        # What is to be restored is copied afterwards.
        return self.by_slot(nodes.copied(name), owners, "copying", lambda: (read(nodes.COPYING), read(nodes.RESTORING)))

    def copied_by_now(self) -> dict[int, nodes.CopiesClose]:
        """Read what those owners measured whose copies, of those ordered last, are close by now."""
        if self._copying is None:
            return {}
        name, _ = self._copying
        return {int(slot): said for slot, said in self.attempt.participant.read_below(nodes.copied(name)).items()}
