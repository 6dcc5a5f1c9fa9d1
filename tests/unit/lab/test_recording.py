import math
from types import SimpleNamespace

from keyshift.analysis.metrics import Offered
from keyshift.lab.recording import Recording, clock_notes, pace_notes
from keyshift.runtime.protocol_log import LogEvent

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


def test_of_a_run_that_kept_up_nothing_is_said():
    assert pace_notes(LOAD, 30.0, KEPT_UP) == []


def test_a_job_that_fell_behind_is_told_with_rates_and_backlog():
    behind = KEPT_UP | {"sustained_per_s": 140_000.0, "backlog": 1_234_567, "worked_off_s": 12.34}
    assert pace_notes(LOAD, 30.0, behind) == [
        "offered 299 000/s, processed 140 000/s; backlog of 1 234 567 events worked off 12.3 s after the load"
    ]
    overloaded = behind | {"worked_off_s": None, "unprocessed": 567_890, "overloaded": True}
    assert pace_notes(LOAD, 30.0, overloaded) == [
        "offered 299 000/s, processed 140 000/s; backlog of 1 234 567 events not worked off within 30 s: "
        "567 890 not processed"
    ]
    lost = behind | {"worked_off_s": None}
    assert pace_notes(LOAD, 30.0, lost)[0].endswith("1 234 567 events never worked off")


def test_a_generator_that_could_not_make_the_rate_is_told_and_by_how_much():
    slow = KEPT_UP | {"events": 1_800_000, "offered_per_s": 120_000.0}
    assert pace_notes(LOAD, 30.0, slow) == [
        "the generator made 120 000/s of the 300 000/s that were to be offered (40%); "
        "1 800 000 events were never offered"
    ]
    late = KEPT_UP | {"offered_per_s": 240_000.0}
    assert pace_notes(LOAD, 30.0, late) == [
        "the generator made 240 000/s of the 300 000/s that were to be offered (80%)"
    ]


def test_results_that_came_before_their_events_by_kafkas_clock_are_told_and_by_how_much():
    assert clock_notes(0.4) == clock_notes(math.nan) == []
    [note] = clock_notes(-12.34)
    assert note.startswith("Kafka's clock is at least 12.3 ms behind that of this machine")


def test_a_run_that_went_wrong_is_stored_with_the_last_protocol_events_if_any_are_known():
    recording, said, files = object.__new__(Recording), [], []
    recording._say = said.append
    recording._store = SimpleNamespace(put_file=lambda *file: files.append(file) or "with the log")
    stored, event = SimpleNamespace(run_id="run"), LogEvent(7, "slot-1", "arrived", (3,), 5, 1)
    assert recording._put_log(stored, []) is stored
    assert not said and not files
    assert recording._put_log(stored, [event, event]) == "with the log"
    line = b'{"at_us": 7, "place": "slot-1", "event": "arrived", "units": [3], "version": 5, "hop": 1, "other": ""}\n'
    assert files == [("run", "protocol.jsonl", 2 * line)]
    assert "run/protocol.jsonl" in said[0]
