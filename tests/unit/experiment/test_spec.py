import math
import os
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pydantic import Field

from keyshift.checks import check_backend
from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import anywhere, live_spec
from keyshift.experiment.parameters import known_parameters
from keyshift.experiment.parts import JobPart, RunPart
from keyshift.experiment.replicas import deaths_of
from keyshift.experiment.scenario import AutoscalerPart, BalanceZipf, ScenarioPart
from keyshift.experiment.spec import make_spec
from keyshift.lab.system import job_config
from keyshift.model.errors import BadInput, ContractBroken
from keyshift.ordering import orderings
from keyshift.planner import settings, strategies
from keyshift.registry import named_values
from keyshift.state import Backend, Settings, backends
from keyshift.state.memory import MemoryStore
from keyshift.traffic.load import SourceLoad
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.windowcount import WindowCount


def test_a_parameter_goes_to_the_part_that_declares_it_the_strategy_and_the_workload_too():
    spec = make_spec({"rate": 10.0, "slots": 3, "trigger": "shuffle", "keys": 77, "size": None, "deadline_s": 5})
    assert (spec.run.rate, spec.job.slots, spec.scenario.trigger) == (10.0, 3, "shuffle")
    assert (spec.workload.keys, spec.job.deadline_s) == (77, 5)
    assert make_spec({"workload.keys": 77, "run.rate": 10.0}) == make_spec({"keys": 77, "rate": 10.0})
    assert make_spec({"strategy": "chunked", "size": 3}).point().size == 3
    assert make_spec({"strategy": "meces", "bins": 4}).workload.model_dump()["bins"] == 4
    assert make_spec({"strategy": "fluid"}).point() == strategies.get("fluid")
    given = {"window_ms": 250, "delay_ms": 0, "late_share": 0.5, "idle_ms": 100, "keys": 50}
    workload = make_spec({"workload": "windowcount"} | given).workload
    assert workload.model_dump().items() >= given.items()
    assert make_spec({"workload": "windowcount"}).workload.window_ms == 500


