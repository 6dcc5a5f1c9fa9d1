"""Which points of the space are refused, and why."""

import sys
from dataclasses import replace

import pytest

from keyshift.model.errors import BadInput
from keyshift.planner import MEANINGS, Strategy, change, check, settings, strategies
from keyshift.planner.batches import SIZED, batches

PLAIN = Strategy("a point of the space", "this test")


@pytest.mark.parametrize("name", strategies.names())
def test_every_preset_makes_sense_and_is_unchanged_by_no_changes(name):
    strategy = strategies.get(name)
    check(strategy)
    assert change(strategy, {}) == strategy
    if not strategy.by_migration:
        assert change(strategy, settings(strategy)) == strategy


@pytest.mark.parametrize(
    ("overrides", "value", "remedy"),
    [
        ({"order": "hotest"}, "order 'hotest'", "did you mean 'hottest'"),
        ({"batch": "persource"}, "batch 'persource'", "did you mean 'per_source'"),
        ({"unit": "bins"}, "unit 'bins'", "did you mean 'bin'"),
        ({"gate": "slot"}, "gate 'slot'", "did you mean 'slots'"),
        ({"transfer": "pull"}, "transfer 'pull'", "known: push, fetch, access, remote"),
        ({"copies": "always"}, "copies 'always'", "known: warm_up, periodic"),
        ({"siz": 3}, "setting 'siz'", "did you mean 'size'"),
        ({"summary": "mine"}, "setting 'summary'", "known: order"),
        ({"size": 0}, "size = 0", "at least 1"),
        ({"size": True}, "size = True", "a whole number"),
        ({"size": 2.0}, "size = 2.0", "a whole number"),
        ({"order": 3}, "order = 3", "a name"),
        ({"gate": None}, "gate = None", "a name"),
        ({"background": 1}, "background = 1", "true or false"),
        ({"cap": -1}, "cap = -1", "0 for no cap"),
        ({"replicate": -2}, "replicate = -2", "0 for none"),
        ({"fetch_back": -1, "transfer": "fetch"}, "fetch_back = -1", "0 for never"),
        ({"fetch_interval_ms": -1, "transfer": "fetch"}, "fetch_interval_ms = -1", "from 0, to ask at once, to"),
        ({"fetch_interval_ms": 86_400_001, "transfer": "fetch"}, "fetch_interval_ms = 86400001", "to 86400000"),
        ({"bins": 0}, "bins = 0", "power of two"),
        ({"bins": -4}, "bins = -4", "power of two"),
        ({"unit": "bin", "bins": 12}, "bins = 12", "power of two"),
        ({"bins": 16}, "bins = 16", "unit = group does not move bins; set unit = bin"),
        ({"unit": "key", "transfer": "access", "bins": 2}, "bins = 2", "unit = key does not move bins"),
        ({"size": 2}, "size = 2", "batch = all has no size; set batch = global or per_source"),
        ({"size": 2, "batch": "matched"}, "size = 2", "batch = matched has no size"),
        ({"transfer": "access"}, "transfer = access", "set unit = key"),
        ({"transfer": "remote", "unit": "bin"}, "transfer = remote", "set unit = key"),
        ({"unit": "key"}, "unit = key", "set unit = group, or transfer = access or remote"),
        ({"gate": "slots", "transfer": "fetch"}, "gate = slots", "transfer = fetch waits for; set gate = none"),
        ({"gate": "router", "transfer": "access", "unit": "key"}, "gate = router", "set gate = none"),
        ({"gate": "query", "transfer": "remote", "unit": "key"}, "gate = query", "set gate = none"),
        ({"order": "access"}, "order = access", "set transfer = fetch, or another order"),
        ({"fetch_back": 1}, "fetch_back = 1", "only transfer = fetch"),
        ({"cache": True}, "cache = true", "set transfer = remote"),
        ({"cache": True, "transfer": "access", "unit": "key"}, "cache = true", "set transfer = remote"),
        ({"background": False}, "background = false", "set it to true"),
        ({"background": False, "transfer": "fetch"}, "background = false", "set it to true"),
        ({"background": False, "transfer": "access", "unit": "key", "cap": 2}, "cap = 2", "may never end"),
        (
            {"background": False, "transfer": "remote", "unit": "key", "batch": "global"},
            "batch = global",
            "batch = all",
        ),
        ({"gate": "query", "batch": "global"}, "batch = global", "a restart is one step"),
        ({"gate": "query", "cap": 4}, "cap = 4", "a restart is one step"),
        ({"gate": "query", "replicate": 1}, "replicate = 1", "the savepoint is the copy"),
        ({"transfer": "access", "unit": "key", "replicate": 1}, "replicate = 1", "hands no unit over; set it to 0"),
        ({"handover": "whole"}, "handover = whole", "nothing is copied; set replicate >= 1"),
        ({"copies": "periodic"}, "copies = periodic", "nothing is copied; set replicate >= 1"),
        ({"holders": "ring"}, "holders = ring", "nothing is copied; set replicate >= 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_value_and_a_remedy(overrides, value, remedy):
    with pytest.raises(BadInput) as refused:
        change(PLAIN, overrides)
    assert value in str(refused.value)
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"batch": "per_source", "size": 3, "cap": 2},
        {"batch": "matched", "cap": 4},
        {"unit": "bin", "bins": 1},
        {"unit": "bin", "bins": 128, "batch": "matched"},
        {"transfer": "fetch", "order": "hottest", "replicate": 1},
        {"transfer": "remote", "unit": "key", "batch": "global", "background": True},
        {"gate": "router", "replicate": 4, "handover": "whole", "batch": "global"},
    ],
)
def test_what_makes_sense_is_not_refused(overrides):
    assert settings(change(PLAIN, overrides)).items() >= overrides.items()


