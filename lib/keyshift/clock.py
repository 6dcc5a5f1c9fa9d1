"""The clock of all measurements: microseconds since the epoch."""

import time

SECOND_US = 1_000_000


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000
