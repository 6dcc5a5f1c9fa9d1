"""What is said of very many units takes few bytes, and is what it was when it comes."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.model.keys import Assignment, Move, SlotId, Step, UnitId, Version
from keyshift.model.messages import decode, encode
from keyshift.model.packed import MANY, Packed, pack, unpack
from keyshift.model.records import UnitCame, UnitsCame
from keyshift.wire.nodes import STEPS, PublishedSteps

NUMBERS = st.integers(-(2**63), 2**63 - 1)


class Row(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True)
class Told:
    rows: Annotated[tuple[Row, ...], Packed(Row)]


@given(st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_all_numbers_come_back(rows):
    assert list(zip(*unpack(pack(rows, 2), 2), strict=True)) == rows


def test_few_are_a_list_that_people_can_read_and_many_are_read_as_one_too():
    assert encode(Told((Row(1, 2), Row(3, 4)))) == b'{"rows":[[1,2],[3,4]]}'
    rows = [[number, number] for number in range(MANY)]
    assert len(decode(Told, encode({"rows": rows})).rows) == MANY


@pytest.mark.parametrize("many", [0, 1, MANY - 1, MANY, MANY + 1])
def test_rows_come_back_with_their_type(many):
    told = Told(tuple(Row(number, -number) for number in range(many)))
    came = decode(Told, encode(told))
    assert came == told
    assert all(type(row) is Row for row in came.rows)


@pytest.mark.parametrize("text", ["?", "AAAA", pack([(1, 2, 3)], 3)])
def test_what_is_no_packed_numbers_is_refused(text):
    with pytest.raises(ValidationError):
        decode(Told, encode({"rows": text}))


UNITS = 1 << 16
HALF = tuple(Move(UnitId(unit), SlotId(unit % 2), SlotId(2 + unit % 2)) for unit in range(0, UNITS, 2))


def test_a_step_of_many_units_is_far_below_what_a_node_takes():
    told = PublishedSteps(Version(2), ((Version(2), Step(HALF)),), 0, "plan")
    data = STEPS.encode(told)
    assert len(data) < 16 << 10
    assert STEPS.decode(data) == told


@pytest.mark.parametrize(
    "told",
    [
        Assignment(Version(3), tuple(SlotId(unit * 4 // UNITS) for unit in range(UNITS))),
        UnitsCame(tuple(UnitCame(unit, 1_700_000_000_000_000 + unit // 7, unit) for unit in range(UNITS)), 1, 2),
    ],
    ids=lambda told: type(told).__name__,
)
def test_an_assignment_and_an_acknowledgement_of_many_units_take_less_than_a_byte_for_each(told):
    assert len(encode(told)) < UNITS
    assert decode(type(told), encode(told)) == told
