import pytest

from keyshift.experiment.commands import At
from keyshift.experiment.scenario import (
    Back,
    Balance,
    BalanceZipf,
    Map,
    Migrate,
    ScaleTo,
    ScenarioPart,
    Shuffle,
    target_of,
)
from keyshift.model.keys import Assignment, Version
from keyshift.planner import targets
from keyshift.wire.faults import Fault

KILL, STOP = Fault("kill", "slot", "", 9.0), Fault("stop", "slot", "", 3.5, 2.0)
GROUPS, LOAD = Assignment.contiguous(8, 2), [9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("on_overlap", "expected"),
    [
        ("queue", [Migrate(ScaleTo(4)), Migrate(ScaleTo(3)), Migrate(ScaleTo(6))]),
        ("replace", [Migrate(ScaleTo(4), True), Migrate(ScaleTo(3), True), Migrate(ScaleTo(6), True)]),
        ("cancel", [Migrate(ScaleTo(4)), Migrate(ScaleTo(3), cancels=True), Migrate(ScaleTo(6), cancels=True)]),
    ],
)
def test_a_scenario_says_what_is_requested_and_when(on_overlap, expected):
    part = ScenarioPart(trigger_s=2.0, to_slots=4, then="3,6", gap_s=5.0, on_overlap=on_overlap)
    assert part.actions(part.changes(skew=0.8, slots=4)) == list(map(At, (2.0, 7.0, 12.0), expected))


def test_kills_come_between_the_migrations():
    part = ScenarioPart(trigger_s=2.0, to_slots=4, then="3", gap_s=5.0, fault="kill:slot@9, stop:slot@3.5:2s")
    moves = [At(2.0, Migrate(ScaleTo(4))), At(7.0, Migrate(ScaleTo(3)))]
    assert part.actions(part.changes(skew=0.8, slots=4)) == [moves[0], At(3.5, STOP), moves[1], At(9.0, KILL)]


@pytest.mark.parametrize(
    ("given", "change", "target"),
    [
        ({"trigger": "scale", "to_slots": 4}, ScaleTo(4), targets.scale(GROUPS, 4)),
        ({"trigger": "shuffle", "affected": 3}, Shuffle(3), targets.shuffle(GROUPS, 3)),
        ({"trigger": "shuffle", "affected": 3, "affected_slots": 2}, Shuffle(3, 2), targets.shuffle(GROUPS, 3, 2)),
        ({"trigger": "balance"}, Balance(), targets.balance(GROUPS, LOAD)),
        ({"trigger": "zipf"}, BalanceZipf(2.0), targets.zipf_balance(GROUPS, 2.0)),
        ({"trigger": "zipf", "affected_slots": 2}, BalanceZipf(2.0, 2), targets.zipf_balance(GROUPS, 2.0, 2)),
        ({"trigger": "map", "moves": "0:1"}, Map({0: 1}, 2), targets.explicit(GROUPS, {0: 1}, 2)),
    ],
)
def test_each_trigger_is_one_change_and_says_where_it_leads(given, change, target):
    (made,) = ScenarioPart(**given).changes(skew=2.0, slots=2)
    assert made == change
    assert target_of(made, GROUPS, LOAD, GROUPS) == target != GROUPS


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({"trigger": "shuffle", "then": "back,zipf:2"}, [Shuffle(64), Back(), BalanceZipf(2.0, 2)]),
        ({"trigger": "zipf", "then": "shuffle,shuffle:3"}, [BalanceZipf(2.0), Shuffle(64), Shuffle(64, 3)]),
        (
            {"trigger": "shuffle", "affected_slots": 2, "then": "zipf, back"},
            [Shuffle(64, 2), BalanceZipf(2.0, 2), Back()],
        ),
        ({"then": "balance,3,map", "moves": "0:1"}, [ScaleTo(4), Balance(), ScaleTo(3), Map({0: 1}, 2)]),
        ({"trigger": "auto"}, []),
    ],
)
def test_changes_that_follow_each_other_are_of_any_kind_and_each_is_a_migration(given, changes):
    part = ScenarioPart(trigger_s=2.0, gap_s=5.0, **given)
    assert part.changes(skew=2.0, slots=2) == changes
    expected = [At(2.0 + 5.0 * number, Migrate(change)) for number, change in enumerate(changes)]
    assert part.actions(changes) == expected


def test_back_is_where_everything_was_before_the_first_change():
    shuffled = Assignment(Version(7), targets.shuffle(GROUPS, 3).owner)
    assert target_of(Back(), shuffled, LOAD, GROUPS) == Assignment(Version(7), GROUPS.owner)
