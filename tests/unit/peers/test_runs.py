"""What the runs of all peers have in common."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from keyshift.model.errors import KeyshiftError
from keyshift.peers import runs


def test_what_the_services_take_of_the_machine_is_not_taken_for_that_of_others(monkeypatch, tmp_path):
    died, around = [], []

    def execute():
        around.append(run.services())
        raise KeyshiftError("it is over")

    run = SimpleNamespace(execute=execute)

    @contextmanager
    def prepared(run_id):
        yield run

    recording = SimpleNamespace(died=lambda error, log: died.append(str(error)))
    monkeypatch.setattr(runs, "Recording", lambda *given, **more: recording)
    monkeypatch.setattr(runs.bare_copy, "bytes_per_s", lambda path: 1e9)
    monkeypatch.setattr(runs, "Stack", lambda home: SimpleNamespace(pids=lambda: {7: "kafka"}))
    spec = SimpleNamespace(workload=SimpleNamespace(name="keycount"), peer="spark_state", parameters=dict)
    with pytest.raises(KeyshiftError, match="it is over"):
        runs.run_peer(spec, None, tmp_path, print, prepared)
    assert around == [{7: "kafka"}] and died == ["it is over"]
