"""The bandwidth of a bare copy."""

from keyshift.lab.machine import bare_copy
from keyshift.results.manifest import describe_machine


def test_the_bandwidth_is_measured_once_a_day_and_again_if_what_was_kept_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bare_copy, "COPY_BYTES", 8 << 20)
    cache, machine = tmp_path / "home" / "bare_copy.json", describe_machine()
    measured = bare_copy.bytes_per_s(cache)
    assert measured > 1 << 20
    assert bare_copy.bytes_per_s(cache) == measured
    monkeypatch.setattr(bare_copy, "measure_bytes_per_s", lambda: 5.0)
    assert bare_copy.bytes_per_s(cache) == measured
    monkeypatch.setattr(bare_copy, "describe_machine", lambda: machine.model_copy(update={"cpus": machine.cpus + 1}))
    assert bare_copy.bytes_per_s(cache) == 5.0, "of another machine"
    cache.write_text("{}")
    assert bare_copy.bytes_per_s(cache) == 5.0
    monkeypatch.setattr(bare_copy, "FRESH_S", 0.0)
    monkeypatch.setattr(bare_copy, "measure_bytes_per_s", lambda: 7.0)
    assert bare_copy.bytes_per_s(cache) == 7.0
