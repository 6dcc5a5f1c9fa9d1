"""Several migrations of one real job, each a run of its own."""

import pytest

from keyshift.experiment.spec import make_spec
from keyshift.lab.run import run_in_one_job
from keyshift.lab.scripts.series import OF_A_SERIES

pytestmark = pytest.mark.nightly("two minutes; the quickstart makes such a series")
SMALL = {"rate": 1000.0, "seconds": 9.0, "warmup_s": 1.0, "trigger_s": 3.0}
SMALL |= {"keys": 2000, "state_bytes": 256, "key_groups": 16}
POINTS = {name: {"strategy": name} for name in ("fluid", "rhino", "lazy")}
POINTS |= {"restart": {"strategy": "stop_restart"}, "at once": {"strategy": "all_at_once", "to_slots": 3}}


@pytest.fixture(scope="module")
def runs(shared_lab):
    lab = shared_lab.open()
    specs = [make_spec(SMALL | point) for point in POINTS.values()]
    made = [manifest for _, manifest in run_in_one_job(lab, specs)]
    assert [m.run_id for m in made] == [lab.store.get_manifest(m.run_id).run_id for m in made]
    return {name: (each, lab.store.get_tables(each.run_id)) for name, each in zip(POINTS, made, strict=True)}


def test_each_is_a_run_with_a_verdict_and_says_that_it_shares_a_job(runs):
    assert {manifest.status for manifest, _ in runs.values()} == {"ok"}
    assert all(OF_A_SERIES in manifest.notes for manifest, _ in runs.values())
    assert all(manifest.summary.one_job for manifest, _ in runs.values())
    begun = [manifest.started_at for manifest, _ in runs.values()]
    assert begun == sorted(begun)
    assert all((m.finished_at - m.started_at).total_seconds() > 5 for m, _ in runs.values())
    assert runs["at once"][0].summary.strategy == "all_at_once"
    assert runs["at once"][0].parameters["to_slots"] == 3


def test_each_has_the_steps_of_its_own_migration_alone(runs):
    assert {name: manifest.summary.units_moved for name, (manifest, _) in runs.items()} == {
        "fluid": 8,
        "rhino": 8,
        "lazy": 8,
        "restart": 16,  # every unit comes from the savepoint
        "at once": 5,
    }
    assert runs["fluid"][0].summary.steps == 8
    assert runs["at once"][0].summary.steps == 1
    for name in ("fluid", "rhino", "lazy", "at once"):
        migration = runs[name][1]["migration"]
        assert (migration["switched_s"] >= 0).all()
        assert len(migration) == runs[name][0].summary.units_moved


def test_each_has_a_quiet_time_before_its_trigger_and_latencies_of_its_own_time(runs):
    for manifest, tables in runs.values():
        created = tables["latency"]["created_s"]
        assert -8 < created.min() < -2.9  # a busy machine needs a moment from the end of the quiet time to the trigger
        assert 0 < created.max() < 60
        assert manifest.summary.p99_ms is not None and manifest.summary.spike_ms is not None
        assert manifest.summary.events == len(created)


def test_bytes_that_went_key_by_key_are_those_of_one_migration(runs):
    whole = {name: tables["migration"]["bytes"].sum() for name, (_, tables) in runs.items()}
    by_key = {name: manifest.summary.bytes_moved - whole[name] for name, (manifest, _) in runs.items()}
    assert by_key.pop("lazy") > 0
    assert set(by_key.values()) == {0}, "also after a restart, with which slots begin to count anew"


def test_copies_are_those_that_the_strategy_ordered(runs):
    copied = {name: manifest.summary.bytes_copied for name, (manifest, _) in runs.items()}
    assert copied.pop("rhino") > 2000 * 256 / 2
    assert set(copied.values()) == {None}
