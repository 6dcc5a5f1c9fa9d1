"""Part d of ``make bench``: which processes and which frames it counts."""

import contextlib
import threading
from itertools import count
from types import SimpleNamespace

import pandas as pd
import pytest

from bench import legs
from keyshift.experiment.spec import make_spec
from keyshift.services.kafka import Kafka
from keyshift.services.zookeeper import ZooKeeper


@pytest.mark.parametrize(("name", "kind"), [("Kafka", Kafka), ("ZooKeeper", ZooKeeper)])
def test_the_process_of_a_service_is_known_by_what_it_is_started_with(name, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(Kafka, "_format", lambda *given: None)
    service = kind(tmp_path)
    command, _ = service.configure(["java"], service.ports, threading.Event())
    line = " ".join(command)
    assert [found for found, part in legs.PROCESSES.items() if part in line] == [name]


def test_a_burst_is_measured_from_its_load_and_not_from_when_it_was_asked_for(monkeypatch, tmp_path):
    class Subject(contextlib.nullcontext):
        """Its generators need five seconds until they are ready."""

        def __init__(self, *given, trace):
            super().__init__(self)

        def burst(self, rate, frame_ms, seconds, began=lambda start_s: None):
            began(105.0)

    due_us = pd.Series(range(100, 115)) * 1_000_000
    passed = pd.DataFrame({column: due_us for leg in legs.LEGS.values() for column in leg})
    passed["sent_us"] = due_us + pd.Series(range(15)) * 1000
    slept = []
    monkeypatch.setattr(legs, "Subject", Subject)
    monkeypatch.setattr(legs, "moments", lambda folder: passed)
    monkeypatch.setattr(
        legs, "time", SimpleNamespace(time=lambda: 100.0, sleep=slept.append, monotonic=count().__next__)
    )
    monkeypatch.setattr(legs, "_cpu_s", lambda: {})
    p50, *_ = legs.measure(None, None, make_spec({}), tmp_path, 8.0)
    assert p50.measure == "due -> sent, P50" and p50.keyshift == [10.0], "of seconds 107 to 113"
    assert slept == [7.0, 4.0]
