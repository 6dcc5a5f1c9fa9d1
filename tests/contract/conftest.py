"""Lets the tests of this folder import the harness's ZooKeeper."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))