@pytest.mark.parametrize(("workload", "name"), [("wordcount", "text"), ("stock", "tape")])
def test_a_file_is_read_from_where_it_was_at_first_and_results_do_not_say_where(tmp_path, monkeypatch, workload, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("7|A||10.25|0|400|600001|B\n")
    values = {"workload": workload, name: "in/a.txt"}
    spec = live_spec(values)
    assert make_spec(spec.parameters()).workload == spec.workload
    assert spec.parameters()[name] == os.path.join("in", "a.txt")
    told = anywhere(values, spec)
    monkeypatch.chdir("/")
    [source] = spec.repeated(1).workload.sources
    assert source.partition(0).take(np.zeros(3, np.int64)).num_rows == 3
    assert spec.parameters()[name] == "a.txt"
    assert live_spec(told).workload == spec.workload
    with pytest.raises(BadInput, match="cannot be read"):
        live_spec(values)


def test_what_a_run_was_made_of_makes_it_again():
    given = {"workload": "windowcount", "window_ms": 250, "strategy": "meces", "bins": 4, "then": "2", "seed": 9}
    spec = make_spec(given)
    flat = spec.parameters()
    assert flat.items() >= given.items()
    assert make_spec(flat) == spec
    assert flat.keys() >= set(settings(strategies.get("meces"))) | {"rate", "slots", "keys", "backend"}
    assert "window_ms" not in make_spec({}).parameters()


@pytest.mark.parametrize(
    ("given", "rate", "frame_ms", "auto"),
    [
        ({"rate": "auto", "frame_ms": "auto"}, 700.0, 50.0, "rate, frame_ms"),
        ({"run.rate": "auto"}, 700.0, 20.0, "rate"),
        ({"rate": 5000, "frame_ms": "auto"}, 5000.0, 50.0, "frame_ms"),
        ({"rate": 9.0, "frame_ms": "auto", "routers": 8, "to_slots": 16}, 9.0, 50.0, "frame_ms"),  # too many at 20 ms
        ({"rate": 9.0}, 9.0, 20.0, ""),
    ],
)
def test_what_is_left_to_the_machine_is_chosen_later_and_nothing_else_is_changed(given, rate, frame_ms, auto):
    spec = make_spec(given)
    assert make_spec(spec.parameters()) == spec
    asked = {name.removeprefix("run."): value for name, value in given.items()}
    assert spec.parameters().items() >= asked.items()
    settled = spec.repeated(1).settled(rate=700.0, frame_ms=50.0)
    assert (settled.run.rate, settled.run.frame_ms, settled.run.auto) == (rate, frame_ms, auto)
    flat = settled.parameters()
    assert (flat["rate"], flat["frame_ms"], flat["auto"]) == (rate, frame_ms, auto)
    assert make_spec(flat) == settled == settled.settled(rate=1.0, frame_ms=1.0), "chosen once"


def test_targets_are_whole_key_groups_whatever_the_unit():
    spec = make_spec({"strategy": "meces", "bins": 4, "trigger": "shuffle", "affected": 3, "key_groups": 16})
    moved = {move.unit for move in spec.start().moves_to(spec.target(spec.start()))}
    assert len(spec.start().owner) == 64
    assert moved == {group * 4 + bin_ for group in {unit // 4 for unit in moved} for bin_ in range(4)}
    assert len(moved) == 12


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("slots=0", "slots = 0", "greater than or equal to 1"),
        ("rate_steps=24:2000", "rate_steps = '24:2000'", "below seconds = 24"),
        ("rate=-1", "rate = -1", "greater than 0"),
        ("rates=events:5", "rates = 'events:5'", "events is the only source, and its rate is rate = 2000"),
        ("source_routers=control:1", "source_routers = 'control:1'", "known: events"),
        ("injectors=3", "injectors = 3", "lower injectors or raise routers"),
        ("injectors=0", "injectors = 0", "greater than or equal to 1"),
        ("rate=automatic", "rate = 'automatic'", "; auto: "),
        ("frame_ms=0", "frame_ms = 0", "greater than 0"),
        ("seconds=auto", "seconds = 'auto'", "valid number"),
        ("auto=rate", "auto = rate", "by rate=auto"),
        ("auto=seconds", "auto = 'seconds'", "'rate, frame_ms'"),
        ("slots=200", "slots = 200", "raise key_groups"),
        ("to_slots=129", "to_slots = 129", "raise key_groups"),
        ("strategy=fluit", "'fluit'", "did you mean 'fluid'"),
        ("workload=keycont", "'keycont'", "did you mean 'keycount'"),
        ("ratte=1", "'ratte'", "did you mean 'rate'"),
        ("trigger=later", "'later'", "'scale', 'shuffle'"),
        ("keys=many", "'many'", "valid integer"),
        ("trigger_s=60", "trigger_s = 60", "less than seconds"),
        ("frame_ms=0.1", "frame_ms = 0.1", "raise frame_ms"),
        ("state_bytes=1", "state_bytes = 1", "greater than or equal to 16"),
        ("rate", "'rate'", "expected name=value"),
        ("size=0", "size = 0", "at least 1"),
        *(
            (f"then={given}", f"then = {given!r}: {given.split(',')[-1]!r} must be a number of slots from 1", "zipf:2")
            for given in (
                *("4;8", "4,0", "4,-1", "4,9999999999", "shufle", "back,scale"),
                *("back:2", "zipf:", "zipf:two"),
            )
        ),
        ("then=zipf:3 skew=1", "affected_slots = 3: by Zipf mass", "all slots are levelled, 0"),
        ("then=shuffle:1", "affected_slots = 1: must be between 2", "0: all"),
        ("then=back trigger=script", "then = back: trigger is script", "set trigger to one of: scale, shuffle"),
        ("then=back trigger=none", "then = back: trigger is none", "leave it out"),
        ("then=back strategy=stop_restart", "strategy = stop_restart stops the query", "take another strategy"),
        ("then=map", "moves = ''", "0:3,7:1"),
        ("then=zipf skew=0", "then = zipf: no skew", "take balance in its place"),
        ("trigger=zipf affected_slots=4", "affected_slots = 4: by Zipf mass", "the last one, 2, or all"),
        ("trigger=zipf affected_slots=2 slots=1", "slot 0 owns all groups", "at least 2 must own some"),
        ("rate=1000 rate=2000", "rate is given twice, as 1000 and as 2000", "leave one out"),
        ("strategy=meces key_groups=131072", "bins = 16 in each of 131072 key groups", "lower bins"),
        ("then=4,8,6,4", "seconds = 24", "lower gap_s"),
        ("fault=kill:source@install", "source has the phases prepare, align, transfer", "for example"),
        ("fault=kill:source@4", "source has the phases prepare, align, transfer;", "for example"),
        ("fault=kill:slot@soon", "snapshot, batch, or seconds of measured time", "for example"),
        ("fault=kill:slot@24", "24 s is not before the end", "seconds = 24"),
        ("fault=kill:slot@4,kill:slot@12", "dies 2 times", "raise recoveries"),
        ("fault=kill:slot@snapshot", "no snapshots are taken", "set snapshot_s"),
        ("verify=snapshots", "no snapshots are taken", "set snapshot_s"),
        ("fault=kill:slot@snapshot snapshot_s=28", "no snapshot is taken in 28 s", "lower snapshot_s = 28"),
        ("verify=snapshots snapshot_s=60", "verify = snapshots: no snapshot is taken in 28 s", "lower snapshot_s = 60"),
        ("verify=all", "'all'", "'end' or 'snapshots'"),
        ("fault=kill:source@align,stop:destination@drain:1s", "only one of them", "at a time"),
        ("fault=restart:zookeeper@drained", "zookeeper has the phases prepare, switch, align", "batch, or seconds"),
        ("fault=restart:coordinator@4", "what can happen to coordinator is kill, stop", "for example"),
        ("fault=cut:flight@install", "flight has the phases transfer;", "for example"),
        ("fault=cut:flight@transfer:1s", "cut needs no duration", "fault"),
        ("fault=slow:flight@transfer", "slow needs how much longer a unit takes", "0.2s"),
        ("fault=restart:kafka@4:long", "restart needs how long it is away at least", "or nothing"),
        ("fault=restart:minio@snapshot:3s", "no snapshots are taken", "set snapshot_s"),
        ("fault=kill:slot@batch", "no batch of Spark ends in", "lower batch_s = 300"),
        ("then=500", "then = 500", "raise key_groups"),
        ("trigger=shuffle then=back,500", "then = 500: more slots than", "raise key_groups"),
        ("slots_max=500", "slots_max = 500", "raise key_groups"),
        ("slots_min=0", "slots_min = 0", "greater than or equal to 1"),
        ("work_us=-1", "work_us = -1", "greater than or equal to 0"),
        ("work_by=sleeping", "'sleeping'", "'waiting' or 'spinning'"),
        ("rate=true", "rate = True", "neither a number"),
        ("run.window_ms=5", "'run.window_ms'", "this run has workload = keycount"),
        ("keys=1.5", "keys = 1.5", "valid integer"),
        ("backend=5", "'5'", "known: memory"),
        ("workload=null", "'None'", "known: keycount"),
        ("workload.kyes=5", "'workload.kyes'", "did you mean 'workload.keys'"),
        ("run.seed=5", "'run.seed'", "seed is a parameter of workload; give workload.seed"),
        ("idle_ms=5", "'idle_ms'", "a parameter of workload windowcount; this run has workload = keycount"),
        ("master=local-cluster", "master is no parameter", "--profile local-cluster"),
        ("trigger=shuffle affected=200", "affected = 200", "between 1 and"),
        ("trigger=shuffle affected=4 affected_slots=3", "affected_slots = 3", "between 2 and"),
        ("trigger=map moves=", "moves = ''", "0:3,7:1"),
        ("trigger=map moves=0:3,0:1", "moves = '0:3,0:1'", "key group 0 is there twice"),
        ("trigger=map moves=0-1", "moves = '0-1'", "0:3,7:1"),
        ("moves=0:1", "moves = 0:1: trigger is scale", "set trigger = map"),
        ("trigger=shuffle affected=2 moves=garbage", "moves = garbage: trigger is shuffle", "set trigger = map"),
        ("trigger=map moves=500:0 slots=2", "unit 500", "0 to 127"),
        ("trigger=map moves=0:7 slots=2", "7", "slots"),
        ("trigger=map moves=0:7 slots_max=4", "unit 0 to slot 7", "slots are 0 to 3"),
        ("trigger=zipf skew=0", "trigger = zipf: no skew", "set trigger = balance"),
        ("trigger=zipf workload=stock", "trigger = zipf: no skew", "set trigger = balance"),
        ("trigger=zipf workload=micro later_events=9 later_skew=0", "trigger = zipf: no skew", "set trigger = balance"),
        ("trigger=zipf workload=chain", "trigger = zipf: no skew", "set trigger = balance"),
        ("trigger=zipf workload=chain stage=all", "trigger = zipf: no skew", "set trigger = balance"),
        ("key_groups=3", "to_slots = 4", "lower to_slots or raise key_groups"),
        ("workload=windowcount late_share=1.5", "late_share = 1.5", "less than or equal to 1"),
        ("keys=5 workload.keys=6", "workload.keys is given twice", "leave one out"),
        ("stage_slots=map:2", "stage_slots = 'map:2'", "unknown stage 'map': known: counter"),
        ("stage_slots=counter:0", "'counter:0' must be a stage and a number of slots", "1 to key_groups = 128"),
        ("stage_slots=counter:129", "stage_slots = 'counter:129': 'counter:129' must be", "128, e.g. counter:4"),
        ("stage_slots=3", "'3' must be a stage and a number of slots", "e.g. counter:4"),
        ("stage_slots=counter:2,counter:3", "stage counter is there twice", "leave one out"),
        ("stage_slots=counter:96", "96 slots makes 9600 rows/s", "raise frame_ms"),
        ("workload=chain stage_slots=counter-1:3 stage=counter-3", "'counter-3'", "known: counter-1, counter-2, all"),
        ("workload=chain stage=counter-1,counter-1", "stage counter-1 is there twice", "leave one out"),
        ("workload=chain stage=all fault=stop:source@prepare:3s", "to 'prepare' at the same time", "name one stage"),
        ("workload=chain stage=all,counter-1", "stage = all,counter-1: all stands alone", "leave out counter-1"),
        ("workload=chain stage=counter-1,al", "stage = 'counter-1,al': unknown stage 'al'", "did you mean 'all'"),
        ("trigger=auto stage_slots=counter:5 slots_max=4", "slots = 5 of counter", "slots_max = 4"),
        ("trigger=shuffle stage_slots=counter:1", "at least 2 slots", "shuffle"),
        ("trigger=map moves=0:3 stage_slots=counter:3", "unit 0 to slot 3", "slots are 0 to 2"),
        ("trigger=auto slots=5 slots_max=4", "slots = 5", "slots_max = 4"),
        ("trigger=auto slots=1 slots_min=2", "slots = 1", "slots_min = 2"),
        *(
            (f"strategy=stop_restart fault={fault}", "stop_restart stops the whole query, it has no phase", "@12")
            for fault in ("kill:source@transfer", "restart:kafka@switch", "cut:flight@transfer")
        ),
    ],
)
def test_an_impossible_parameter_is_refused_with_its_value_and_a_remedy(setting, value, remedy):
    with pytest.raises(BadInput) as refused:
        make_spec(named_values(setting.split()))
    assert value in str(refused.value)
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        *(  # slots that nobody scales to may be more than key groups
            {"key_groups": 3, "slots": 2} | trigger
            for trigger in (
                *({"trigger": "shuffle", "affected": 1}, {"trigger": "none"}),
                {"trigger": "script", "script": "3: scale 3"},
            )
        ),
        *(  # a strategy that stops the query has faults of no migration
            {"strategy": "stop_restart", "fault": fault, "snapshot_s": 2.0}
            for fault in ("kill:slot@4", "restart:kafka@4", "restart:minio@snapshot:2s")
        ),
        {"snapshot_s": 60},  # longer than the run: nothing counts on one
        {"heartbeat_ms": 1},  # shorter than a frame: nobody waits for it
        {"ordering": "live_robin", "strategy": "meces", "fetch_back": 0},
        {"ordering": "kazoo", "to_slots": 3},  # state moves where the order comes from a leader
        {"ordering": "kazoo", "to_slots": 3, "replicas": 2, "fault": "kill:replica@transfer"},
    ],
)
def test_what_is_possible_is_not_refused(values):
    assert make_spec(values).parameters().items() >= values.items()


