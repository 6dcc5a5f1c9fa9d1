"""What tests wait for, with a deadline."""

import time


def until(condition, meanwhile=lambda: None, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        meanwhile()
        time.sleep(0.002)
