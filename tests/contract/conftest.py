"""Lets the tests of this folder import ``word_count``, which is beside them, and the harness's ZooKeeper."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "harness")]
