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


def test_a_job_that_fell_behind_is_told_with_what_was_answered_in_time():
    behind = KEPT_UP | {"backlog": 1_234_567, "worked_off_s": 12.34}
    assert pace_notes(LOAD, 30.0, behind) == [
        "a backlog: of 3 600 000 events 2 365 433 were answered when the load ended; the rest was worked off 12.3 s "
        "later"
    ]
    overloaded = behind | {"worked_off_s": None, "unprocessed": 567_890, "overloaded": True}
    assert pace_notes(LOAD, 30.0, overloaded) == [
        "a backlog: of 3 600 000 events 2 365 433 were answered when the load ended; the rest was not worked off "
        "within 30 s: 567 890 not processed"
    ]
    lost = behind | {"worked_off_s": None}
    assert pace_notes(LOAD, 30.0, lost)[0].endswith("ended; the rest was never worked off")


def test_a_generator_that_could_not_make_the_rate_is_told_and_by_how_much():
    slow = KEPT_UP | {"events": 1_800_000, "offered_per_s": 120_000.0}
    assert pace_notes(LOAD._replace(took_s=15.0), 30.0, slow) == [
        "the generator made 1 800 000 of the 3 600 000 events that were to be offered (50%), in 15.0 s; "
        "1 800 000 events were never offered"
    ]


def test_of_events_that_were_all_made_late_no_rate_is_told_that_is_of_another_time():
    load = Offered(begin_s=-8.0, end_s=15.0, took_s=36.7, events=23_000, unprocessed=0, due=23_000, planned=23_000)
    figures = {"events": 23_000, "offered_per_s": 626.7, "sustained_per_s": 395.0, "backlog": 13_915}
    assert pace_notes(load, 30.0, figures | {"worked_off_s": 14.2, "unprocessed": 0, "overloaded": False}) == [
        "the generator made all 23 000 events, the last one 13.7 s after the end of the load: it, or Kafka, was late",
        "a backlog: of 23 000 events 9 085 were answered when the load ended; the rest was worked off 14.2 s later",
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
