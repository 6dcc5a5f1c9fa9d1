"""How what is requested of a job comes to its replicas: to all of them at once, or to one after the other.

Replicas know a switch, and what they may compare, by its version. One of them may have used versions that another has
not: for steps that it took back or dropped. So the steps of a request come behind the last version that any has used.

For the controlling thread, unless something says otherwise.
"""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from keyshift.clock import now_us
from keyshift.experiment.scenario import Change
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.replicas.jobs import LedReplica, Replicas
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import NO_VERSION, SlotId, Version

CATCH_UP_S = 60.0  # in which a replica that has moved must keep up with the others again, or the next one moves


@dataclass(eq=False)
class MoveRequest:
    """A request for a migration: each replica makes its own plan, or has that of the ``proposal``. ``told_to``: the
    replicas that were told of it, their attempts, and its number there.
    """

    change: Change
    stage: str | None
    proposal: Proposal | None = None
    told_to: list[tuple[LedReplica, int, int]] = field(default_factory=list)


class Requests(ABC):
    """Requests to all ``replicas``. ``tell`` gets a line that a reader of the run should know.

    None begins while a replica is on its way back (``returning``), nor inside ``alike`` and ``still``.
    """

    def __init__(self, replicas: Replicas, tell: Callable[[str], None], returning: Callable[[], bool]) -> None:
        self._replicas, self._tell, self._returning = replicas, tell, returning
        self._waiting: deque[MoveRequest] = deque()
        self._changing = threading.Lock()  # who holds it decides whether something may begin to move
        self._stands = False

    def add(self, request: MoveRequest) -> None:
        """Put a request behind those that wait. It begins now if it may."""
        self._waiting.append(request)
        self.pass_on()

    def pass_on(self) -> None:
        """Tell the replicas whose turn it is, if something may begin now."""
        with self._changing:
            if not (self._returning() or self._stands):
                self._pass_on()

    def clear(self) -> None:
        """Tell nobody else of anything."""
        self._waiting.clear()

    def take_back(self) -> list[MoveRequest]:
        """Take back the requests of which nobody was told, and return them: nobody will be."""
        taken = [*self._waiting]
        self._waiting.clear()
        return taken

    def to_come(self, request: MoveRequest) -> bool:
        """Whether some replica is still to be told of this one."""
        return request in self._waiting

    @property
    def waits(self) -> bool:
        """Whether some replica is still to be told of something."""
        return bool(self._waiting) or self._partly_told

    @contextlib.contextmanager
    def alike(self) -> Iterator[bool]:
        """Gives whether all replicas were told of the same requests; nothing begins to move inside."""
        with self._changing:
            yield not self._partly_told

    @contextlib.contextmanager
    def still(self) -> Iterator[bool]:
        """Gives whether nothing moves, and no replica is on its way back; if so, nothing begins to move inside. For any
        thread, one at a time.
        """
        with self._changing:
            moving = any(replica.system.plans.busy for replica in self._replicas.living)
            self._stands = not (moving or self._partly_told or self._returning())
        try:
            yield self._stands
        finally:
            self._stands = False

    @property
    def _partly_told(self) -> bool:
        """Whether some replicas were told of a request, and others are still to be."""
        return False

    @abstractmethod
    def _pass_on(self) -> None:
        """Tell the replicas whose turn it is."""


def _used(replicas: Iterable[LedReplica]) -> dict[str, Version]:
    """The last version that any of these has used in each stage."""
    used = defaultdict[str, Version](lambda: NO_VERSION)
    for stage in (stage for replica in replicas for stage in replica.job.stages):
        last = log.used if (log := stage.log) else stage.assignment.version
        used[stage.name] = max(used[stage.name], last)
    return used


def _ask(replica: LedReplica, request: MoveRequest, behind: Mapping[str, Version]) -> None:
    with contextlib.suppress(ServiceUnavailable):  # it has died, and nobody has looked since
        if request.proposal is None:
            replica.system.plans.request(request.change, stage=request.stage, behind=behind)
        else:
            number = replica.system.plans.adopt(request.proposal, behind)
            request.told_to.append((replica, replica.job.config.attempt, number))


class Together(Requests):
    """Requests that all replicas get, in the same order: they switch behind the same epochs. What was proposed waits
    here until nothing moves in its stage any more: until then it can be taken back.
    """

    def _pass_on(self) -> None:
        held: set[str | None] = set()
        for request in [*self._waiting]:
            if request.stage in held or (request.proposal and self._moves(request.proposal.stage)):
                held.add(request.stage)
                continue
            self._waiting.remove(request)
            living = self._replicas.living
            behind = _used(living)
            for replica in living:
                _ask(replica, request, behind)

    def _moves(self, stage: str) -> bool:
        return any(replica.system.plans.moves(stage) for replica in self._replicas.living)


@dataclass
class _Moving:
    replica: LedReplica
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None  # likewise
    ended_us: int = 0  # the same in microseconds since the epoch, as standings are


class OneByOne(Requests):
    """Requests that each gets when the one before has moved and keeps up with the others, which answer meanwhile."""

    def __init__(self, replicas: Replicas, tell: Callable[[str], None], returning: Callable[[], bool]) -> None:
        super().__init__(replicas, tell, returning)
        self._request: MoveRequest | None = None
        self._behind: dict[tuple[str, tuple[SlotId, ...]], Version] = {}  # of that, by stage and owners where it begins
        self._left: deque[LedReplica] = deque()  # that are still to be told of it
        self._moving: _Moving | None = None

    def clear(self) -> None:  # noqa: D102
        super().clear()
        self._left.clear()
        self._moving = None  # nobody waits for it

    @property
    def _partly_told(self) -> bool:
        return bool(self._left or self._moving)

    def to_come(self, request: MoveRequest) -> bool:  # noqa: D102
        return super().to_come(request) or (request is self._request and self._partly_told)

    def _pass_on(self) -> None:
        if self._moving and not self._over(self._moving):
            return
        self._moving = None
        if not self._left and self._waiting:
            self._request, self._behind = self._waiting.popleft(), {}
            self._left.extend(self._replicas.living)
        while self._left and not self._moving:
            assert self._request is not None
            if (replica := self._left.popleft()).lives:
                self._moving = _Moving(replica)
                _ask(replica, self._request, self._behind_of(replica))

    def _behind_of(self, replica: LedReplica) -> dict[str, Version]:
        """Choose behind which versions the steps of ``replica`` come, by stage. Where replicas begin under the same
        owners, their steps are the same ones, under the same versions. Whoever begins elsewhere, as a step was late,
        has versions of its own: turns under the same one are compared.
        """
        used = _used(self._replicas.living)
        begins = {stage.name: stage.assignment.owner for stage in replica.job.stages}
        return {name: self._behind.setdefault((name, owner), used[name]) for name, owner in begins.items()}

    def _over(self, moving: _Moving) -> bool:
        replica = moving.replica
        if not replica.lives:
            return True
        if replica.system.plans.busy:
            return False
        now = time.monotonic()
        if moving.ended is None:
            moving.ended, moving.ended_us = now, now_us()
        since_s = now - moving.ended
        what = f"replica {replica.number} moved in {moving.ended - moving.began:.1f} s"
        standing = self._replicas.standings.get(replica.number)
        if len(self._replicas.living) == 1:
            self._tell(f"{what}, alone")
        elif standing and standing.until_us >= moving.ended_us:
            self._tell(f"{what}, and kept up with the others within {since_s:.1f} s")
        elif since_s > CATCH_UP_S:
            self._tell(f"{what}, and did not keep up with the others within {CATCH_UP_S:g} s")
        else:
            return False
        return True
