"""What tests wait for, with a deadline."""

import threading
import time


def only_here(instead, of):
    """``instead`` in this thread, and ``of`` in all others: what an earlier test has left may run for another moment,
    and a clock that it moves on would be that of all.
    """
    here = threading.get_ident()
    return lambda *args: (instead if threading.get_ident() == here else of)(*args)


def until(condition, meanwhile=lambda: None, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        meanwhile()
        time.sleep(0.002)
