"""Lets the tests of this folder import ``small_job``, which is beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
