"""What a slot measures goes on from batch to batch."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from keyshift.histogram import class_of
from keyshift.model.records import Measured
from keyshift.wire.nodes import measured
from keyshift.worker.slot import measures as module
from keyshift.worker.slot.measures import Measures

UNITS = 6
MEASURED = measured("one")[0]


def heat(**records):
    made = np.zeros(UNITS, np.int64)
    for unit, count in records.items():
        made[int(unit[1:])] = count
    return made


def handed_over(answer):
    """As the next holder reads it from ZooKeeper."""
    return MEASURED.decode(MEASURED.encode(answer))


def test_counts_and_seconds_add_up_over_batches_and_the_highest_peak_counts(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    answer = None
    for seconds, peak, of_batch, sent in (
        (7, 500, heat(u1=10, u5=1), {"fetched_bytes": 40, "written_bytes": 3, "copied_bytes": 5, "lent_bytes": 20}),
        (7, 900, heat(), {"fetched_bytes": 0, "written_bytes": 0}),
        (2, 20, heat(u1=5, u2=2), {"fetched_bytes": 2, "written_bytes": 0, "copied_bytes": 6, "lent_bytes": 9}),
    ):
        made = Measures(UNITS, answer)
        with made.working():
            now += 2
        now += seconds - 2
        answer = handed_over(made.so_far(of_batch, peak, sent))
        now += 100  # until the next batch begins
    assert (answer.seconds, answer.busy_s, answer.queue_peak_bytes) == (16, 6, 900)
    assert answer.records == ((1, 15), (2, 2), (5, 1))
    assert (answer.fetched_bytes, answer.written_bytes, answer.copied_bytes, answer.lent_bytes) == (42, 3, 11, 29)


def test_the_peak_of_memory_is_that_of_the_largest_process():
    here = Measures(UNITS, None).so_far(heat(), 0, {})
    assert here.rss_peak_bytes > 1 << 20
    larger = replace(here, rss_peak_bytes=1 << 50)
    assert Measures(UNITS, larger).so_far(heat(), 0, {}).rss_peak_bytes == 1 << 50


@pytest.mark.parametrize(("system", "peak_bytes"), [("linux", 5 << 10), ("darwin", 5)])
def test_the_peak_of_memory_is_in_bytes_whatever_the_system_counts_in(monkeypatch, system, peak_bytes):
    used = SimpleNamespace(ru_maxrss=5)
    monkeypatch.setattr(module, "resource", SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: used))
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform=system))
    assert Measures(UNITS, None).so_far(heat(), 0, {}).rss_peak_bytes == peak_bytes


def test_asking_does_not_change_the_answer():
    made = Measures(UNITS, Measured(records=((3, 4),), fetched_bytes=7))
    first, second = (made.so_far(heat(u3=1), 0, {"fetched_bytes": 1}) for _ in range(2))
    assert first.records == second.records == ((3, 5),)
    assert first.fetched_bytes == second.fetched_bytes == 8


def test_a_slot_that_fails_at_work_was_at_work(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    made = Measures(UNITS, None)
    with contextlib.suppress(ValueError), made.working():
        now += 3
        raise ValueError
    now += 4
    answer = made.so_far(heat(), 0, {})
    assert (answer.busy_s, answer.seconds) == (3, 7)


def test_latency_is_that_of_the_first_and_the_last_event_of_each_frame_and_goes_on_from_batch_to_batch():
    frame = pa.RecordBatch.from_pydict({"t": [1000, 2000, 9000], "position": pa.array([0, 1, 2], pa.int32())})
    timer = pa.RecordBatch.from_pydict({"t": [0], "position": pa.array([-1], pa.int32())})
    first = Measures(UNITS, None)
    first.answered([frame, timer], 11_000)
    second = Measures(UNITS, handed_over(first.so_far(heat(), 0, {})))
    second.answered([frame], 11_000)
    counts = dict(second.so_far(heat(), 0, {}).latency)
    assert counts == {class_of(10.0): 2, class_of(2.0): 2}


def test_a_frame_without_results_has_no_latency():
    """A query that leaves events out, such as q2 of Nexmark, has frames of which nothing is left."""
    frame = pa.RecordBatch.from_pydict({"t": pa.array([], pa.int64()), "position": pa.array([], pa.int32())})
    made = Measures(UNITS, None)
    made.answered([frame], 11_000)
    assert made.so_far(heat(), 0, {}).latency == ()