def test_key_groups_may_go_to_any_slot_that_is_provisioned():
    spec = make_spec(MAP_AND_COUNTER | {"trigger": "map", "moves": "0:3", "slots_max": 4, "stage": "all"})
    assert [spec.target(spec.start(name)).owner[0] for name in ("map", "counter")] == [3, 3]
    with pytest.raises(BadInput, match="unit 0 to slot 4: unknown slot; slots are 0 to 3"):
        make_spec(MAP_AND_COUNTER | {"trigger": "map", "moves": "0:4", "slots_max": 4, "stage": "all"})


def test_no_number_of_a_run_may_be_infinite():
    """Times and rates are added up, multiplied and waited for."""
    fields = [each for part in (RunPart, JobPart, ScenarioPart, AutoscalerPart) for each in part.model_fields.items()]
    numbers = [name for name, field in fields if field.annotation is float]
    assert {"rate", "deadline_s", "gap_s", "slo_ms"} < set(numbers)
    for name in numbers:
        for given in ("inf", math.inf, math.nan):
            with pytest.raises(BadInput, match=f"^{name} = '?(inf|nan)'?: input should be a finite number"):
                make_spec({name: given})


@pytest.mark.parametrize("name", ["rate", "seconds", "warmup_s", "batch_s", "deadline_s", "snapshot_s", "copy_every_s"])
def test_what_no_clock_or_counter_has_is_refused(name):
    with pytest.raises(BadInput, match=f"^{name} = 1000000000000.0: input should be less than or equal to"):
        make_spec({name: 1e12})


