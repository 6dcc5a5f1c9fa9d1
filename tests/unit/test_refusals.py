"""What is said of values that a model refuses."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from keyshift.model.errors import BadInput
from keyshift.refusals import made, refusal


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str = Field(pattern=":", description="host:port")
    size: int = Field(1, ge=1)
    names: dict[str, bool | int] = Field({}, description="counts")


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner | Literal["none"] = Field("none", description="an address, or none")
    points: list[Inner] = Field([], alias="list")
    even: int | None = Field(None, description="a number")
    rates: list[int] = []

    @field_validator("even")
    @classmethod
    def _is_even(cls, value):
        if value % 2:
            raise ValueError("must be even")
        return value

    @model_validator(mode="after")
    def _fits(self):
        if self.even == 8:
            raise ValueError("even = 8: too many")
        return self


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"inner": {}}, "inner.address: field required (host:port)"),
        ({"inner": {"adress": "a:1"}}, "unknown key of inner 'adress': did you mean 'address'? known: address, size"),
        ({"inner": 5}, "inner = 5: input should be a valid dictionary or instance of Inner or input should be 'none'"),
        ({"inner": {"address": "a"}}, "inner.address = 'a': string should match pattern ':' (host:port)"),
        ({"list": [{"address": ":", "size": 0}]}, "list.0.size = 0: input should be greater than or equal to 1"),
        ({"list": [{"address": ":", "names": {"a": "x"}}]}, "list.0.names.a = 'x': input should be a valid boolean"),
        ({"points": []}, "unknown key 'points': known: inner, list, even, rates"),
        ({"even": 3}, "even = 3: must be even"),
        ({"even": "x" * 200}, f"even = '{'x' * 79}: input should be a valid integer"),
        ({"even": 8}, "even = 8: too many"),
        ([], "[]: input should be a valid dictionary"),
    ],
)
def test_a_fault_names_the_field_the_value_and_what_is_allowed(raw, said):
    with pytest.raises(ValidationError) as refused:
        Model.model_validate(raw)
    assert refusal(refused.value.errors(), Model).startswith(said)


def test_of_many_faults_the_first_are_told_and_the_others_counted():
    with pytest.raises(ValidationError) as refused:
        Model.model_validate({"rates": ["a", "b", "c", "d", "e"]})
    told = refusal(refused.value.errors(), Model)
    assert [part.partition(" ")[0] for part in told.split("; ")] == ["rates.0", "rates.1", "rates.2"]
    assert told.endswith("(and 2 more)")


def test_without_a_model_a_fault_still_has_its_place_and_value():
    with pytest.raises(ValidationError) as refused:
        Model.model_validate({"even": "x"})
    assert refusal(refused.value.errors()).startswith("even = 'x': input should be a valid integer")
    assert refusal(refused.value.errors(include_input=False)).startswith("even: input should be a valid integer")


class Choices(BaseModel):
    sure: bool | None = Field(None, description="whether")
    size: int | None = Field(None, description="how much")


def test_a_truth_value_is_taken_where_a_field_may_have_one():
    assert made(Choices, {"sure": True}).sure is True
    with pytest.raises(BadInput, match=r"^size = True: neither a number nor a name \(how much\)"):
        made(Choices, {"size": True})
