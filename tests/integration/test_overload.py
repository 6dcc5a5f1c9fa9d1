"""Jobs that are offered more than they can process, on the real services: they become slow, and nothing else."""

import pytest

from keyshift.experiment.spec import make_spec
from small_run import good

# Every event copies its payload, so that it is the job that has too much to do, not the generator.
HEAVY = {"keys": 128, "state_bytes": 256 << 10, "key_groups": 32}
HEAVY |= {"seconds": 4.0, "warmup_s": 1.0, "trigger_s": 1.0, "slots": 1, "to_slots": 2}
MOST_PER_S = 200_000.0
STRATEGY_OF = {"push": "all_at_once", "fetch": "meces", "access": "lazy", "remote": "hybrid"}


@pytest.fixture(scope="module")
def overloaded(shared_lab):
    """A run of a job that is offered more than its slot can take, and its router, and is not given the time to work it
    off: what the router has passed on by then is processed all the same.
    """
    return shared_lab.open().run(
        make_spec(HEAVY | {"trigger": "none", "rate": 2 * MOST_PER_S, "seconds": 2.0, "routers": 1, "catch_up_s": 0.5})
    )


def test_a_backlog_that_is_not_worked_off_ends_the_run_as_overloaded_and_what_was_processed_is_judged(lab, overloaded):
    summary = overloaded.summary
    assert overloaded.status == "ok", overloaded.verdict.examples
    assert summary.overloaded
    answered = len(lab.store.get_table(overloaded.run_id, "latency"))
    assert 0 < answered == summary.events - summary.unprocessed
    assert 0 < summary.unprocessed < summary.backlog
    assert summary.sustained_per_s < summary.offered_per_s / 2
    assert summary.worked_off_s is None
    assert [note for note in overloaded.notes if "not worked off" in note]


def offered_too_much(lab, strategy, rate):
    """A run that is offered at least twice what it processes: more than ``rate`` if the machine has become faster."""
    while True:
        run = make_spec(HEAVY | {"strategy": strategy, "rate": rate, "catch_up_s": 120.0})
        manifest = good(lab.run(run))
        if manifest.summary.offered_per_s > 2 * manifest.summary.sustained_per_s or rate > MOST_PER_S:
            return run, manifest
        rate *= 2


@pytest.mark.nightly("two minutes each; `make test` has an overload without a migration")
@pytest.mark.parametrize("transfer", ["push", "fetch", "access", "remote"])
def test_far_too_much_during_a_migration_makes_it_slow_and_the_verdict_stays_exact(lab, overloaded, transfer):
    run, manifest = offered_too_much(lab, STRATEGY_OF[transfer], float(round(3 * overloaded.summary.sustained_per_s)))
    assert run.point().mode.transfer == transfer
    summary = manifest.summary
    assert not summary.overloaded
    assert len(lab.store.get_table(manifest.run_id, "latency")) == summary.events == round(run.run.rate * 5)
    assert summary.backlog > summary.sustained_per_s
    assert summary.worked_off_s > 0
    assert lab.store.get_table(manifest.run_id, "migration")["installed_s"].notna().all()
    assert [note for note in manifest.notes if "worked off" in note]


@pytest.mark.nightly("a minute; tests/unit/traffic has the generator alone")
def test_a_rate_that_no_generator_can_make_is_told_and_what_it_made_is_judged(lab):
    run = make_spec({"rate": 50_000_000.0, "warmup_s": 0.5, "seconds": 0.5, "trigger_s": 0.2, "catch_up_s": 120.0})
    manifest = good(lab.run(run))
    summary = manifest.summary
    assert 0 < summary.events < 50_000_000
    assert 0 < summary.offered_per_s < run.run.rate / 2
    assert [note for note in manifest.notes if "the generator made" in note and "never offered" in note]
