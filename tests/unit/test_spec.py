import pytest

from keyshift.errors import BadInput
from keyshift.lab.spec import RunSpec, make_spec, parse_settings


def test_the_defaults_are_a_possible_run():
    spec = make_spec({})
    assert spec.cores == spec.routers + max(spec.slots, spec.to_slots)
    assert spec.start().moves_to(spec.target())


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
        ("fault=oops", "'oops'", "known: none"),
        ("rate", "'rate'", "expected name=value"),
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


def test_settings_are_parsed_by_declared_type():
    assert parse_settings(["rate=5000", "keys=10", "trigger=shuffle"]) == {
        "rate": 5000.0,
        "keys": 10,
        "trigger": "shuffle",
    }


def test_every_parameter_says_what_it_means():
    assert all(field.description for field in RunSpec.model_fields.values())
