"""Bare copies take time, end with their processes, and are measured once a day."""

import os
import signal

import pytest

from keyshift.lab import bare_copy
from keyshift.lab.bare_copy import open_ring
from keyshift.model.errors import BadInput, ServiceUnavailable


def test_a_process_of_the_bare_copy_that_dies_is_named_and_none_is_left():
    with open_ring(2) as ring:
        assert ring.copy_s(9 << 20) > 0
        assert ring.copy_s(5 << 20) > 0
        members = [process._process for process in ring._processes]
        os.kill(members[1].pid, signal.SIGKILL)
        members[1].wait()
        with pytest.raises(ServiceUnavailable, match="the bare_copy process died: exit status -9"):
            ring.copy_s(9 << 20)
    assert all(member.poll() is not None for member in members)
    with pytest.raises(BadInput, match="processes = 1"), open_ring(1):
        pass


def test_the_bandwidth_is_measured_once_a_day_and_again_if_what_was_kept_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bare_copy, "COPY_BYTES", 8 << 20)
    cache = tmp_path / "home" / "bare_copy.json"
    measured = bare_copy.bytes_per_s(cache)
    assert measured > 1 << 20
    assert bare_copy.bytes_per_s(cache) == measured
    monkeypatch.setattr(bare_copy, "measure_bytes_per_s", lambda: 5.0)
    assert bare_copy.bytes_per_s(cache) == measured
    cache.write_text("{}")
    assert bare_copy.bytes_per_s(cache) == 5.0
    monkeypatch.setattr(bare_copy, "FRESH_S", 0.0)
    monkeypatch.setattr(bare_copy, "measure_bytes_per_s", lambda: 7.0)
    assert bare_copy.bytes_per_s(cache) == 7.0
