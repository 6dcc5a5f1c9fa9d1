"""Lets the tests of this folder import their helpers (``small_…``), which are beside them; gives a dead process."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def registered():
    """Registers things for the time of a test: ``registered(registry, name=thing)``. What is defined by then is
    forgotten, too.
    """
    with pytest.MonkeyPatch.context() as patch:

        def register(registry, **things):
            patch.setattr(registry, "_entries", dict(registry.items()) | things)
            patch.setattr(registry, "_defined", set(registry.defined()))

        yield register


@pytest.fixture
def own_definitions(registered):
    """What a test defines, in a cell of a notebook say, is forgotten."""
    from keyshift.ordering import orderings
    from keyshift.planner import strategies
    from keyshift.state import backends
    from keyshift.workloads import workloads

    for registry in (strategies, workloads, backends, orderings):
        registered(registry)


@pytest.fixture
def ascii_locale(monkeypatch):
    """A file whose encoding nobody has named is in ASCII, the least that all locales have."""
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")


@pytest.fixture
def full():
    """Makes the disk as good as full: no file grows."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
