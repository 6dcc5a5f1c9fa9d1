"""The one loop that waits for something to come about, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    done: Callable[[], T], within_s: float, every_s: float = 0.1, progress: Callable[[], object] = lambda: None
) -> T:
    """Call ``done`` until it gives something true, for at most ``within_s`` seconds; returns what it gave last.

    It is called at least once, and ``every_s`` seconds lie between two calls. The time allowed begins anew whenever
    ``progress`` gives something else. What ``done`` or ``progress`` raises ends the wait.
    """
    seen, since = progress(), time.monotonic()
    while not (found := done()):
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since >= within_s:
            break
        time.sleep(every_s)
    return found