def test_a_job_that_lasts_takes_snapshots_as_seldom_as_it_is_told():
    assert live_spec({"verify": "snapshots", "snapshot_s": 60}).job.snapshot_s == 60


def test_a_window_of_words_is_a_year_at_the_most():
    year_ms = 365 * 86_400_000
    assert make_spec({"workload": "wordcount", "window_ms": year_ms}).workload.window_us == year_ms * 1000
    with pytest.raises(BadInput, match=f"^window_ms = {year_ms + 1}: input should be less than or equal to {year_ms}"):
        make_spec({"workload": "wordcount", "window_ms": year_ms + 1})


@pytest.mark.parametrize(
    ("values", "tasks"),
    [
        ({"slots": 4, "to_slots": 2, "then": "6,3", "gap_s": 2}, 6),
        ({"slots": 2, "to_slots": 4, "slots_max": 6}, 6),
        ({"slots": 6, "to_slots": 2, "then": "3"}, 6),
        ({"slots": 2, "to_slots": 4, "slots_max": 3}, 4),
        ({"trigger": "auto", "slots": 3, "slots_max": 7}, 7),
        ({"trigger": "auto", "slots": 3}, 6),
        ({"trigger": "auto", "slots": 3, "key_groups": 4}, 4),
        ({"trigger": "auto", "slots": 2, "slots_min": 2, "slots_max": 2}, 2),
    ],
)
def test_there_are_as_many_tasks_as_may_own_state_at_any_time(values, tasks):
    spec = make_spec(values)
    assert spec.tasks == {"counter": tasks}
    owners = [set(spec.target(spec.start(), change).owner) for change in spec.changes]
    assert owners == [set(range(number)) for _, number in spec.scenario.numbers]


def test_changes_of_every_kind_are_planned_one_behind_the_other_before_anything_starts():
    spec = make_spec({"trigger": "shuffle", "slots": 2, "then": "5,back,zipf:2", "gap_s": 2, "seconds": 20})
    assert spec.tasks == {"counter": 5}
    current, slots = spec.start(), []
    for change in spec.changes:
        current = spec.target(current, change)
        slots.append(len(set(current.owner)))
    assert slots == [2, 5, 2, 2]
    assert spec.start().moves_to(current)
    assert make_spec(spec.parameters()) == spec
    with pytest.raises(BadInput, match="affected = 64: must be between 1 and the number of units of 2 slots, 32"):
        make_spec({"trigger": "zipf", "then": "8,shuffle:2", "gap_s": 2})


def test_a_mass_is_balanced_by_the_skew_that_keys_have_at_last():
    micro = {"workload": "micro", "trigger": "zipf", "skew": 0.0, "later_skew": 1.5}
    assert make_spec(micro | {"later_events": 100}).changes == [BalanceZipf(1.5)]
    assert make_spec(micro | {"skew": 0.5}).changes == [BalanceZipf(0.5)]


MAP_AND_COUNTER = {"workload": "chain", "chain": "map,counter", "slots": 2, "stage_slots": "counter:5"}


@pytest.mark.parametrize(
    ("values", "tasks"),
    [
        ({"trigger": "none"}, {"map": 2, "counter": 5}),
        ({"to_slots": 3}, {"map": 2, "counter": 5}),
        ({"to_slots": 7}, {"map": 2, "counter": 7}),
        ({"to_slots": 4, "stage": "map"}, {"map": 4, "counter": 5}),
        ({"to_slots": 6, "stage": "all"}, {"map": 6, "counter": 6}),
        ({"slots_max": 3, "trigger": "balance"}, {"map": 3, "counter": 5}),
        ({"trigger": "auto", "frame_ms": 50}, {"map": 10, "counter": 10}),
        ({"trigger": "auto", "slots_max": 6}, {"map": 6, "counter": 6}),
    ],
)
def test_each_stage_has_slots_and_tasks_of_its_own(values, tasks):
    spec = make_spec(MAP_AND_COUNTER | values)
    assert spec.slots_of == {"map": 2, "counter": 5}
    assert (spec.tasks, spec.cores) == (tasks, spec.routers + sum(tasks.values()))
    assert {name: len(set(spec.start(name).owner)) for name in tasks} == spec.slots_of
    assert make_spec(spec.parameters()) == spec
    config = job_config(spec, "run", Endpoints("k:1", "z:1", "m:1", "a", "s"), None)
    assert [(each.stage, each.slots) for each in config.chain()] == [*tasks.items()]


def test_a_job_that_is_restarted_has_the_slots_of_each_stage():
    spec = make_spec(MAP_AND_COUNTER | {"strategy": "stop_restart", "to_slots": 7})
    config = job_config(spec, "run", Endpoints("k:1", "z:1", "m:1", "a", "s"), None)
    assert [each.slots for each in config.chain()] == [2, 5]


@pytest.mark.parametrize(("trigger", "stage", "moving"), [("balance", "all", 2), ("zipf", "map", 1)])
def test_each_stage_is_balanced_over_its_own_slots(trigger, stage, moving):
    spec = make_spec(MAP_AND_COUNTER | {"trigger": trigger, "stage": stage, "skew": 1.0, "key_groups": 40})
    heat = [40.0 - group for group in range(40)]
    assert len(spec.moving) == moving
    for name in spec.moving:
        target = spec.target(spec.start(name), heat=heat)
        assert target != spec.start(name)
        assert set(target.owner) == set(range(spec.slots_of[name]))


