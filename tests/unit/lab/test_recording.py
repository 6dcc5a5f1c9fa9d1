import math
import time
from types import SimpleNamespace

import pytest
from small_store import result_store, tables

from keyshift.analysis.metrics import Offered
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge.evaluation import Evaluation
from keyshift.lab.recording import Recording, clock_notes, pace_notes
from keyshift.model.errors import QueryDied
from keyshift.results.manifest import Verdict, new_run_id
from keyshift.runtime.protocol_log import LogEvent
from memory_bucket import MemoryBucket, s3_error

LOAD = Offered(begin_s=-6.0, end_s=6.0, took_s=12.0, events=3_600_000, unprocessed=0, due=3_600_000, planned=3_600_000)
KEPT_UP = {
    "events": 3_600_000,
    "offered_per_s": 299_000.0,
    "sustained_per_s": 298_000.0,
    "backlog": 30_000,
    "worked_off_s": 0.1,
    "unprocessed": 0,
    "overloaded": False,
}


BEHIND = {"backlog": 1_234_567, "worked_off_s": 12.34}
OVERLOADED = {"worked_off_s": None, "unprocessed": 567_890, "overloaded": True}
BACKLOG = "a backlog: of 3 600 000 events 2 365 433 were answered when the load ended; the rest was"
MADE = "the generator made 1 800 000 of the 3 600 000 events that were to be offered (50%), in 15.0 s; 1 800 000 events"
LATE = "the generator made all 3 600 000 events, the last one 13.7 s after the end of the load: it, or Kafka, was late"


@pytest.mark.parametrize(
    ("took_s", "figures", "told"),
    [
        (12.0, {}, []),
        (12.0, BEHIND, [f"{BACKLOG} worked off 12.3 s later"]),
        (12.0, BEHIND | OVERLOADED, [f"{BACKLOG} not worked off within 30 s: 567 890 not processed"]),
        (12.0, BEHIND | {"worked_off_s": None}, [f"{BACKLOG} never worked off"]),
        (15.0, {"events": 1_800_000, "offered_per_s": 120_000.0}, [f"{MADE} were never offered"]),
        (25.7, BEHIND, [LATE, f"{BACKLOG} worked off 12.3 s later"]),
    ],
    ids=["kept up", "fell behind", "overloaded", "never answered", "the generator was slow", "all events came late"],
)
def test_a_job_or_a_generator_that_did_not_keep_up_is_told_with_counts(took_s, figures, told):
    assert pace_notes(LOAD._replace(took_s=took_s), 30.0, KEPT_UP | figures) == told


def test_results_that_came_before_their_events_by_kafkas_clock_are_told_and_by_how_much():
    assert clock_notes(0.4) == clock_notes(math.nan) == []
    [note] = clock_notes(-12.34)
    assert note.startswith("Kafka's clock is at least 12.3 ms behind that of this machine")


VERDICT = Verdict(lost=0, duplicated=0, reordered=0, wrong=0, ownership_violations=0)
EVENT = LogEvent(7, "slot-1", "arrived", (3,), 5, 1)


def test_a_run_is_stored_as_soon_as_a_store_that_was_away_at_its_end_is_there_again(monkeypatch):
    client, said = MemoryBucket(ConnectionResetError()), []
    spec, run_id = make_spec({}), new_run_id("keycount", "fluid")
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: setattr(client, "error", None))
    monkeypatch.setattr("keyshift.waiting.time", clock)
    evaluation = Evaluation(tables(), VERDICT, {"load": LOAD, "since_s": -6.0}, [])
    store = result_store(client)
    Recording(store, said.append, spec, run_id, spec.parameters(), 1.0).ended(evaluation, [])
    assert store.get_manifest(run_id).status == "ok"
    assert said[-1].startswith(f"waiting for the store, for up to 60 s: runs/{run_id} cannot be listed: MinIO at m:1 ")


def test_a_bad_run_is_stored_though_there_is_no_room_for_its_last_protocol_events():
    class Full(MemoryBucket):
        def put_object(self, bucket, name, data, length, part_size):
            if name.endswith("protocol.jsonl"):
                raise s3_error("XMinioStorageFull")
            super().put_object(bucket, name, data, length, part_size)

    store, said, spec, run_id = result_store(Full()), [], make_spec({}), new_run_id("keycount", "fluid")
    evaluation = Evaluation(tables(), VERDICT.model_copy(update={"lost": 1}), {"load": LOAD, "since_s": -6.0}, [])
    stored = Recording(store, said.append, spec, run_id, spec.parameters(), 1.0).ended(evaluation, [EVENT])
    assert stored == store.get_manifest(run_id) and stored.status == "bad"
    assert said[-1].startswith("the last protocol events of every slot and router are not stored: runs/")


def test_a_run_that_died_is_stored_with_the_last_protocol_events_if_any_are_known():
    store, said, spec = result_store(), [], make_spec({})
    silent, told = (new_run_id("keycount", "fluid") for _ in range(2))
    for run, log in (silent, []), (told, [EVENT, EVENT]):
        Recording(store, said.append, spec, run, spec.parameters(), 1.0).died(QueryDied("gone"), log)
    line = b'{"at_us": 7, "place": "slot-1", "event": "arrived", "units": [3], "version": 5, "hop": 1, "other": ""}\n'
    assert store.get_file(told, "protocol.jsonl") == 2 * line and f"{told}/protocol.jsonl" in said[-1]
    assert (store.get_manifest(silent).status, store.get_manifest(silent).files) == ("died", []) and len(said) == 3
