"""The way back of a replica that has died, in a thread of its own: the output goes on meanwhile.

A new process starts its Spark, or a spare one has. When it is there another replica writes down its state, as it is
then. The query begins from that, and replays what has come since. If somebody has written much state down not long ago,
it begins from there: more is replayed, and nobody has to write. Migrations wait until the way is over, and the way
waits for one that is under way. From its first row on the replica lives: it could go on alone. It is *full* when it has
done the same as the others, and not much later than they, for ``KEEPS_UP_S``.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from keyshift.clock import SECOND_US
from keyshift.lab.replicas.jobs import LedReplica, Replicas
from keyshift.lab.replicas.resume_points import ResumePoint
from keyshift.model.errors import KeyshiftError, MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.wire.savepoint import Savepoint

WRITE_S = 60.0  # in which another replica must have written its state: at the end of a batch it may not be able to
KEEPS_UP_S = 1.0
GIVES_WAY_S = 20.0  # so long behind its first row it gives way to others: on a full machine it would for ever
FULL_S = 300.0  # so long after its first row one that does not keep up is left at that
MOST_RETURNS = 5  # of a replica: one that always dies, or whose ways back fail, is left at that
LOOK_S = 0.1  # between two looks


class _Unwanted(KeyshiftError):
    """Ends the way back: nobody waits for it any more."""


class Return:
    """The way back of ``replica``, one of ``replicas``. ``newest``, for any thread: what one of them has written down
    last. ``died``: when its death was known, in seconds since the epoch; None: now.

    ``begins_from``: the job and the name of what another one has written, as soon as that is there, and ``from_older``
    if it was there before. ``report``: one line, when it is ``over``. ``full_at``: since when the replica is full, in
    seconds since the epoch; None if it is not.
    """

    def __init__(
        self,
        replica: LedReplica,
        replicas: Replicas,
        newest: Callable[[], ResumePoint | None] = lambda: None,
        died: float | None = None,
    ) -> None:
        self.replica, self._replicas, self._newest = replica, replicas, newest
        self._died = time.time() if died is None else died
        self.report = ""
        self.begins_from: tuple[str, str] | None = None
        self.from_older = False
        self.full_at: float | None = None
        self._unwanted = threading.Event()
        self._failure: BaseException | None = None
        name = f"keyshift-return-{replica.number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the replica is full, or will not be. Raises what should not have happened."""
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the way back: a replica that lives stays, another one is ended."""
        self._unwanted.set()
        while self._thread.is_alive():
            if not self.replica.lives:
                self.replica.application.strike()
            self._thread.join(LOOK_S)

    def _check(self) -> None:
        if self._unwanted.is_set():
            raise _Unwanted("nobody waits for it any more")

    def _run(self) -> None:
        number = self.replica.number
        try:
            how = self._come_back()
            self._await_full()
            assert self.full_at is not None
            took_s = self.full_at - self._died
            self.report = f"replica {number} was full again {took_s:.1f} s after its death was known; {how}"
        except (KeyshiftError, OSError) as error:
            if self.replica.lives:
                self.report = f"replica {number} came back, and was not full again: {error}"
            else:
                self.replica.application.end()
                self.report = f"replica {number} did not come back: {error}"
        except BaseException as error:
            self._failure = error

    def _come_back(self) -> str:
        """Go the way until the replica lives. Says how."""
        replica, replicas, began = self.replica, self._replicas, time.time()
        replicas.leave(replica)
        self._check()
        replicas.begin_next(replica)
        replica.application.await_ready()
        started = time.time()
        saved, of, source, how = self._found()
        found = time.time()
        self._check()
        replicas.lead_next(replica, saved, of, source)
        return f"its Spark took {started - began:.1f} s, and its query {time.time() - found:.1f} s; {how}"

    def _found(self) -> tuple[Savepoint, str, LedReplica, str]:
        """Find what the replica begins from. Gives that, the job that has written it, the replica that has lived for
        longest, whose state has come to rest, and how it was found. Nothing begins to move meanwhile.
        """
        until = time.monotonic() + WRITE_S
        while True:
            if not (living := self._replicas.living):
                raise ServiceUnavailable("no other replica is left that could write its state down")
            source = living[0]

            def check(source: LedReplica = source) -> None:
                self._check()
                source.job.check()

            try:
                if source.system.plans.busy:
                    until = time.monotonic() + WRITE_S
                elif point := self._kept(source):
                    return point.savepoint, point.of, source, f"its state was there, in {point.savepoint.name}"
                else:
                    return self._captured(source, check)
            except (MigrationFailed, QueryDied, ServiceUnavailable):
                if time.monotonic() > until:
                    raise
            self._unwanted.wait(LOOK_S)
            self._check()

    def _kept(self, source: LedReplica) -> ResumePoint | None:
        """Return what was written down last, if that saves something. It stays."""
        while (point := self._newest()) is not None and point.saves(source):
            self.begins_from = point.of, point.savepoint.name
            if self._newest() is point:  # otherwise it may be gone by now
                self.from_older = True
                return point
        return None

    def _captured(self, source: LedReplica, check: Callable[[], None]) -> tuple[Savepoint, str, LedReplica, str]:
        """Have the ``source`` write down what it has now; see ``_found``."""
        began, of = time.time(), source.job.config.job
        saved, written = self._replicas.capture(source, check)
        self.begins_from, size_mb = (of, saved.name), sum(written.values()) / 1e6
        return saved, of, source, f"{size_mb:.1f} MB of state were written in {time.time() - began:.1f} s"

    def _await_full(self) -> None:
        """Wait until the collector has seen that the replica keeps up. Raises KeyshiftError if it does not."""
        begun, begun_us, gives_way = time.monotonic(), round(time.time() * SECOND_US), True
        while True:
            self._check()
            self.replica.job.check()
            if (standing := self._replicas.standings.get(self.replica.number)) is not None:
                since_us = max(standing.since_us, begun_us)
                if standing.until_us - since_us >= KEEPS_UP_S * SECOND_US:
                    self.full_at = time.time()
                    break
            if (passed_s := time.monotonic() - begun) > FULL_S:
                raise KeyshiftError(f"it did not keep up within {FULL_S:g} s")
            if gives_way and passed_s > GIVES_WAY_S:
                gives_way = False
                self.replica.application.give_way_no_more()
            self._unwanted.wait(LOOK_S)
        if gives_way:
            self.replica.application.give_way_no_more()


class Returns:
    """The deaths of all ``replicas``, and their ways back, if they ``may`` come back. For the controlling thread.
    ``newest``: see ``Return``. ``tell`` gets a line about each that has died, or whose way is over, which is one of the
    ``notes`` then. ``alike``: see ``Requests``.

    ``strength``: since when (seconds since the epoch) so many of them are full.
    """

    def __init__(
        self,
        replicas: Replicas,
        newest: Callable[[], ResumePoint | None],
        tell: Callable[[str, NoteKind], None],
        notes: Sequence[Note],
        alike: Callable[[], AbstractContextManager[bool]],
        may: bool = True,
    ) -> None:
        self._replicas, self._newest, self._tell, self._notes = replicas, newest, tell, notes
        self._alike, self._may = alike, may
        self._dead: deque[LedReplica] = deque()  # whose way back has not begun
        self._ways: list[Return] = []
        self._closed = False
        # Numbers of those that have died, and were not full since; with when the death was known. That stays if a way
        # back begins late, or once more.
        self._not_full: dict[int, float] = {}
        self.strength: list[tuple[float, int]] = []

    @property
    def under_way(self) -> bool:
        """Whether a replica is on its way back, or lives and is not full yet."""
        return bool(self._ways)

    @property
    def to_come(self) -> bool:
        """Whether one that has died is to come back, or is not full yet."""
        return bool(self._dead or self._ways)

    @property
    def needed(self) -> set[tuple[str, str]]:
        """What replicas on their way back begin from; for any thread."""
        return {way.begins_from for way in [*self._ways] if way.begins_from}

    def on_its_way(self, replica: LedReplica) -> bool:
        """Whether this one is on its way back, or lives and is not full yet; for any thread."""
        return any(way.replica is replica for way in [*self._ways])

    @contextlib.contextmanager
    def surviving(self, replica: LedReplica) -> Iterator[None]:
        """Inside, ``replica`` may die. Raises KeyshiftError if it was the last one, and none is coming back."""
        try:
            yield
        except (QueryDied, MigrationFailed) as error:
            known = time.time()
            self.end(replica)
            replica.application.kill()  # before nobody counts on it: whatever is left of it writes no more
            replica.lives, replica.deaths = False, replica.deaths + 1
            self._not_full[replica.number] = known
            left = len(self._replicas.living)
            went_on = f"{left} of {len(self._replicas.all)} went on"
            self._tell(f"replica {replica.number} died ({error}); {went_on}", NoteKind.DEATH)
            while not self._replicas.living:  # one may be on its way back, from what was written before
                if not self.needed:
                    raise KeyshiftError(f"no replica is left: {'; '.join(map(str, self._notes))}") from error
                time.sleep(LOOK_S)
                self.look()
            self.count()
            if self._may:
                self._dead.append(replica)
                self.begin_all()

    def begin_all(self) -> None:
        """Begin the ways back of replicas that have died, but not while some of the others have moved and some have
        not: each would come back with the assignment of one of them.
        """
        with self._alike() as alike:  # behind a death nothing begins to move
            while alike and self._dead:
                self.begin(self._dead.popleft())

    def begin(self, replica: LedReplica, from_older: bool = True) -> None:
        """Begin the way back of a replica that has died. ``from_older``: it may begin from what was written before."""
        if self._closed:
            return
        died = self._not_full.setdefault(replica.number, time.time())
        if replica.deaths <= MOST_RETURNS:
            newest = self._newest if from_older else lambda: None
            self._ways.append(Return(replica, self._replicas, newest, died))
        else:
            line = f"replica {replica.number} does not come back: it has begun to {MOST_RETURNS} times"
            self._tell(line, NoteKind.TOLD)

    def look(self) -> None:
        """Look at what has become of the ways back. Raises what should not have happened."""
        for way in [way for way in self._ways if way.over]:
            self._ways.remove(way)
            self._tell(way.report, NoteKind.TOLD)
            if way.full_at is not None:
                self._not_full.pop(way.replica.number, None)
            if not (way.replica.lives or self._closed):  # a service may have been away, or it has died before it lived
                way.replica.deaths += 1
                self.begin(way.replica, from_older=not way.from_older)  # that may be damaged
            if not (self._closed or self.on_its_way(way.replica)):
                try:
                    self._replicas.spares.fill()
                except (KeyshiftError, OSError) as error:  # all replicas may be well; it is tried again behind the next
                    line = f"no spare Spark could be started: {error}; the next replica that dies starts its own"
                    self._tell(line, NoteKind.TOLD)
                if way.full_at is not None:
                    self._replicas.say(Doing(Activity.RECOVERED))
        self.count()

    def count(self) -> None:
        """Count how many replicas are full now."""
        full = sum(replica.number not in self._not_full for replica in self._replicas.living)
        if not self.strength or self.strength[-1][1] != full:
            self.strength.append((time.time(), full))

    def end(self, replica: LedReplica | None = None) -> None:
        """End the way back of this ``replica``; None: of all."""
        for way in self._ways:
            if replica in (None, way.replica):
                way.end()
        self.look()

    def close(self) -> None:
        """End all ways back, and let none begin any more."""
        self._closed = True
        self._dead.clear()
        self.end()
