"""Lets the tests of this folder import its modules; runs in processes, and what they have had."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def pool():
    from many_runs import Pool

    with Pool() as pool:
        yield pool


@pytest.fixture(scope="module")
def seen():
    return Counter()
