"""The one loop that waits for something to come about, with a deadline."""

import time
from collections.abc import Callable
from operator import not_
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_result, wait_fixed

T = TypeVar("T")


def wait_until(
    done: Callable[[], T], within_s: float, every_s: float = 0.1, progress: Callable[[], object] = lambda: None
) -> T:
    """Call ``done`` until it gives something true, for at most ``within_s`` seconds; returns what it gave last.

    It is called at least once, and ``every_s`` seconds lie between two calls. The time allowed begins anew whenever
    ``progress`` gives something else. What ``done`` or ``progress`` raises ends the wait.
    """
    seen, since = progress(), time.monotonic()

    def too_late(_: RetryCallState) -> bool:
        nonlocal seen, since
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= within_s

    def last(state: RetryCallState) -> T:
        assert state.outcome is not None
        return state.outcome.result()

    return Retrying(retry=retry_if_result(not_), stop=too_late, wait=wait_fixed(every_s), retry_error_callback=last)(
        done
    )
