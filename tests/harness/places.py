"""Processes of a driver that are threads here, and what may happen to them at each call into a service.

Every thread that one of them starts belongs to it, too. A *place* stands for a process: it may be paused, and it may be
killed, which its threads notice at their next call. A ``Fault`` happens at the n-th call of its kind.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

from engine import HERE

# About how often each call is made in a short life.
WRITES = {
    "zookeeper publish": 18,
    "zookeeper acknowledge": 40,
    "zookeeper register": 8,
    "zookeeper withdraw": 12,
    "zookeeper claim": 1,
    "zookeeper end": 1,
    "minio put": 16,
    "minio remove": 10,
    "kafka create": 2,
    "kafka delete": 2,
    "kafka send": 45,
    "kafka result": 80,
    "disk replace": 5,
    "disk unlink": 2,
}
READS = {
    "zookeeper look": 16,
    "zookeeper read": 40,
    "zookeeper children": 8,
    "zookeeper watch": 50,
    "minio get": 16,
    "minio list": 10,
    "kafka look": 18,
    "kafka poll": 40,
}
CALLS = WRITES | READS
AT_A_STOP = ("zookeeper end", "kafka delete", "disk unlink")  # and never before it
NEEDS_NO_ROOM = "disk unlink"  # and does not fail
SLICE_S = 0.02  # in which whoever stalls sees that its process is gone


class DriverDied(BaseException):
    """What the threads of a process meet that is gone: there is nothing that they could do about it."""


@dataclass(frozen=True)
class Fault:
    """At the ``nth`` call of a kind. ``does``: die, pause, stall, fail, interrupt, or lose: all that S3 has.

    ``after``: when the call was carried out.

    ``seconds``: how long it stalls, or how long the whole service fails from then on.
    """

    does: str
    call: str
    nth: int = 0
    after: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        when = "after" if self.after else "at"
        return f"{self.does} {when} {self.call} {self.nth}" + (f" for {self.seconds:g} s" if self.seconds else "")


@dataclass
class Fates:
    """The faults of a driver that are still to come, and how often each kind of call was made."""

    faults: list[Fault]
    counts: Counter[str] = field(default_factory=Counter)
    struck: list[Fault] = field(default_factory=list)
    away: dict[str, float] = field(default_factory=dict)  # service -> until when (monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, call: str) -> Fault | None:
        """What happens to this call."""
        with self.lock:
            number, service = self.counts[call], call.split()[0]
            self.counts[call] += 1
            for fault in self.faults:
                if fault.call == call and fault.nth == number:
                    self.faults.remove(fault)
                    self.struck.append(fault)
                    if fault.does == "fail" and fault.seconds:
                        self.away[service] = time.monotonic() + fault.seconds
                    return fault
            if call != NEEDS_NO_ROOM and time.monotonic() < self.away.get(service, 0.0):
                return Fault("fail", call, number)
            return None


class Place:
    """One process; ``befall`` is told of a fault that hits all of its ``driver``, and may raise."""

    def __init__(self, name: str, fates: Fates, befall: Callable[[Fault], None], driver: object = None) -> None:
        self.name, self._fates, self._befall, self.driver = name, fates, befall, driver
        self.dead = False
        self._awake = threading.Event()
        self._awake.set()
        self.interrupted = self.holding = False  # holding: interrupts wait
        self.main: threading.Thread | None = None
        self.threads: list[threading.Thread] = []

    def pause(self) -> None:
        """Its threads stop at their next calls."""
        self._awake.clear()

    def wake(self) -> None:
        """They go on."""
        self._awake.set()

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return not self._awake.is_set()

    def kill(self) -> None:
        """They end at their next calls."""
        self.dead = True
        self._awake.set()

    def check(self) -> None:
        """Waits while it is paused. Raises DriverDied if it is gone."""
        self._awake.wait()
        if self.dead:
            raise DriverDied(self.name)
        if self.interrupted and not self.holding and threading.current_thread() is self.main:
            self.interrupted = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def calling(self, call: str, broken: Callable[[], Exception]) -> Iterator[None]:
        """Inside, a service is called; ``broken`` makes what is raised if it does not answer."""
        self.check()
        fault = self._fates.of(call)
        if fault and not fault.after:
            self._strike(fault, broken)
        yield
        if fault and fault.after:
            self._strike(fault, broken)

    def _strike(self, fault: Fault, broken: Callable[[], Exception]) -> None:
        match fault.does:
            case "stall":
                end = time.monotonic() + fault.seconds
                while (left := end - time.monotonic()) > 0:
                    time.sleep(min(left, SLICE_S))
                    self.check()
            case "fail":
                raise broken()
            case _:
                self._befall(fault)
                self.check()


def here() -> Place | None:
    """The process of this thread; None if it is none of a driver."""
    return getattr(HERE, "place", None)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """As in ``keyshift.program``, whose process has one main thread."""
    place = here()
    if place is None or threading.current_thread() is not place.main:
        yield
        return
    place.holding = True
    try:
        yield
    finally:
        place.holding = False
        place.check()


@contextlib.contextmanager
def at(place: Place | None) -> Iterator[None]:
    """Inside, this thread is one of ``place``, and so are those that it starts."""
    before, HERE.place = here(), place
    try:
        yield
    finally:
        HERE.place = before


@contextlib.contextmanager
def threads_inherit() -> Iterator[None]:
    """Inside, a thread is of the place of whoever starts it, and ends quietly with it."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        place, run = here(), self.run

        def run_there() -> None:
            with at(place), contextlib.suppress(DriverDied):
                run()

        if place is not None:
            self.run = run_there  # type: ignore[method-assign]
            place.threads.append(self)
        original(self)

    with patch.object(threading.Thread, "start", start):
        yield
