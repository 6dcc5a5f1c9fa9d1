"""The job without support for migration: its tasks in this process, judged by the verdict; and what is refused."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
import small_store

from bench.plain import ShortestJob
from keyshift.endpoints import Endpoints
from keyshift.experiment.scenario import Shuffle
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge.final_state import judged
from keyshift.lab.system import job_config
from keyshift.model import frames
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.peers import plain_job, plain_run
from keyshift.peers.plain_run import NAME, PlainSystem, UnreadMicro, measure_beside_plain, plain_spec
from keyshift.place.needs import needs_of
from keyshift.results import verdict as verdicts
from keyshift.studies.study import Study
from keyshift.workloads.keycount import KeyCounts, wrong_results

SMALL = {"workload": "micro", "keys": 40, "key_groups": 8, "state_bytes": 32, "slots": 3, "routers": 2, "seed": 5}
COUNT = SMALL | {"workload": "keycount", "key_groups": 3, "to_slots": 3, "skew": 0.0}  # a group per slot: no bins
SMALL |= {"active_share": 0.5, "trigger": "shuffle", "affected": 4}
ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
BEGIN_US = 1_700_000_000_000_000


def answered(spec, monkeypatch, frames_of_each=4, events_of_each=30, kind=plain_job.PlainJob):
    """What the job answers: its events and results, as the verdict takes them, and the frames that told of them."""
    config, tasks = job_config(spec, "plain", ENDPOINTS, None), {}
    monkeypatch.setattr(plain_job, "start_query", lambda *_, **given: tasks.update(given))
    kind(None, config, Path(), 60.0, mock.Mock()).start()
    source, routed, offered, told = config.make_source(), {slot: [] for slot in range(config.slots)}, [], []
    for router in range(config.routers):
        partition = source.partition(router)
        rows = []
        for offset in range(frames_of_each):
            times = BEGIN_US + 500_000 * offset + np.arange(events_of_each)
            events = partition.take(times)
            rows.append((router, offset, frames.encode(events)))
            events = source.mapped(events)
            place = {"router": router, "offset": offset, "position": np.arange(events.num_rows)}
            offered.append(events.to_pandas().assign(**place))
            told.append({"router": router, "offset": offset, "events": events.num_rows, "watermark": 0})
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, ["partition", "offset", "value"])
        for some in tasks["router"](iter([batch])):
            for slot, value in zip(*some.to_pydict().values(), strict=True):
                routed[slot].append(value)
    results, markers = [], []
    for slot, values in routed.items():
        here = SimpleNamespace(get=lambda slot=slot: SimpleNamespace(partitionId=lambda: slot))
        monkeypatch.setattr(pyspark, "TaskContext", here)
        given = pa.RecordBatch.from_arrays([pa.array(values)], ["value"])
        for batch in tasks["slot"](iter([given])):
            for value in batch.column(0):
                made, said = frames.decode(value.as_buffer(), plain_job.result_schema(config.make_stage()))
                results.append(made.to_pandas().assign(slot=slot, log_offset=len(results), arrived_us=BEGIN_US))
                markers += [slot] if said.said else []
    assert markers == list(range(config.slots)), "each says once that it is ready"
    return config, pd.concat(offered, ignore_index=True), pd.concat(results, ignore_index=True), pd.DataFrame(told)


def verdict(spec, config, events, results, told):
    system = PlainSystem(None, config, Path(), mock.Mock())
    return judged(spec.workload, len(events), events, told, results, system.final_state())


def counts(found):
    return {name: value for name, value in vars(found).items() if name != "shown" and value}


@pytest.mark.parametrize(
    "given",
    [SMALL, COUNT, {"workload": "nexmark", "query": "q1", "key_groups": 8}, {"workload": "nexmark", "query": "q2"}],
    ids=["micro", "keycount", "q1", "q2"],
)
def test_its_answers_are_those_of_a_sequential_run_and_come_from_the_owner(given, monkeypatch):
    spec = plain_spec(given)
    found = answered(spec, monkeypatch, events_of_each=400)
    assert len(found[2]) >= 3 and counts(verdict(spec, *found)) == {}


def test_the_shortest_counter_of_the_benchmark_counts_as_keycount_does(monkeypatch):
    given = COUNT | {"key_groups": 8}
    _, events, results, _ = answered(make_spec(given), monkeypatch, kind=ShortestJob)
    assert len(results) == len(events) == 240
    assert not list(wrong_results(KeyCounts(events["key"]), results))


@pytest.mark.parametrize("given", [SMALL, COUNT], ids=["micro", "keycount"])
def test_the_verdict_on_its_answers_takes_as_much_memory_as_on_those_of_the_job_beside_it(given):
    assert needs_of(plain_spec(given)).verdict_bytes == needs_of(make_spec(given)).verdict_bytes


@pytest.mark.parametrize("together", [1000, 50])
@pytest.mark.parametrize("given", [SMALL, COUNT], ids=["micro", "keycount"])
def test_answers_that_are_lost_doubled_wrong_or_of_another_slot_are_told(given, together, monkeypatch):
    monkeypatch.setattr(verdicts, "PART_EVENTS", together)
    spec = plain_spec(given)
    config, events, results, told = answered(spec, monkeypatch)
    changed = results.copy()
    changed.loc[3, "count"] += 1
    assert counts(verdict(spec, config, events, results, told)) == {}
    for change, kind in (
        (results[1:], "lost"),
        (pd.concat([results, results[:1]]), "duplicated"),
        (changed, "wrong"),
        (results.assign(slot=(results["slot"] + 1) % 3), "foreign"),
    ):
        assert counts(verdict(spec, config, events, change.reset_index(drop=True), told))[kind] >= 1


def test_a_run_has_a_name_of_its_own_and_repetitions_with_other_events():
    spec = plain_spec(SMALL | {"snapshot_s": 2.0})
    assert spec.parameters()["strategy"] == NAME and spec.parameters()["snapshot_s"] == 0
    again = spec.repeated(1)
    assert isinstance(again.workload, UnreadMicro) and again.parameters() == spec.parameters() | {"seed": 6}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"workload": "wordcount"}, "workload = wordcount: .* keycount, micro, and queries without state"),
        ({"workload": "nexmark", "query": "q3"}, "workload = nexmark"),
        ({"workload": "nexmark", "query": "q5"}, "workload = nexmark"),
        (SMALL | {"backend": "rocksdb"}, "backend = 'rocksdb'"),
        (SMALL | {"fault": "kill:slot@12"}, "fault = 'kill:slot@12'"),
        (SMALL | {"workload": "microo"}, "unknown workload 'microo'"),
        (SMALL | {"rate": "auto"}, "rate = auto: .* give a number beside a job without support"),
        (SMALL | {"trigger": "never"}, "never"),
        (SMALL | {"seconds": 5000.0}, "seconds = 5000: .* for one batch of 3600 s; .* may take 3300 s"),
    ],
)
def test_what_a_job_without_support_does_not_do_is_refused(given, named):
    with pytest.raises(BadInput, match=named):
        plain_spec({name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("more", [{"to_slots": 6}, {"slots_max": 6}, {"then": "6"}, {"trigger": "map", "moves": "0:1"}])
def test_it_has_the_slots_that_the_others_have_before_they_move(more):
    assert set(plain_spec(SMALL | {"trigger": "scale", "slots": 3} | more).tasks.values()) == {3}


@pytest.mark.parametrize("more", [{}, {"strategy": "meces", "bins": 4}])
def test_each_unit_has_the_owner_with_whom_it_begins_in_the_others(more):
    spec = make_spec(SMALL | more)
    assert plain_job.assignment(job_config(spec, "plain", ENDPOINTS, None)) == spec.start()


def test_without_state_it_may_last_as_long_as_it_likes():
    assert plain_spec({"workload": "nexmark", "query": "q1", "seconds": 5000.0}).run.seconds == 5000


def test_what_is_not_possible_is_refused_before_anything_is_started(monkeypatch, tmp_path):
    for name in ("require_no_spark", "collect"):
        monkeypatch.setattr(plain_run, name, lambda *told, **how: pytest.fail("it was started"))
    with pytest.raises(BadInput, match="fluidd"):
        measure_beside_plain({"one": {"strategy": "fluidd"}}, SMALL)
    with pytest.raises(BadInput, match="backend = 'rocksdb'"):
        measure_beside_plain({"one": {"strategy": "fluid"}}, SMALL | {"backend": "rocksdb"})
    profile = tmp_path / "many.yaml"
    profile.write_text(json.dumps({"spark": {"master": "local-cluster"}}))
    with pytest.raises(BadInput, match="Spark of one process: `--profile local`"):
        measure_beside_plain({"one": {"strategy": "fluid"}}, SMALL, str(profile))


def test_points_of_both_are_one_study_and_without_any_of_its_own_nothing_else_is_started(monkeypatch, tmp_path):
    ended, given = small_store.run(1, NAME), []
    other = Study({"fluid": [(ended, {})]}, {"fluid": plain_spec(SMALL)})
    lab = SimpleNamespace(home=tmp_path, say=print, store=SimpleNamespace(get_tables=lambda run_id: {}))
    monkeypatch.setattr(plain_run, "collect", lambda *told: other)
    monkeypatch.setattr(plain_run, "require_no_spark", lambda: None)
    monkeypatch.setattr(plain_run, "peer_lab", lambda profile: nullcontext(lab))
    monkeypatch.setattr(plain_run, "local_spark", lambda *told: nullcontext())
    monkeypatch.setattr(plain_run, "run_peer", lambda spec, *told: given.append(spec.peer) or ended)
    assert [*measure_beside_plain({"fluid": {"strategy": "fluid"}}, SMALL | {"repetitions": 2}).runs] == [NAME, "fluid"]
    assert [*measure_beside_plain({"fluid": {"strategy": "fluid"}}, SMALL, plain={}).runs] == ["fluid"]
    assert given == [NAME, NAME]


def test_it_goes_on_whatever_is_asked_of_it_and_does_not_come_back_from_death():
    config = job_config(plain_spec(SMALL), "plain", ENDPOINTS, None)
    system = PlainSystem(None, config, Path(), mock.Mock())
    system.announce(Shuffle(4))
    system.request(Shuffle(4))
    assert not system.busy and system.owners == {"map": {0, 1, 2}}
    with pytest.raises(ServiceUnavailable, match="no snapshot to go on from"):
        system.recover()
