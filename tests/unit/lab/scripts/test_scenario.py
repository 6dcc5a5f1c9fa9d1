"""A run whose scenario is a script, over stand-ins; what other scenarios do is in ``test_run_loop``."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from small_live import Job, Traffic, without_waiting

from keyshift.experiment.spec import make_spec
from keyshift.lab import run_loop
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.lab.system import KeyshiftJob
from keyshift.model.errors import BadInput, ServiceUnavailable

SMALL = {"warmup_s": 0.1, "seconds": 1.0, "trigger_s": 0.0, "key_groups": 16, "slots": 2, "slots_max": 4}
SCRIPT = "0.2: scale 4; 0.4: double; 0.6: fault kill:slot; 0.7: plan all_at_once 3"


def executed(monkeypatch, refusal, **values):
    """When a run was whose faults are refused; with the run and its job."""
    without_waiting(monkeypatch)
    monkeypatch.setattr(run_loop, "EndedJob", lambda *_: SimpleNamespace(evaluation=lambda span, *_: span))
    spec = make_spec(SMALL | {"strategy": "fluid"} | values)
    job = Job(spec)
    system = KeyshiftJob(spec, job)
    system.hit, system.stop, system.final_state = Mock(side_effect=refusal), lambda: None, lambda: None
    run = RunLoop(spec, system, Traffic(), Reporter(lambda line: None), lambda: None, scenario_script)
    return run.execute(), run, job


def test_its_commands_are_carried_out_in_time_and_one_that_is_refused_is_noted(monkeypatch):
    span, run, job = executed(monkeypatch, BadInput("not now"), trigger="script", script=SCRIPT)
    (_, begin, length), *told = run.traffic.told[1:]
    assert length is None, "else the rate could not change"
    assert told == [("change_rate", 2 * run.spec.run.rate, "events"), ("end_load",)]
    assert [len(set(each.owner)) for each in job.stages[0].assignments] == [2, 4, 3]
    assert 0.1 + 0.2 <= span.trigger - begin < span.end - begin
    refused, missed = map(str, job.notes)
    assert refused == "`fault kill:slot` was refused: not now"
    assert missed.endswith("not all of it happened, the query died 0 times and not 1")


@pytest.mark.parametrize("refusal", [BadInput, ServiceUnavailable])
def test_a_fault_that_cannot_happen_any_more_leaves_a_note_and_not_a_run_that_died(refusal, monkeypatch):
    *_, job = executed(monkeypatch, refusal("not now"), fault="restart:minio@0.5")
    assert "`restart:minio@0.5` was refused: not now" in map(str, job.notes)


def test_what_takes_back_the_migration_under_way_is_one_itself_while_only_a_service_is_away():
    spec = make_spec(SMALL | {"strategy": "fluid", "then": "3,2", "gap_s": 0.2, "on_overlap": "cancel"})
    job, requested = Job(spec), []
    run = RunLoop(spec, KeyshiftJob(spec, job), Traffic(), Reporter(lambda line: None), lambda: None, scenario_script)
    job.faults.busy = True
    for step in filter(callable, scenario_script(run)):
        step()
        requested.append(len(job.stages[0].requests))
    assert requested == [0, 1, 0, 1], "as it is announced, and at each migration"