def test_each_stage_goes_back_to_where_it_was():
    spec = make_spec(MAP_AND_COUNTER | {"stage": "all", "to_slots": 7, "then": "back"})
    for name in ("map", "counter"):
        scaled = spec.target(spec.start(name), spec.changes[0], stage=name)
        assert spec.target(scaled, spec.changes[1], stage=name) == spec.start(name) != scaled


def test_the_skew_of_words_is_told_only_where_they_are_drawn():
    assert make_spec({"workload": "wordcount", "skew": 0.7}).parameters()["skew"] == 0.7
    of_text = make_spec({"workload": "wordcount", "text": __file__, "skew": 0.7})
    assert of_text.parameters()["skew"] == 0
    assert of_text.repeated(1).workload.skew == 0
    with pytest.raises(BadInput, match=r"^trigger = zipf: no skew .* set trigger = balance"):
        make_spec({"workload": "wordcount", "text": __file__, "trigger": "zipf"})


def test_settings_are_json_or_text():
    given = ["rate=5000", "keys=10", "trigger=shuffle", "cache=true", "order=id", "moves=0:1", "then=4,3", "cap="]
    python = ["fast=True", "slow=False", "none=None"]
    texts = {"trigger": "shuffle", "order": "id", "moves": "0:1", "then": "4,3", "cap": ""}
    values = {"rate": 5000, "keys": 10, "cache": True, "size": None, "fast": True, "slow": False, "none": None}
    assert named_values([*given, "size=null", *python]) == texts | values
    assert not make_spec(named_values(["returns=False"])).job.returns


def test_every_parameter_says_what_it_means_and_has_one_owner():
    known = list(known_parameters())
    assert all(field.description for _, _, field in known)
    assert [name for name, count in Counter(name for _, name, _ in known).items() if count > 1] == []
    owners = {name: owner for owner, name, _ in known}
    wanted = {"rate": "run", "slots": "job", "seed": "workload", "bins": "strategy", "to_slots": "scenario"}
    assert owners.items() >= (wanted | {"idle_ms": "workload windowcount"}).items()


def test_steps_of_the_rate_count_from_the_beginning_of_the_measured_time():
    [load] = make_spec({"rate": 100, "rate_steps": "0:2000,10:6000,20:0", "warmup_s": 3, "seconds": 24}).loads
    assert load == SourceLoad(100.0, [(3.0, 2000.0), (13.0, 6000.0), (23.0, 0.0)])
    assert load.events(8) == 3 * 100 + 5 * 2000, "before the steps that are to come"
    with pytest.raises(BadInput, match="nothing is offered"):
        make_spec({"rate_steps": "0:0", "warmup_s": 0})


class Rated(KeyCount):
    """A workload with parameters that others have, too."""

    name: ClassVar[str] = "rated"
    rate: int = Field(default=3, ge=1, description="of its own")
    order: str = Field(default="up", description="of its own")


@pytest.fixture
def rated(registered):
    registered(workloads, rated=Rated)


@pytest.mark.parametrize("name, owners", [("rate", "run.rate and workload.rate"), ("order", "workload.order and str")])
def test_a_name_with_two_owners_is_refused_and_can_be_given_with_the_owner(rated, name, owners):
    with pytest.raises(BadInput, match=f"'{name}' has 2 owners: say which, {owners}"):
        make_spec({"workload": "rated", name: 5})
    given = {"workload.rate": 7, "run.rate": 5.0, "workload.order": "down", "strategy.order": "reverse"}
    spec = make_spec({"workload": "rated"} | given)
    assert (spec.workload.rate, spec.run.rate, spec.workload.order) == (7, 5.0, "down")
    assert spec.point().order == "reverse"
    assert spec.parameters().items() >= given.items()
    assert "rate" not in spec.parameters()
    assert make_spec(spec.parameters()) == spec
    assert make_spec({"rate": 5.0}).run.rate == 5.0, "where only one part has it"


class Namesake(KeyCount):
    """A workload with parameters that are called as what a spec chooses."""

    name: ClassVar[str] = "namesake"
    workload: str = Field(default="heavy", description="of its own")
    strategy: str = Field(default="bold", description="of its own")


def test_a_parameter_does_not_hide_the_name_of_the_strategy(registered):
    registered(workloads, namesake=Namesake)
    values = {"workload": "namesake", "strategy": "matched", "workload.strategy": "shy"}
    spec = make_spec(values)
    assert spec.parameters().items() >= (values | {"backend": "memory", "workload.workload": "heavy"}).items()
    assert make_spec(spec.parameters()) == spec
    told = anywhere(values, live_spec(values))
    assert told.items() >= (values | {"workload.workload": "heavy"}).items()
    assert live_spec(told) == live_spec(values)


class Later(Rated):
    """The same of another version."""

    rate: int = Field(default=4, ge=1, description="of its own")


def test_whoever_goes_on_with_a_job_has_its_workload_whatever_the_defaults_are_by_then(rated, registered):
    values = {"workload": "rated", "keys": 50, "workload.order": "down"}
    told = anywhere(values, live_spec(values))
    assert told.items() >= (values | {"workload.rate": 3}).items() and "workload.keys" not in told
    registered(workloads, rated=Later)
    workload = live_spec(told).workload
    assert (live_spec(values).workload.rate, workload.rate, workload.order, workload.keys) == (4, 3, "down", 50)


