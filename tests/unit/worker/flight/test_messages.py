"""Units are cut into fragments and put together again; what is missing is noticed."""

from types import SimpleNamespace

import pytest
from small_flight import SCHEMA, content, state, value, values

from keyshift.model.errors import ServiceUnavailable
from keyshift.state import rows
from keyshift.worker.flight import messages
from keyshift.worker.flight.messages import Fragment, Label, chunks, fragments, pack, units


def received(sent):
    return [SimpleNamespace(data=data, app_metadata=metadata) for data, metadata in sent]


CHUNKS = {1: 24, 150: 23, 1000: 3, 1 << 20: 1}  # how many there are, by the most that share one


@pytest.mark.parametrize("most", CHUNKS)
def test_units_come_back_whole_in_their_order_however_they_are_cut(most, monkeypatch):
    monkeypatch.setattr(messages, "SHARED_BYTES", most)
    states = {unit: state(*range(unit)) for unit in (0, 1, 20, 2)}
    sent = (part for unit, each in states.items() for part in fragments(Label(unit), each.export(150), SCHEMA))
    together = list(units(received(chunks(sent, 1 << 20)), {}))
    assert len(together) == CHUNKS[most]
    came = [unit for some in together for unit in some]
    assert [label.unit for label, *_ in came] == [0, 1, 20, 2]
    assert [content(batches) for _, batches, _ in came] == [values(*range(n)) for n in (0, 1, 20, 2)]


def test_no_more_units_share_a_chunk_than_a_slot_takes_in_at_once(monkeypatch):
    monkeypatch.setattr(messages, "SHARED_UNITS", 3)
    sent = (part for unit in range(8) for part in fragments(Label(unit), state(unit).export(150), SCHEMA))
    together = list(units(received(chunks(sent, 1 << 20)), {}))
    assert [[label.unit for label, *_ in some] for some in together] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_the_same_state_is_always_cut_in_the_same_fragments():
    made = [fragments(Label(3), state(*range(20)).export(150), SCHEMA) for _ in range(2)]
    once, again = ([each.batch for each in some] for some in made)
    assert len(once) > 5 and once == again


def test_a_journey_has_one_name_in_whatever_order_its_routers_were_noted():
    one, other = Label(3, routers=frozenset((0, 8))), Label(3, routers=frozenset((8, 0)))
    assert list(one.routers) != list(other.routers) and one.journey == other.journey


def test_a_unit_that_misses_fragments_is_refused():
    """As if what has come were in a process that is gone."""
    fragment = Fragment(rows.pack(SCHEMA, [(3, value(3))]), Label(3), number=2, last=True)
    data, metadata = pack([fragment])
    chunk = SimpleNamespace(data=data, app_metadata=metadata)
    with pytest.raises(ServiceUnavailable, match="fragment 2 of a unit came behind 1 others"):
        list(units([chunk], {3: (Label(3).journey, [data])}))
