"""A ring of processes that copy ends as a whole."""

import contextlib

import psutil
import pytest

from bench.copy_ring import open_ring
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.waiting import wait_until


def members():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # a zombie of another test
            found += [child] if "bench.copy_ring" in child.cmdline() else []
    return found


def test_a_process_of_the_ring_that_dies_is_named_and_none_is_left():
    with open_ring(2) as ring:
        assert ring.copy_s(9 << 20) > 0
        assert ring.copy_s(5 << 20) > 0
        _, second = members()
        second.kill()
        assert wait_until(lambda: second.status() == psutil.STATUS_ZOMBIE, 60)
        with pytest.raises(ServiceUnavailable, match="the copy_ring process died: exit status -9"):
            ring.copy_s(9 << 20)
    assert not members()


def test_a_ring_of_one_is_none():
    with pytest.raises(BadInput, match="processes = 1"), open_ring(1):
        pass