def test_a_backend_has_settings_of_its_own_which_every_store_gets(registered):
    class Shelf(Settings):
        shelves: int = Field(default=1, ge=1, description="how many")

    made = []

    def shelf(slot, schema, settings):
        made.append((slot, settings.shelves))
        return MemoryStore(slot, schema, settings)

    registered(backends, shelf=Backend(shelf, "a shelf", Shelf))
    spec = make_spec({"backend": "shelf", "shelves": 4})
    assert spec.parameters().items() >= {"backend": "shelf", "shelves": 4}.items()
    config = job_config(spec, "job", None, None)
    config.open_store(1, config.make_stage().operator().state_schema)
    assert made == [("job/0/counter/1", 4)]
    with pytest.raises(BadInput, match="shelves = 0"):
        make_spec({"backend": "shelf", "shelves": 0})
    with pytest.raises(BadInput, match="a parameter of backend shelf; this run has backend = memory"):
        make_spec({"shelves": 4})


class Sorted(Settings):
    shelves: tuple[int, ...] = Field(default=(1, 2), description="which")


def test_settings_of_a_backend_that_results_have_no_place_for_are_refused_before_anything_is_started(registered):
    backend = Backend(MemoryStore, "shelves", Sorted)
    registered(backends, sorted=backend)
    words = r"shelves = \(1, 2\): results tell a number, a text or a truth value of each parameter"
    with pytest.raises(BadInput, match=f"^backend = sorted: {words}"):
        make_spec({"backend": "sorted"})
    with pytest.raises(ContractBroken, match=f"^{words}"):
        check_backend(backend)


class Weighted(KeyCount):
    name: ClassVar[str] = "weighted"
    weights: list[float] = Field(default=[1.0, 2.0], description="of its own")


class TellsAttempts(KeyCount):
    name: ClassVar[str] = "tells_attempts"

    @property
    def stages(self):
        [plain] = super().stages
        return (replace(plain, result_fields=(*plain.result_fields, pa.field("attempt", pa.int32()))),)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (Weighted, r"weights = \[1.0, 2.0\]: results tell a number, a text or a truth value of each parameter"),
        (TellsAttempts, r"stage counter: every result has \['attempt'\] already"),
    ],
)
def test_what_results_have_no_place_for_is_refused_before_anything_is_started(registered, own, words):
    registered(workloads, **{own.name: own})
    with pytest.raises(BadInput, match=f"^workload = {own.name}: {words}"):
        make_spec({"workload": own.name, "rate": "auto"})


ORDERED = {"ordering": "live_robin"}
LED_CHAIN = {"ordering": "kazoo", "workload": "chain"}


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({"ordering": "robin"}, "unknown order protocol 'robin': .*known: none, live_robin, time_merge, kazoo"),
        ({"ordering": "kazoo", "snapshot_s": 5}, "kazoo with snapshot_s = 5: .*; set snapshot_s = 0, or replicas = 2$"),
        (LED_CHAIN | {"stage": "counter-1"}, "stage = counter-1: .*; set stage = counter-2$"),
        (LED_CHAIN | {"trigger": "auto"}, "with trigger = auto, .*; set trigger = scale and stage = counter-2$"),
        (
            LED_CHAIN | {"trigger": "script", "script": "4: cancel"},
            "with trigger = script, .*; set trigger = scale and stage = counter-2, and leave script out$",
        ),
        ({"ordering": "kazoo", "session_ms": 19}, "session_ms = 19: .*greater than or equal to 20"),
        (ORDERED | {"heartbeat_ms": 0}, "heartbeat_ms = 0: "),
        (ORDERED | {"heartbeat_ms": 19}, "heartbeat_ms = 19: an epoch cannot be shorter than .*frame_ms = 20"),
        (ORDERED | {"heartbeat_ms": 2001, "deadline_s": 2}, "heartbeat_ms = 2001: .*deadline_s = 2; lower"),
        (ORDERED | {"strategy": "meces"}, "meces: fetch_back = 2: .*fetch_back = 0; .*all_at_once, fluid"),
        (ORDERED | {"strategy": "stop_restart"}, "gate = query: .*set gate = none; "),
        (ORDERED | {"strategy": "pause_resume"}, "gate = router: "),
        (ORDERED | {"strategy": "lazy"}, "transfer = access: .*set transfer = push or fetch; "),
        (ORDERED | {"workload": "chain", "snapshot_s": 5}, "the stages counter-1, counter-2, .*; set snapshot_s = 0$"),
    ],
)
def test_what_is_not_possible_with_an_order_is_refused_and_what_is_possible_is_named(values, refusal):
    with pytest.raises(BadInput, match=refusal):
        make_spec(values)


TWO = ORDERED | {"replicas": 2}
APART = TWO | {"to_slots": 3, "replicas_move": "one_by_one"}


