"""What tests wait for, with a deadline."""

import threading
import time


def only_here(instead, of):
    """``instead`` in this thread, and ``of`` in all others: what an earlier test has left may run for another moment,
    and a clock that it moves on would be that of all.
    """
    here = threading.get_ident()
    return lambda *args: (instead if threading.get_ident() == here else of)(*args)


class Clock:
    """In place of the module ``time``: a time that passes only while the thread that made this sleeps."""

    def __init__(self, now=0.0):
        self.now = now
        for name in ("time", "monotonic", "perf_counter"):
            setattr(self, name, only_here(lambda: self.now, getattr(time, name)))
        self.sleep = only_here(lambda seconds: self.pass_by(seconds), time.sleep)

    def pass_by(self, seconds):
        self.now += seconds


def until(condition, meanwhile=lambda: None, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        meanwhile()
        time.sleep(0.002)