def test_every_coordinate_says_what_it_means():
    assert MEANINGS.keys() == settings(PLAIN).keys()
    assert all(text.strip() for text in MEANINGS.values())


def test_a_batch_of_ones_own_may_have_a_size(registered, monkeypatch):
    registered(batches, mine=batches.get("global"))
    with pytest.raises(BadInput, match=r"size = 2: batch = mine has no size; set batch = global or per_source, or"):
        change(PLAIN, {"batch": "mine", "size": 2})
    monkeypatch.setattr(sys.modules[change.__module__], "SIZED", (*SIZED, "mine"))
    assert change(PLAIN, {"batch": "mine", "size": 2}).size == 2


# -- from one migration to the next -----------------------------------------------------------------------------------


def test_a_change_holds_for_every_migration_and_the_mode_may_change_from_one_to_the_next():
    dynamic = change(strategies.get("spacker_dynamic"), {"batch": "per_source", "size": 2, "gate": "slots"})
    assert [dynamic.of_migration(n).size for n in range(4)] == [2, 2, 2, 2]
    assert [dynamic.of_migration(n).replicate for n in range(4)] == [0, 2, 2, 2]
    assert all(dynamic.of_migration(n).mode.gate == "slots" for n in range(4))
    phased = replace(PLAIN, by_migration=({}, {"transfer": "fetch", "order": "access"}))
    check(phased)
    assert [phased.of_migration(n).mode.transfer for n in range(3)] == ["push", "fetch", "fetch"]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"size": 0}, "migration 1: size = 0: a step needs"),
        ({"sise": 1}, "migration 1: unknown setting 'sise': did you mean 'size'"),
        ({"unit": "bin", "bins": 4}, "migration 1: unit is for the life of a job"),
        ({"order": "access"}, "migration 1: order = access: with transfer = push"),
        ({"gate": "query"}, "migration 1: gate = query: all migrations of a job restart its query, or none does; set"),
    ],
)
def test_what_makes_no_sense_for_one_migration_is_refused_by_its_number(point, message):
    with pytest.raises(BadInput, match=message):
        check(replace(PLAIN, by_migration=({}, point)))


def test_a_job_that_restarts_in_one_migration_does_so_in_all():
    restart = strategies.get("stop_restart")
    check(replace(restart, by_migration=({}, {"gate": "query"})))
    with pytest.raises(BadInput, match="migration 0: gate = none: all migrations of a job restart"):
        check(replace(restart, by_migration=({"gate": "none"},)))