@pytest.mark.parametrize(("values", "named"), [(ORDERED, True), (TWO, False)])
def test_a_strategy_is_named_as_possible_only_if_replicas_would_plan_alike(values, named):
    with pytest.raises(BadInput, match=r"strategies that are possible as they are: .*all_at_once, ") as refused:
        make_spec(values | {"strategy": "lazy", "to_slots": 3})
    assert ("hot_first" in str(refused.value)) == named


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({"replicas": 0}, "replicas = 0: .*greater than or equal to 1"),
        ({"replicas": 9}, "replicas = 9: .*less than or equal to 8"),
        ({"replicas": 2}, "with ordering = none: .* differ; set ordering to one of: live_robin, time_merge, kazoo"),
        (TWO | {"trigger": "balance"}, "trigger = balance: .* measured itself; set trigger to one of: none, scale,"),
        (TWO | {"to_slots": 3, "then": "back,balance"}, "then = back,balance: .* measured itself; leave balance out"),
        (TWO | {"trigger": "auto"}, "replicas = 2 with trigger = auto: "),
        (TWO | {"trigger": "script", "script": "4: scale 3"}, "replicas = 2 with trigger = script: "),
        (TWO | {"to_slots": 3, "on_overlap": "cancel"}, "on_overlap = cancel: .* set on_overlap = queue"),
        (TWO | {"to_slots": 3, "strategy": "fluid", "strategy.order": "hottest"}, "replicas = 2 with order = hottest"),
        (TWO | {"snapshot_s": 5, "verify": "snapshots"}, "verify = snapshots: no snapshots .*, and no replicas"),
        (TWO | {"snapshot_s": 5, "fault": "kill:slot@snapshot"}, "no snapshots are taken; .*, and no replicas"),
        (TWO | {"rate": "auto"}, "replicas = 2 with rate = auto: .*; give a number"),
        (TWO | {"fault": "kill:daemon@3"}, "with fault = kill:daemon@3: not possible yet; .*kill:replica@4"),
        (TWO | {"fault": "kill:replica@3, kill:slot@3"}, "none would be left; raise replicas to 3"),
        (TWO | {"fault": "kill:replica@3, kill:replica@3"}, "none would be left; raise replicas to 3"),
        (TWO | {"replicas": 3, "fault": "kill:slot@3, kill:replica@3"}, "both would hit .* replica, .* another time"),
        (TWO | {"fault": "kill:replica@3, kill:replica@5", "returns": False}, "none would be left; .* replicas to 3"),
        ({"fault": "kill:replica@steady"}, "replicas = 1: none would be left; raise replicas to 2"),
        (TWO | {"fault": "kill:replica@transfer"}, "nothing moves; set trigger to one of: scale, "),
        (TWO | {"fault": "kill:follower@steady"}, "with ordering = live_robin nobody leads, .* to one of: kazoo$"),
        (TWO | {"ordering": "kazoo", "fault": "kill:follower@3, kill:replica@3"}, "none would be left; .* to 3"),
        ({"fault": "kill:follower@4"}, "replicas = 1: none would be left; raise replicas to 2"),
        (TWO | {"fault": "kill:follower@transfer"}, "follower has the phases steady, or seconds"),
        (TWO | {"fault": "kill:replica@batch"}, "replica has the phases steady, prepare, switch, .*, or seconds"),
        (TWO | {"to_slots": 3, "fault": "kill:source@transfer"}, "not possible yet; .* phases steady, prepare, "),
        (TWO | {"fault": "restart:replica@3"}, "what can happen to replica is kill, stop"),
        (TWO | {"fault": "cut:kafka@3"}, "cut needs how long the first replica is cut off, as in cut:kafka@4:3s"),
        ({"fault": "cut:kafka@3:3s"}, "cut:kafka@3:3s: there are no others that go on meanwhile; set replicas = 2"),
        ({"fault": "stop:replica@4:3s"}, "stop:replica@4:3s: there are no others that go on meanwhile; set replicas"),
        ({"fault": "kill:source@transfer", "trigger": "none"}, "nothing moves; set trigger = scale, or another one"),
        (TWO | {"fault": "stop:replica@batch:1s"}, "replica has the phases steady, prepare, switch, .*, or seconds"),
        (TWO | {"replicas_move": "apart"}, "replicas_move = 'apart': input should be 'together' or 'one_by_one'"),
        (APART | {"workload": "chain"}, "one_by_one: possible with a single keyed stage, and there are counter-1, "),
        (APART | {"ordering": "kazoo"}, "one_by_one and ordering = kazoo: a leader orders .*; set it to together$"),
        (APART | {"fault": "kill:replica@transfer"}, "@transfer: .* does not come back .*; set returns = false"),
        ({"spares": 1}, "spares = 1: no replica would ever need one; set spares = 0, or set replicas = 2"),
        (TWO | {"spares": 1, "returns": False}, "spares = 1: no .*; set spares = 0, or set returns = true$"),
        (TWO | {"spares": 5}, "spares = 5: .*less than or equal to 4"),
        (TWO | {"replicas": 8, "routers": 8, "slots": 8}, "makes 25600 rows/s between them in all replicas"),
    ],
)
def test_what_is_not_possible_with_replicas_is_refused_in_one_line(values, refusal):
    with pytest.raises(BadInput, match=refusal) as refused:
        make_spec(values)
    assert "\n" not in str(refused.value)


def test_no_order_that_looks_at_the_heat_is_possible_with_replicas(monkeypatch):
    monkeypatch.setattr("keyshift.experiment.replicas.BY_HEAT", {"reverse"})
    with pytest.raises(BadInput, match=r"^replicas = 2 with order = reverse: each replica would order its steps by"):
        make_spec(TWO | {"to_slots": 3, "strategy": "fluid", "strategy.order": "reverse"})


@pytest.mark.parametrize("one", ["1", 1.0, "1.0"])
def test_one_replica_is_one_however_it_is_written(one):
    assert make_spec({"replicas": one}).parameters() == make_spec({}).parameters()
    assert live_spec({"replicas": one}).parameters() == live_spec({}).parameters()


def test_with_replicas_nothing_moves_unless_it_is_asked_for():
    spec = make_spec(TWO | {"fault": "kill:replica@steady", "trigger_s": 3})
    assert (spec.scenario.trigger, spec.changes, spec.tasks) == ("none", [], {"counter": 2})
    [kill] = spec.scenario.actions(spec.changes)
    assert (kill.at_s, str(kill.action)) == (3, "kill:replica@steady")
    assert make_spec(spec.parameters()).parameters() == spec.parameters()
    moves = make_spec(TWO | {"fault": "kill:replica@transfer", "to_slots": 3})
    assert moves.scenario.trigger == "scale" and moves.tasks == {"counter": 3}
    assert make_spec(ORDERED).scenario.trigger == make_spec({"replicas": 1}).scenario.trigger == "scale"


