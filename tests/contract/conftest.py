"""Lets the tests of this folder import the harness's ZooKeeper and bucket, and the mutants of order machines."""

import sys
from pathlib import Path

for folder in ("harness", "property"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
