"""Lets the tests of this folder import ``word_count``, which is beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
