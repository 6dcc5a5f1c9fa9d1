"""The bandwidth of a bare copy."""

import json
import math
import time

from keyshift.lab.machine import bare_copy
from keyshift.lab.machine.bare_copy import BareCopy
from keyshift.results.manifest import describe_machine


def test_the_bandwidth_is_measured_once_a_day_and_again_if_what_was_kept_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bare_copy, "COPY_BYTES", 8 << 20)
    monkeypatch.setattr(bare_copy, "MOST_OTHERS", math.inf)  # other tests may run beside this one
    cache, machine = tmp_path / "home" / "bare_copy.json", describe_machine()
    measured = bare_copy.bytes_per_s(cache)
    assert measured > 1 << 20
    assert bare_copy.bytes_per_s(cache) == measured
    monkeypatch.setattr(bare_copy, "measure", lambda: BareCopy(5.0, 0.0))
    assert bare_copy.bytes_per_s(cache) == measured
    monkeypatch.setattr(bare_copy, "describe_machine", lambda: machine.model_copy(update={"cpus": machine.cpus + 1}))
    assert bare_copy.bytes_per_s(cache) == 5.0, "of another machine"
    cache.write_text("{}")
    assert bare_copy.bytes_per_s(cache) == 5.0
    cache.write_text(json.dumps(json.loads(cache.read_text()) | {"measured_at": time.time() + 3600}))
    monkeypatch.setattr(bare_copy, "measure", lambda: BareCopy(6.0, 0.0))
    assert bare_copy.bytes_per_s(cache) == 6.0, "in the future"
    monkeypatch.setattr(bare_copy, "FRESH_S", 0.0)
    monkeypatch.setattr(bare_copy, "measure", lambda: BareCopy(7.0, 0.0))
    assert bare_copy.bytes_per_s(cache) == 7.0


def test_a_bandwidth_that_was_measured_while_others_had_much_is_not_kept(tmp_path, monkeypatch):
    cache, measured = tmp_path / "bare_copy.json", [BareCopy(4.0, 0.25), BareCopy(5.0, 0.24), BareCopy(6.0, 0.0)]
    monkeypatch.setattr(bare_copy, "measure", lambda: measured.pop(0))
    assert [bare_copy.bytes_per_s(cache) for _ in range(3)] == [4.0, 5.0, 5.0]
