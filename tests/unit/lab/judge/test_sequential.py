"""A run in this process drives what a job runs: what is wrong there is wrong here."""

from dataclasses import replace

import pytest

from keyshift.protocol.slot import SlotMachine
from keyshift.runtime.computation import Computation
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount
from workload_runs import run, verdict, with_sources

SMALL = {"key_groups": 8, "keys": 50, "skew": 0.5, "seed": 1}
WORKLOADS = {
    "keycount": workloads.get("keycount")(**SMALL),
    "windowcount": workloads.get("windowcount")(**SMALL, window_ms=20, delay_ms=10),
    "q4": workloads.get("nexmark")(key_groups=8, query="q4", seed=1),
    "saas": workloads.get("saas")(key_groups=8, seed=1),
} | {
    chain: workloads.get("chain")(**SMALL, chain=chain)
    for chain in ("counter,counter", "map,counter", "counter,map,counter", "counter,counter,counter,counter")
}


@pytest.mark.parametrize("ordering", ["none", "live_robin"])
def test_a_run_none_of_whose_events_reaches_a_slot_has_the_columns_of_results(ordering):
    quiet = with_sources(KeyCount, lambda plain: [replace(plain, map=lambda events: events.slice(0, 0))])
    results = run(quiet(**SMALL), frames=3, ordering=ordering).results
    assert results.empty
    assert {"key", "count", "slot", "log_offset", "arrived_us"} < set(results)


def test_records_that_wait_for_a_unit_and_are_forgotten_are_lost(monkeypatch):
    drain = SlotMachine.drain
    monkeypatch.setattr(SlotMachine, "drain", lambda machine, most: ([], drain(machine, most)[1]))
    workload = WORKLOADS["keycount"]
    assert verdict(workload, run(workload, frames=12)).lost


def test_timers_that_fire_only_if_a_record_comes_are_missed(monkeypatch):
    monkeypatch.setattr(Computation, "timers_due", lambda *_, **__: [])
    workload = WORKLOADS["windowcount"]
    assert not verdict(workload, run(workload, frames=12)).ok


@pytest.mark.parametrize("ordering", ["live_robin", "time_merge"])
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_stages_that_work_in_turns_give_what_the_oracle_wants_while_units_move_in_all_of_them(workload, ordering):
    made = run(workload, frames=20, ordering=ordering)
    found = verdict(workload, made)
    assert found.ok, found
    assert len(made.results) > 100 and set(made.results["version"]) == {1, 2}