def test_a_slot_that_is_killed_ends_its_replica_and_the_query_of_the_run_goes_on():
    for values, deaths in ((TWO, 0), ({"recoveries": 1}, 1)):
        spec = make_spec(values | {"fault": "kill:slot@3"})
        assert len(deaths_of(spec.job, spec.scenario)) == deaths


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ({"to_slots": 3}, True),
        ({}, False),  # nothing moves
        ({"to_slots": 3, "replicas_move": "together"}, False),
        ({"to_slots": 3, "replicas": 1}, False),
        ({"to_slots": 3, "fault": "kill:replica@transfer", "returns": False}, True),
    ],
)
def test_replicas_have_different_assignments_only_if_one_moves_after_the_other(values, apart):
    spec = make_spec(TWO | {"replicas_move": "one_by_one"} | values)
    assert job_config(spec, "run", None, None).apart == apart


def test_replicas_read_one_input_and_write_under_names_of_their_own():
    alike = TWO | {"fault": "kill:replica@steady"}
    config = job_config(make_spec(alike), "run", Endpoints("k", "z", "m", "", ""), None)
    assert config.faults == () and not config.replicated
    in_a_phase = TWO | {"fault": "kill:replica@transfer", "to_slots": 3}
    config = job_config(make_spec(in_a_phase), "run", Endpoints("k", "z", "m", "", ""), None)
    assert [len(config.of_replica(number).faults) for number in range(2)] == [1, 0], "the first one fails"
    first, second = (config.of_replica(number) for number in range(2))
    assert first.inputs == second.inputs == config.inputs
    assert [each.results_topic for each in (first, second)] == ["run-r0-results", "run-r1-results"]
    assert first.root != second.root and second.replica == 1 and second.replicated
    assert second.chain()[0].replicated


@pytest.mark.parametrize("ordering", ["live_robin", "time_merge", "kazoo"])
def test_replicas_may_have_several_stages(ordering):
    given = TWO | {"ordering": ordering, "workload": "chain", "chain": "counter,map,counter,counter"}
    spec = make_spec(given)
    assert spec.tasks == {"counter-1": 2, "map": 2, "counter-2": 2, "counter-3": 2}
    config = job_config(spec, "run", Endpoints("k", "z", "m", "", ""), None).of_replica(1)
    assert all(each.in_turns and each.replica == 1 and each.replicated for each in config.chain())


def test_a_job_that_lasts_has_leaders_only_with_replicas_and_one_stage():
    assert live_spec(ORDERED | {"replicas": 1})
    led = TWO | {"ordering": "kazoo"}
    assert live_spec(led).job.snapshot_s == 10.0
    with pytest.raises(BadInput, match=r"^ordering = kazoo: a job that lasts .*: none, live_robin, time_merge$"):
        live_spec({"ordering": "kazoo", "snapshot_s": 0})
    with pytest.raises(BadInput, match=r"^ordering = kazoo with workload = chain: .* to counter-2, .*time_merge$"):
        live_spec(led | {"workload": "chain"})


def test_an_order_and_its_heartbeat_come_to_the_job():
    config = job_config(make_spec(ORDERED | {"heartbeat_ms": 40, "strategy": "drrs"}), "job", None, None)
    assert (config.ordering, config.heartbeat_us, config.in_turns) == ("live_robin", 40_000, True)
    assert not job_config(make_spec({}), "job", None, None).in_turns


def test_a_job_works_in_turns_if_its_protocol_agrees_on_some_whatever_its_name(registered):
    registered(orderings, loose=orderings.get("none"))
    assert not job_config(make_spec({"ordering": "loose"}), "job", None, None).in_turns


def test_all_stages_of_a_chain_may_migrate():
    chain = {"workload": "chain", "chain": "map,counter,counter", "to_slots": 4}
    for ordering in ("none", "kazoo"):
        assert make_spec(chain | {"ordering": ordering}).moving == ["counter-2"]
    everything = make_spec(chain | {"stage": "all"})
    assert everything.moving == ["map", "counter-1", "counter-2"]
    assert everything.cores == everything.job.routers + 3 * 4


@pytest.mark.parametrize("first", [WindowCount, KeyCount])
def test_only_the_first_stage_of_a_chain_may_use_time(first):
    class Late(WindowCount):
        name: ClassVar[str] = "late"

        @property
        def stages(self):
            (stage,) = super().stages
            return *first().stages, replace(stage, name="again")

    with pytest.raises(BadInput, match="workload = late: stage again uses time, and only the first may yet"):
        replace(make_spec({}), workload=Late())


class TwoSources(KeyCount):
    """Keys of two sources, the second of which has a rate of its own."""

    name = "two_sources"

    @property
    def sources(self):
        [plain] = super().sources
        return plain, replace(plain, name="others", rate=5.0)


class MapsInItsStage(KeyCount):
    name = "maps_in_its_stage"

    @property
    def stages(self):
        [plain] = super().stages
        return (replace(plain, map=lambda events: events),)


def test_each_source_has_topic_routers_and_load_of_its_own(registered):
    registered(workloads, two_sources=TwoSources)
    spec = make_spec({"workload": "two_sources", "rate": 100, "source_routers": "others:3", "injectors": 3})
    assert spec.loads == [SourceLoad(100.0, [], 3), SourceLoad(5.0, [], 3)]
    assert (spec.routers, spec.cores) == (2 + 3, 2 + 3 + 4)
    config = job_config(spec, "run", Endpoints("k:1", "z:1", "m:1", "a", "s"), None)
    assert config.inputs == (("run-events-events", 0, 2), ("run-others-events", 2, 3))
    assert [config.make_source(router).name for router in range(5)] == ["events"] * 2 + ["others"] * 3
    again = make_spec(spec.parameters())
    assert again.parameters() == spec.parameters()
    assert make_spec({"workload": "two_sources", "rates": "others:7"}).loads[1].rate == 7.0


def test_a_map_of_the_first_stage_is_refused_with_where_it_belongs(registered):
    registered(workloads, maps_in_its_stage=MapsInItsStage)
    with pytest.raises(BadInput, match="stage counter is the first one and has a map; that belongs to the source"):
        make_spec({"workload": "maps_in_its_stage"})
