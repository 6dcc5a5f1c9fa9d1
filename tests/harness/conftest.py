"""Lets the tests of this folder import the harness, which is beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
