"""Lets the tests of this folder import what they share: what is beside them, and ``test_savepoint``."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "executor")]
