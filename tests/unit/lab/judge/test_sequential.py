"""A run in this process drives what a job runs: what is wrong there is wrong here."""

from dataclasses import replace

import pytest

from keyshift.lab.judge.sequential import run_sequentially
from keyshift.model.keys import Assignment
from keyshift.protocol.slot import SlotMachine
from keyshift.results.verdict import judge
from keyshift.runtime.computation import Computation
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount

TWO = [Assignment.contiguous(8, 2), Assignment.contiguous(8, 3, version=2)]
SMALL = {"key_groups": 8, "keys": 50, "skew": 0.5, "seed": 1}
WORKLOADS = {
    "keycount": workloads.get("keycount")(**SMALL),
    "windowcount": workloads.get("windowcount")(**SMALL, window_ms=20, delay_ms=10),
}


def verdict(name):
    run = run_sequentially(WORKLOADS[name], TWO, frames=12)
    return judge(WORKLOADS[name], run.events, run.results, run.final, run.ownership, times=run.times), run


@pytest.mark.parametrize("name", WORKLOADS)
def test_units_change_their_slot_between_two_frames_as_in_a_job(name):
    found, run = verdict(name)
    assert found.ok, found
    assert set(run.results["version"]) == {1, 2}
    owners = {(row.unit, row.slot) for part in run.final for row in part.itertuples()}
    assert owners == {(unit, TWO[1].owner[unit]) for unit in range(8)}


@pytest.mark.parametrize("ordering", ["none", "live_robin"])
def test_a_run_none_of_whose_events_reaches_a_slot_has_the_columns_of_results(ordering):
    class Quiet(KeyCount):
        @property
        def sources(self):
            (source,) = super().sources
            return (replace(source, map=lambda events: events.slice(0, 0)),)

    run = run_sequentially(Quiet(**SMALL), TWO, frames=3, ordering=ordering)
    assert run.results.empty
    assert {"key", "count", "slot", "log_offset", "arrived_us"} < set(run.results)


def test_records_that_wait_for_a_unit_and_are_forgotten_are_lost(monkeypatch):
    drain = SlotMachine.drain
    monkeypatch.setattr(SlotMachine, "drain", lambda machine, most: ([], drain(machine, most)[1]))
    found, _ = verdict("keycount")
    assert found.lost


def test_timers_that_fire_only_if_a_record_comes_are_missed(monkeypatch):
    monkeypatch.setattr(Computation, "timers_due", lambda *_, **__: [])
    found, _ = verdict("windowcount")
    assert not found.ok


CHAINS = {
    "counter,counter": workloads.get("chain")(**SMALL),
    "map,counter": workloads.get("chain")(**SMALL, chain="map,counter"),
    "counter,map,counter": workloads.get("chain")(**SMALL, chain="counter,map,counter"),
    "counter,counter,counter,counter": workloads.get("chain")(**SMALL, chain="counter,counter,counter,counter"),
    "q4": workloads.get("nexmark")(key_groups=8, query="q4", seed=1),
    "saas": workloads.get("saas")(key_groups=8, seed=1),
    "keycount": WORKLOADS["keycount"],
    "windowcount": WORKLOADS["windowcount"],
}


@pytest.mark.parametrize("ordering", ["live_robin", "time_merge"])
@pytest.mark.parametrize("name", CHAINS)
def test_stages_that_work_in_turns_give_what_the_oracle_wants_while_units_move_in_all_of_them(name, ordering):
    workload = CHAINS[name]
    run = run_sequentially(workload, TWO, frames=20, ordering=ordering)
    found = judge(workload, run.events, run.results, run.final, run.ownership, times=run.times)
    assert found.ok, found
    assert len(run.results) > 100 and set(run.results["version"]) == {1, 2}
