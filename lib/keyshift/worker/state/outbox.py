"""Sends units, keys and messages of a slot in the background: urgent units first, keys and messages in batches.

Each place (another slot, or the address where keys stayed) has a thread of its own. It sleeps until there is something
to send, takes all of it at once, and tries again for as long as the other side does not answer.
"""

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential,
)

from keyshift.model.errors import Damaged, NotThere, ServiceUnavailable
from keyshift.worker.flight.messages import Shipment

Item = TypeVar("Item")
Result = TypeVar("Result")
RETRY_MOST_S = 2.0


class Courier(Generic[Item]):
    """Collects items and delivers them in batches, in order, from its own thread.

    ``deliver(items)`` is tried again while it raises ServiceUnavailable; ``failed(error)`` hears of anything else.
    """

    def __init__(
        self, name: str, deliver: Callable[[list[Item]], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._deliver, self._failed, self._name = deliver, failed, name
        self._items: list[Item] = []
        self._pause_s = 0.0  # that the last one of them wants
        self._there = threading.Condition()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def send(self, *items: Item, pause_s: float = 0.0) -> None:
        """Deliver these, soon. ``pause_s`` lies between two deliveries of those that want so: steps may differ."""
        with self._there:
            self._items += items
            self._pause_s = pause_s
            self._there.notify()

    def close(self) -> None:
        """Deliver no more."""
        self._closed.set()
        with self._there:
            self._there.notify()

    def _work(self) -> None:
        paused_s = ended = 0.0  # what was delivered last wanted that pause from then on
        while True:
            with self._there:
                self._there.wait_for(lambda: self._items or self._closed.is_set())
                while (left_s := ended + min(paused_s, self._pause_s) - time.monotonic()) > 0:
                    if self._closed.is_set():
                        return
                    self._there.wait(left_s)
                paused_s, items, self._items = self._pause_s, self._items, []
            if self._closed.is_set():
                return
            try:
                again(self._name, self._closed, lambda items=items: self._deliver(items))  # type: ignore[misc]
            except BaseException as error:
                if not self._closed.is_set():
                    self._failed(error)
                return
            ended = time.monotonic()


def again(name: str, closed: threading.Event, act: Callable[[], Result], within_s: float = math.inf) -> Result:
    """Return what ``act`` gives. It is called until it succeeds, until ``closed`` is set, or for ``within_s`` seconds;
    but once if something is damaged or not there: that does not become better.

    Messages of a step need no such bound: the coordinator's deadline says when it is too late.
    """

    def complain(state: RetryCallState) -> None:
        sys.stderr.write(f"{name}, attempt {state.attempt_number}: {state.outcome and state.outcome.exception()}\n")

    trying = Retrying(
        retry=retry_if_exception_type(ServiceUnavailable) & retry_if_not_exception_type((Damaged, NotThere)),
        wait=wait_exponential(multiplier=0.1, max=RETRY_MOST_S),
        stop=stop_when_event_set(closed) | stop_after_delay(within_s),
        before_sleep=complain,
        reraise=True,
    )
    return trying(act)


class Outbox:
    """The units on their way to one slot: units that somebody waits for go first.

    ``push(shipments)`` sends what the iterator gives until it ends, and returns when all of it is acknowledged.
    """

    def __init__(
        self, name: str, push: Callable[[Iterator[Shipment]], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._push = push
        # Of a plain dictionary that gives away its first item again and again each look for it takes longer.
        self._waiting: OrderedDict[int, Shipment] = OrderedDict()
        self._underway: dict[int, Shipment] = {}
        self._lock = threading.Lock()
        self._courier: Courier[None] = Courier(name, self._send, failed)

    def put(self, *shipments: Shipment) -> None:
        """Send these units after those that wait already."""
        with self._lock:
            self._waiting.update((shipment.unit, shipment) for shipment in shipments)
        self._courier.send(None)

    def hurry(self, unit: int) -> None:
        """Send this unit before all others, if it still waits."""
        with self._lock:
            if unit in self._waiting:
                self._waiting.move_to_end(unit, last=False)

    def acknowledged(self, unit: int) -> Shipment | None:
        """Note that ``unit`` has arrived. Returns what was sent; None if that was known already."""
        with self._lock:
            return self._underway.pop(unit, None)

    def close(self) -> None:
        """Send no more."""
        self._courier.close()

    def _send(self, _: list[None]) -> None:
        with self._lock:  # what was not acknowledged goes again
            self._waiting = OrderedDict(self._underway | self._waiting)
            self._underway = {}
            if not self._waiting:
                return
        self._push(self._next())

    def _next(self) -> Iterator[Shipment]:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                unit, shipment = self._waiting.popitem(last=False)
                self._underway[unit] = shipment
            yield shipment
