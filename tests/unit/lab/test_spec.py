import pytest

from keyshift.errors import BadInput
from keyshift.lab.spec import RunSpec, make_spec, parse_settings
from keyshift.planner import strategies


def test_the_defaults_are_a_possible_run():
    spec = make_spec({})
    assert spec.cores == spec.routers + max(spec.slots, spec.to_slots)
    assert spec.start().moves_to(spec.target(spec.start()))


def test_the_settings_of_a_strategy_can_be_changed_one_by_one():
    assert make_spec({"strategy": "chunked", "size": 3}).point().size == 3
    assert make_spec({"strategy": "meces", "bins": 4}).workload_parameters()["bins"] == 4
    assert make_spec({"strategy": "fluid"}).point() == strategies.get("fluid")


def test_targets_are_whole_key_groups_whatever_the_unit():
    spec = make_spec({"strategy": "meces", "bins": 4, "trigger": "shuffle", "affected": 3, "key_groups": 16})
    moved = {move.unit for move in spec.start().moves_to(spec.target(spec.start()))}
    assert len(spec.start().owner) == 64
    assert moved == {group * 4 + bin_ for group in {unit // 4 for unit in moved} for bin_ in range(4)}
    assert len(moved) == 12


def test_a_map_moves_just_what_it_names():
    spec = make_spec({"trigger": "map", "moves": "0:1,5:1", "slots": 2, "key_groups": 12})
    assert [(m.unit, m.destination) for m in spec.start().moves_to(spec.target(spec.start()))] == [(0, 1), (5, 1)]


def test_load_is_balanced_by_what_was_measured_and_by_zipf_mass():
    measured = make_spec({"trigger": "balance", "slots": 2, "key_groups": 4})
    assert measured.target(measured.start(), heat=[9, 1, 1, 1]).owner[:2] == (0, 1)
    zipf = make_spec({"trigger": "zipf", "skew": 2.0, "slots": 2, "key_groups": 8})
    assert len(zipf.start().moves_to(zipf.target(zipf.start()))) > 0


def test_several_reconfigurations_need_room_for_the_largest():
    spec = make_spec({"slots": 4, "to_slots": 2, "then_slots": "6,3", "gap_s": 2})
    assert spec.reconfigurations == [2, 6, 3]
    assert spec.tasks == 6
    assert set(spec.target(spec.start(), 1).owner) == set(range(6))


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("slots=0", "slots = 0", "greater than or equal to 1"),
        ("rate=-1", "rate = -1", "greater than 0"),
        ("slots=200", "slots = 200", "raise key_groups"),
        ("to_slots=129", "to_slots = 129", "raise key_groups"),
        ("strategy=fluit", "'fluit'", "did you mean 'fluid'"),
        ("workload=keycont", "'keycont'", "did you mean 'keycount'"),
        ("backend=memry", "'memry'", "did you mean 'memory'"),
        ("ratte=1", "'ratte'", "did you mean 'rate'"),
        ("trigger=later", "'later'", "scale, shuffle"),
        ("keys=many", "'many'", "expected int"),
        ("trigger_s=60", "trigger_s = 60", "less than seconds"),
        ("frame_ms=0.1", "frame_ms = 0.1", "raise frame_ms"),
        ("state_bytes=1", "state_bytes = 1", "greater than or equal to 16"),
        ("rate", "'rate'", "expected name=value"),
        ("bins=3", "bins = 3", "power of two"),
        ("size=0", "size = 0", "at least 1"),
        ("order=hotest", "'hotest'", "did you mean 'hottest'"),
        ("unit=bim", "'bim'", "did you mean 'bin'"),
        ("background=maybe", "'maybe'", "true or false"),
        ("fetch_back=2", "fetch_back = 2", "transfer = fetch"),
        ("then_slots=4;8", "'4;8'", "whole numbers"),
        ("then_slots=4,8,6,4", "seconds = 24", "lower gap_s"),
        ("then_slots=500", "then_slots = 500", "raise key_groups"),
    ],
)
def test_an_impossible_parameter_is_refused_with_its_value_and_a_remedy(setting, value, remedy):
    with pytest.raises(BadInput) as refused:
        make_spec(parse_settings([setting]))
    assert value in str(refused.value)
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_shuffle_of_more_groups_than_there_are_is_refused():
    with pytest.raises(BadInput, match="affected = 200"):
        make_spec({"trigger": "shuffle", "affected": 200})


@pytest.mark.parametrize(
    ("moves", "what"), [("", "moves = ''"), ("0-1", "moves = '0-1'"), ("500:0", "500"), ("0:7", "7")]
)
def test_a_map_that_names_what_is_not_there_is_refused(moves, what):
    with pytest.raises(BadInput, match=what):
        make_spec({"trigger": "map", "moves": moves, "slots": 2})


def test_settings_are_parsed_by_declared_type():
    given = ["rate=5000", "keys=10", "trigger=shuffle", "size=4", "cache=true", "order=id"]
    assert parse_settings(given) == {
        "rate": 5000.0,
        "keys": 10,
        "trigger": "shuffle",
        "size": 4,
        "cache": True,
        "order": "id",
    }


def test_every_parameter_says_what_it_means():
    assert all(field.description for field in RunSpec.model_fields.values())
