"""A run in this process drives what a job runs: what is wrong there is wrong here."""

from dataclasses import replace

from keyshift.protocol.slot import SlotMachine
from keyshift.runtime.computation import Computation
from keyshift.workloads import workloads
from keyshift.workloads.keycount import KeyCount
from workload_runs import run, verdict, with_sources

SMALL = {"key_groups": 8, "keys": 50, "skew": 0.5, "seed": 1}


def test_a_run_none_of_whose_events_reaches_a_slot_has_the_columns_of_results():
    quiet = with_sources(KeyCount, lambda plain: [replace(plain, map=lambda events: events.slice(0, 0))])
    results = run(quiet(**SMALL), frames=3).results
    assert results.empty
    assert {"key", "count", "slot", "log_offset", "arrived_us"} < set(results)


def test_records_that_wait_for_a_unit_and_are_forgotten_are_lost(monkeypatch):
    drain = SlotMachine.drain
    monkeypatch.setattr(SlotMachine, "drain", lambda machine, most: ([], drain(machine, most)[1]))
    workload = KeyCount(**SMALL)
    assert verdict(workload, run(workload, frames=12)).lost


def test_timers_that_fire_only_if_a_record_comes_are_missed(monkeypatch):
    monkeypatch.setattr(Computation, "timers_due", lambda *_, **__: [])
    workload = workloads.get("windowcount")(**SMALL, window_ms=20, delay_ms=10)
    assert not verdict(workload, run(workload, frames=12)).ok
