"""What a run's verdict says of snapshots that were judged."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from keyshift.clock import SECOND_US
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge import evaluation
from keyshift.lab.judge.evaluation import NEVER_DIED, EndedJob, Span, bytes_beside
from keyshift.lab.judge.final_state import CopiedAhead, FinalState, StageEnd
from keyshift.lab.judge.sequential import run_sequentially
from keyshift.lab.scripts import series
from keyshift.lab.scripts.series import Lap
from keyshift.model.keys import Assignment, Mode, Move, Step, UnitId
from keyshift.model.records import Measured, SnapshotRecord, StepRecord, UnitLeft, UnitsLeft
from keyshift.peers.counting import CountedByResults
from keyshift.planner import Decision
from keyshift.results.verdict import Judgement, Ownership
from keyshift.traffic.copies import Difference, Incarnation
from keyshift.traffic.messages import Diverged
from keyshift.workloads.keycount import KeyCount

GOOD = Judgement(0, 0, 0, 0, 0, 0, 0)
BAD = Judgement(0, 0, 0, 2, 0, 0, 0, (("wrong", "final state of key 5"), ("wrong", "final state of key 6")))
TAKEN = [SnapshotRecord(1, 2, {"counter": 3}, {"counter": 4}, name) for name in ("a", "b", "c")]


@pytest.fixture
def ended(monkeypatch):
    """A good run, as its verdict is to be made; gives it what is found at each snapshot, None if none is judged. Of
    ``made_of`` events of the source routers make one. ``traffic``: that of the last one; ``given`` are first copies and
    the results of each replica.
    """

    def make(cuts, kind=KeyCount, kept=slice(None), made_of=1, **more):
        monkeypatch.setattr(evaluation, "judged_cuts", lambda *given: cuts or {})
        workload = kind(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
        run = run_sequentially(workload, [Assignment.contiguous(8, 2)])
        total = made_of * len(run.events)
        frames = run.frames.assign(events=total // len(run.frames))
        results = run.results.iloc[kept].assign(replica=0, slot_turn=0, attempt=0, first=True)

        def offered(before):
            return run.events[run.events["offset"] < run.events["router"].map(before or {0: 10, 1: 10})], frames

        of_replicas = {"given": {None: results}, "differences": [], "compared": 40, "replicas": 2}
        make.traffic = traffic = SimpleNamespace(offered=offered, seconds=[], **of_replicas)
        traffic.results, traffic.all = lambda replica=None: traffic.given[replica], results
        stage = StageEnd("counter", Ownership(run.assignments), [1], {}, [])
        offsets = more.pop("offsets", {0: 10, 1: 10})
        final = FinalState(offsets, lambda timers, units: iter(run.final), [stage], (), (), snapshots=TAKEN, cuts=cuts)
        return EndedJob(workload, traffic, SimpleNamespace(offered=total, rate_changed=False), final, [], **more)

    return make


def anew(ended, traffic, **final):
    """The same job, with what ``traffic`` gives by now and another final state."""
    return EndedJob(ended.workload, traffic, ended.feed, replace(ended.final, **final), [])


def verdicts(ended):
    return ended.tables(Span(0, 0, 1, 0))["snapshots"]["verdict"].to_pylist()


@pytest.mark.parametrize(
    ("cuts", "judged", "bad", "of_each"),
    [
        ({"a": GOOD, "b": BAD}, 2, 1, ["ok", "bad", "not judged"]),
        ({"a": GOOD, "b": GOOD, "c": GOOD}, 3, 0, ["ok"] * 3),
        ({}, 0, None, ["not judged"] * 3),
        (None, None, None, ["not judged"] * 3),
    ],
    ids=["one is bad", "all are good", "there was none", "nobody judges them"],
)
def test_a_bad_snapshot_makes_the_verdict_bad_and_is_named_with_what_is_wrong_in_it(ended, cuts, judged, bad, of_each):
    run = ended(cuts)
    found = run.verdict()
    assert (found.ok, found.wrong, found.others.get("snapshots")) == (not bad, 0, bad)
    assert found.examples == [f"snapshots: b: wrong: final state of key {key}" for key in (5, 6)] * (bad or 0)
    assert verdicts(run) == of_each
    told = [f"{judged} snapshots were judged, each as if the job had ended there: {bad or 0} bad"]
    assert run.notes == (told if judged is not None else [])


def test_what_a_system_tells_of_the_events_is_among_the_notes(ended):
    run = ended(None, CountedByResults)
    run.final = replace(run.final, told_of=lambda events: [f"{len(events)} events"])
    assert run.notes == [f"{len(run.events)} events"] and len(run.events)


def test_of_an_overloaded_job_that_tells_no_offsets_what_it_has_answered_is_judged(ended):
    whole = ended(None, CountedByResults)
    offered = len(whole.events)
    given_up = ended(None, CountedByResults, slice(offered // 2), offsets={}, overloaded=True)
    assert given_up.verdict().ok and given_up.unprocessed == offered - offered // 2
    one_is_lost = [number for number in range(offered // 2) if number != 3]
    found = ended(None, CountedByResults, one_is_lost, offsets={}, overloaded=True)
    assert (found.verdict().lost, found.unprocessed) == (1, offered - offered // 2)
    all_came = ended(None, CountedByResults, offsets={}, overloaded=True)
    assert all_came.verdict().ok and all_came.unprocessed == 0
    gave_up_nothing = ended(None, CountedByResults, slice(offered // 2), offsets={})
    assert gave_up_nothing.verdict().lost == offered - offered // 2, "it was silent while some were missing"


def test_events_that_routers_have_made_are_not_counted_as_those_that_were_offered(ended):
    whole = ended(None, CountedByResults, made_of=3)
    made = len(whole.events)
    given_up = ended(None, CountedByResults, slice(made // 2), made_of=3, offsets={}, overloaded=True)
    assert (whole.unprocessed, given_up.unprocessed) == (0, 3 * (made - made // 2))
    half = Span(0.0, 0.0, whole.events["t"].median() / SECOND_US, 0.0)
    lap = Lap(make_spec({"keys": 50}), half, 0.0, {}, True, CopiedAhead(), 0, [])
    facts = series.evaluation_of(whole, lap, None).facts
    load = facts["load"]
    assert facts["one_job"] and facts["incomplete"], "the summary of a lap says that it is one, and how that ended"
    assert (load.events, load.planned, load.due) == (3 * load.due, 3 * load.due, half.of(whole.events["t"]).sum())
    assert 0 < load.due < made
    stopped = ended(None, offsets={0: 5, 1: 5}, made_of=3, overloaded=True)
    processed = len(stopped.events)
    assert (stopped.unprocessed, stopped.offered_for(processed)) == (3 * (made - processed), 3 * processed)


@pytest.mark.parametrize(
    ("offered", "overloaded", "unprocessed"), [(500, False, 0), (300, False, 0), (500, True, 100), (300, True, 0)]
)
def test_events_that_kafka_has_lost_or_has_more_of_are_in_the_verdict_and_are_no_overload(
    ended, offered, overloaded, unprocessed
):
    run = ended(None, overloaded=overloaded)
    run.feed.offered = offered
    assert (run.verdict().others["unread"], run.unprocessed) == (100, unprocessed)


def test_laps_of_an_overloaded_job_know_which_of_their_events_it_had_not_processed(ended):
    whole, stopped = ended(None, made_of=3), ended(None, made_of=3, offsets={0: 5, 1: 5}, overloaded=True)
    _, frames = ended.traffic.offered(None)
    each, ends = int(frames["events"].iloc[0]), sorted(set(frames["watermark"] / SECOND_US))
    frames.loc[frames["offset"] == 7, "watermark"] = 0  # as if it was sent at once with the next one
    for (before, last), behind in {(0, 3): 0, (3, 6): 4, (5, 9): 8}.items():  # frames of both routers
        span = Span(ends[before] + 1e-6, 0.0, ends[last] + 1e-6, 0.0)
        lap = Lap(make_spec({"keys": 50}), span, 0.0, {}, False, CopiedAhead(), 0, [])
        of_stopped, of_whole = (series.evaluation_of(job, lap, None).facts["load"] for job in (stopped, whole))
        assert (of_stopped.unprocessed, of_whole.unprocessed) == (behind * each, 0)
        assert of_stopped.events == of_stopped.planned == of_whole.events


class OfEvenKeys(KeyCount):
    """Of which only events of even keys have a result."""

    @property
    def stages(self):
        return tuple(replace(stage, due=even) for stage in super().stages)


def even(events):
    return np.asarray(events["key"].to_numpy() % 2 == 0)


@pytest.mark.parametrize("lost", [0, 3])
def test_of_events_that_a_stopped_job_has_not_read_those_are_lost_of_which_a_result_is_due(lost):
    """Nobody has waited for the others: no result of them could come."""
    given = {"key_groups": 8, "keys": 50, "skew": 0.5, "state_bytes": 32, "seed": 1}
    offered, processed = (run_sequentially(KeyCount(**given), [NOT_YET], frames=number) for number in (10, 7))
    results = processed.results[processed.results["key"] % 2 == 0].assign(replica=0, first=True)
    late = offered.events["offset"] >= 7
    awaited = offered.events[late & (offered.events["key"] % 2 == 0)]
    events = offered.events.drop(index=awaited.index[lost:])
    frames = events.groupby(["router", "offset"], as_index=False).agg(events=("key", "size")).assign(watermark=0)
    traffic = SimpleNamespace(portions=None, seconds=[], results=lambda: results)
    traffic.offered = lambda before: (events, frames)
    stage = StageEnd("counter", Ownership([NOT_YET]), [1], {}, [])
    final = FinalState({0: 7, 1: 7}, lambda timers, units: iter(processed.final), [stage], (), ())
    ended = EndedJob(OfEvenKeys(**given), traffic, SimpleNamespace(offered=len(events)), final, [])
    found, left_out = ended.verdict(), int(late.sum()) - len(awaited)
    assert (found.lost, found.ok) == (lost, not lost), found.examples
    assert left_out > 0 == ended.unprocessed, "that is no overload"
    assert ended.notes == [f"{left_out} events were not processed: no result of them is due, so nobody waited"]


@pytest.fixture
def facts_of(ended, monkeypatch):
    """What ``evaluation`` says beside its tables of a run with these records of one migration."""

    def make(*records, begins=(1,), incomplete=False, **of_job):
        monkeypatch.setattr(evaluation, "judged", lambda *given: GOOD)
        run, decided = ended(None), (0, Decision(UnitId(0), 0, "first"))
        stage = replace(run.final.stages[0], records=records, begins=begins, decisions=[decided])
        stage = replace(stage, unit_bytes=dict.fromkeys(range(8), 100), incomplete=incomplete)
        run.final = replace(run.final, stages=[stage], **of_job)
        run.feed.took_s, run.feed.planned = 1.0, run.feed.offered
        return run.evaluation(Span(0, 0, 1, 0), [], str).facts

    return make


PUSH = Mode()


def moved(mode=PUSH, outcome="complete"):
    """A step in which slot 0 has sent 7 bytes of unit 0."""
    released = {0: UnitsLeft((UnitLeft(0, 7, 3, 4),))}
    return StepRecord(2, Step((Move(0, 0, 1),), mode), 1, 2, 2, 5, outcome, released)


@pytest.mark.parametrize("incomplete", [False, True])
def test_a_run_is_incomplete_if_a_stage_is(facts_of, incomplete):
    assert facts_of(moved(), incomplete=incomplete)["incomplete"] is incomplete


def test_tables_say_whose_moves_and_measures_they_have(ended):
    run = ended(None)
    stage = replace(run.final.stages[0], records=[moved()], measures={0: Measured()})
    run.final = replace(run.final, stages=[stage], replica=1)
    tables = run.tables(Span(0, 0, 1, 0))
    assert set(tables["migration"]["replica"].to_pylist()) == set(tables["metrics"]["replica"].to_pylist()) == {1}


def test_what_had_to_move_is_all_that_a_unit_has_if_copies_were_ordered_in_whatever_attempt(facts_of):
    assert facts_of(moved())["bytes_minimum"] == 7
    assert facts_of(moved(), copied=CopiedAhead(ordered=True))["bytes_minimum"] == 100, "their attempt has ended"


@pytest.mark.parametrize(
    ("mode", "known"),
    [
        (PUSH, True),
        (Mode(transfer="fetch"), True),
        (Mode(transfer="fetch", fetch_back=1), False),
        (Mode(transfer="access"), False),
        (Mode(transfer="remote"), False),
    ],
)
def test_what_was_sent_beside_units_is_not_known_of_an_attempt_that_has_ended(facts_of, mode, known):
    begins = [(1,), (1, 2), (1, 3)]  # with this attempt; behind it, of a replica that came back; behind it
    found = [facts_of(moved(mode), begins=each)["bytes_beside"] for each in begins]
    assert found == ([0] * 3 if known else [0, None, None])
    cancelled = facts_of(moved(mode, "cancelled"), begins=(1, 2))
    assert cancelled["bytes_beside"] == 0, "it comes again, in this attempt"


def test_the_migration_of_a_lap_is_the_first_one_of_its_run(ended):
    run = ended(None)
    decided = [(number, Decision(UnitId(number), 0, "first")) for number in (3, 4, 5)]
    run.final = replace(run.final, stages=[replace(run.final.stages[0], decisions=decided)])
    found = run.tables(Span(0, 0, 1, 0), {"counter": 4})["decisions"]
    assert (found["migration"].to_pylist(), found["unit"].to_pylist()) == ([0], [4])


def test_what_is_wrong_in_one_replica_makes_the_verdict_bad_and_so_does_a_difference(ended):
    alone = ended(None)
    plain, traffic, results = alone.final, ended.traffic, ended.traffic.all
    traffic.given |= {0: results, 1: results.iloc[:-1]}
    found = anew(alone, traffic, replicas={0: plain}).verdict()
    assert found.ok and found.others["diverged"] == 0
    run = anew(alone, traffic, replicas={0: plain, 1: plain})
    found = run.verdict()
    assert not found.ok and (found.lost, found.others["diverged"]) == (0, 1)
    [example] = found.examples
    assert example.startswith("diverged: replica 1: lost: router ")
    [note] = run.notes
    assert note == (
        "2 replicas were judged, each as if it had been alone: 1 bad; of 40 turns that two of them told, and of all "
        "results, 0 differences are known; first copies: 100% of replica 0"
    )
    traffic.differences.append(Diverged("counter", Difference(1, (0, 1), turn=70, epoch=80, same=66)))
    traffic.given |= dict.fromkeys(range(2), results.assign(slot_turn=9))
    found = anew(run, traffic).verdict()
    assert found.others["diverged"] == 1 + 4, "two slots of both replicas"
    assert any(line.startswith("diverged: replica 1: slot 0 gave another result") for line in found.examples)
    assert found.examples[0] == (
        "diverged: replicas 0 and 1 differ in slot 1 of stage counter at epoch 80 (turn 70; the same until turn 66)"
    )


def test_of_replicas_that_moved_one_after_the_other_one_is_judged_and_the_first_copies_are_what_it_gave(ended):
    run = ended(None)
    traffic, results = ended.traffic, ended.traffic.all
    mine = results.assign(slot_turn=np.arange(len(results)) // 10 + 1)
    moved = mine.assign(slot=9, replica=1)  # where nothing belongs, as far as the other one knows
    firsts = pd.concat([mine.iloc[::2], moved.iloc[1::2]]).sort_index()
    firsts = firsts.assign(log_offset=range(len(firsts)))
    traffic.given = {None: firsts, 0: mine, 1: moved}
    run.final = plain = replace(run.final, heartbeat_us=1)
    found = anew(run, traffic, replicas={0: plain}, judged=0).verdict()
    assert found.ok and found.others["diverged"] == 0
    stage = plain.stages[0]
    first, *_ = stage.ownership.assignments
    other = replace(stage.ownership, assignments=[replace(first, owner=tuple(1 - slot for slot in first.owner))])
    replicas = {0: plain, 1: replace(plain, stages=[replace(stage, ownership=other)])}
    different = Diverged("counter", Difference(1, (0, 1), turn=70, epoch=80, same=66))
    traffic.differences.append(different)
    [note] = anew(run, traffic, replicas=replicas, judged=0).notes
    assert "results, 0 differences" in note, "turns under one version, and different assignments, tell nothing"
    found = anew(run, traffic, replicas=replicas).verdict()
    assert f"diverged: {different}" in found.examples, "those that move together have the same assignments"
    traffic.differences.clear()
    found = anew(run, traffic, replicas={0: plain}).verdict()
    assert found.ownership_violations and found.others["diverged"] > 2
    traffic.given[None] = pd.concat([firsts, firsts.iloc[[-1]]])
    found = anew(run, traffic, replicas={0: plain}, judged=0).verdict()
    assert found.others["diverged"] == 1 and found.examples == ["diverged: 1 first copies more than replica 0 gave"]


@pytest.mark.parametrize("turn", [20, 5], ids=["written behind its death", "written before that"])
def test_a_replica_that_came_back_is_judged_with_what_another_one_gave_while_it_was_away(ended, turn):
    run = ended(None)
    traffic, results = ended.traffic, ended.traffic.all
    results = results.assign(slot_turn=np.arange(len(results)) // 10 + 1)
    before, behind = results[results["slot_turn"] <= 8], results[results["slot_turn"] > turn]
    mine, back = pd.concat([before, behind.assign(attempt=1)]), Incarnation(dict.fromkeys(range(8), turn), 1)
    traffic.given = {None: results, 0: results, 1: mine}
    run.final = plain = replace(run.final, heartbeat_us=1)
    both = {0: plain, 1: plain}
    found = anew(run, traffic, replicas=both, began={0: NEVER_DIED, 1: [*NEVER_DIED, back]}).verdict()
    assert found.ok and found.others["diverged"] == 0
    found = anew(run, traffic, replicas=both, began=dict.fromkeys(range(2), NEVER_DIED)).verdict()
    assert found.others["diverged"] >= 2
    assert any(f"replica 1: {'lost' if turn > 8 else 'duplicated'}" in line for line in found.examples)
    assert any("results of attempts that it has not had" in line for line in found.examples)


NOT_YET, MOVED = Assignment.contiguous(8, 2), Assignment(2, tuple(unit % 3 for unit in range(8)))


def gave(moved_behind):
    """What a replica would give in ten turns that moves behind this one, and all there is to judge it by."""
    workload = KeyCount(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
    run = run_sequentially(workload, [NOT_YET] * moved_behind + [MOVED] * (10 - moved_behind))
    results = run.results.assign(slot_turn=run.results["offset"] + 1, replica=0, attempt=0, first=True)
    return workload, run, results.sort_values(["slot_turn", "slot", "log_offset"], kind="stable")


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize(
    ("moves", "dies", "returns"),
    [
        ((6, 9), (10, 7), (None, 9)),
        ((9, 6), (10, 7), (None, 9)),
        ((6, 9), (9, 9), (9, 9)),
        ((6, 9), (10, 10), (9, 9)),
        ((3, 4), (8, 6), (9, 7)),
    ],
    ids=["before it moves", "when it alone has moved", "both", "both, behind what was written", "one after the other"],
)
def test_replicas_that_moved_one_after_the_other_and_came_back_are_judged_with_what_one_of_them_gave(
    moves, dies, returns, of
):
    (workload, run, all_of_0), (_, _, all_of_1) = map(gave, moves)
    given, began = [], {}
    for replica, (results, last, behind) in enumerate(zip((all_of_0, all_of_1), dies, returns, strict=True)):
        before, back = results[results["slot_turn"] <= last], NEVER_DIED
        if behind is not None:
            back = [*NEVER_DIED, Incarnation(dict.fromkeys(range(3), behind), 1)]
            before = pd.concat([before, all_of_0[all_of_0["slot_turn"] > behind].assign(attempt=1)])
        given.append(before.assign(replica=replica))
        began[replica] = back
    firsts = []
    for turn in range(1, 11):  # that of one or the other, turn by turn
        copies = [each[each["slot_turn"] == turn] for each in given]
        firsts.append(next(each for each in (copies[turn % 2], *copies) if len(each)))
    results = pd.concat(firsts).drop_duplicates(["router", "offset", "position"])
    traffic = SimpleNamespace(seconds=[], differences=[], compared=40, replicas=2)
    traffic.offered = lambda before: (run.events, run.frames.assign(events=0))
    traffic.results = lambda replica=None: results if replica is None else given[replica]
    stage = StageEnd("counter", Ownership([NOT_YET, MOVED]), [1], {}, [])
    plain = FinalState({0: 10, 1: 10}, lambda timers, units: iter(run.final), [stage], (), (), heartbeat_us=1)
    final = replace(plain, replicas={0: plain, 1: plain}, judged=of, began=began)

    def judged():
        return EndedJob(workload, traffic, SimpleNamespace(offered=0), final, []).verdict()

    assert judged().ok, judged()
    given[of] = given[of].iloc[:-1]
    assert judged().lost == 1


def test_seconds_with_fewer_replicas_are_counted_within_the_load():
    strength = [(0.0, 2), (5.0, 1), (8.0, 2), (12.0, 0), (13.0, 1)]
    assert evaluation.fewer_s(strength, 2, Span(6.0, 7.0, 20.0, 0.0)) == 2.0 + 8.0
    assert evaluation.fewer_s(strength[:1], 2, Span(6.0, 7.0, 20.0, 0.0)) == 0.0


def test_seconds_with_fewer_replicas_are_not_known_if_the_load_began_in_another_process(facts_of):
    began, resumed = ([(since, 1), (0.75, 2)] for since in (0.0, 0.5))
    assert facts_of(moved(), strength=began)["fewer_replicas_s"] == 0.75
    assert "fewer_replicas_s" not in facts_of(moved(), strength=resumed)


def test_bytes_that_were_sent_beside_the_units_are_those_of_keys_and_of_what_was_lent():
    first = {0: Measured(fetched_bytes=1, written_bytes=2, lent_bytes=4, copied_bytes=100), 1: Measured(lent_bytes=8)}
    assert bytes_beside([first, {0: Measured(fetched_bytes=16)}]) == 31
