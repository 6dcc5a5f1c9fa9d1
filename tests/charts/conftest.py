"""Lets the tests of this folder import ``rendering``, which is beside them, and has Helm ready before the first one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """From PATH or the cache, else built once, which takes minutes."""
    import rendering

    rendering.helm()
