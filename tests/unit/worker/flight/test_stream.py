"""Streams that are long, that break, and that are silent."""

import itertools
import time
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from small_flight import CALLS, SCHEMA, VALUE, Slow, Wire, content, hold_up, push, rest, state, values

from keyshift.model.errors import ServiceUnavailable
from keyshift.state import rows
from keyshift.state.rocksdb import RocksSettings, open_store
from keyshift.worker.flight import client, stream
from keyshift.worker.flight.messages import Shipment
from keyshift.worker.flight.stream import Stream


@pytest.fixture
def passes(monkeypatch):
    """Lets a tenth of a second pass for clients, whose time stands still otherwise, as while the machine does."""
    now = 0.0

    def passes():
        nonlocal now
        time.sleep(0.05)
        now += 0.1

    for module in (client, stream):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    return passes


def test_units_that_take_longer_than_the_deadline_arrive(holder, server, hasty, passes):
    whole, pulled = values(*range(20)), []
    assert push(hasty, server, Shipment(3, state=Slow(state(*range(20)), passes)))[0] == {3: True}
    holder.left[1, 7] = Slow(state(*range(20)), passes)
    hasty.pull(server.address, 1, [7], pulled.extend)
    assert [content(shipment.batches) for shipment in (holder.shipments[0][1], *pulled)] == [whole, whole]
    plain = holder.rest
    holder.rest = lambda *arguments: (passes() or batch for batch in plain(*arguments))
    got = rest(hasty, server, ((4, 9), None), ((5, 9), None))
    assert len(got) == 22 and got[-1] == (5, 9, None, True)


@pytest.mark.parametrize("method", ["receive", "sealed", "rest", "keys", "write", "copy"])
def test_silence_ends_a_stream(method, holder, server, hasty):
    door = hold_up(holder, method)
    call = {"receive": "push", "sealed": "pull"}.get(method, method)
    with pytest.raises(ServiceUnavailable, match="silent for 1 s"):
        CALLS[call](hasty, server.address)
    door.set()


def test_a_unit_goes_on_where_its_stream_broke(holder, server, clients, monkeypatch):
    wire = Wire(monkeypatch, 8, 15)
    shipments = [Shipment(3, 2, 1, state=state(*range(20))), Shipment(4, state=state(99))]
    for _ in range(2):
        with pytest.raises(ServiceUnavailable, match="the line breaks"):
            push(clients, server, *shipments)
        assert not holder.shipments
    acknowledged, sizes = push(clients, server, *shipments)
    assert acknowledged == {3: True, 4: True}
    assert [content(shipment.batches) for _, shipment in holder.shipments] == [values(*range(20)), values(99)]
    assert sizes[3] > 20 * 100, "of all of it"
    assert wire.rows == 21, "none came twice"
    push(clients, server, *shipments)
    assert wire.rows == 42, "and none is kept"


@pytest.mark.parametrize("way", ["pushed", "pulled"])
def test_so_does_one_whose_store_writes_before_the_next_stream(way, holder, server, clients, monkeypatch, tmp_path):
    """What its table does not have yet is old when the unit leaves, and would be due before it goes on."""
    settings, came, numbers = RocksSettings(state_folder=str(tmp_path), state_cache_mib=1), [], itertools.count()
    with closing(open_store("job/0/stage/0", VALUE, settings)) as store:
        leaving, staying = store.unit(3), store.unit(4)

        def work(state, keys, size):
            store.load([(state, keys)])
            for key in keys:
                state.values[key] = key, bytes(size)

        def send():
            if way == "pushed":
                push(clients, server, Shipment(3, 2, 1, state=leaving))
                came.extend(content(shipment.batches) for _, shipment in holder.shipments)
            else:
                clients.pull(server.address, 1, [3], lambda some: came.extend(content(each.batches) for each in some))

        keys = [number * 7919 % 100_003 for number in range(300)]  # not in the order of the table
        work(leaving, keys, 100)
        while not leaving.values.old:
            work(staying, [next(numbers)], 50_000)
        holder.left[1, 3], wire = leaving, Wire(monkeypatch, 100)
        with pytest.raises(ServiceUnavailable, match="the line breaks"):
            send()
        for _ in range(40):
            work(staying, [next(numbers)], 50_000)
        send()
        assert came == [{key: (key, bytes(100)) for key in keys}]
        assert wire.rows == 300, "none came twice"


def test_a_unit_that_could_not_be_installed_comes_again_without_its_parts(holder, server, clients, monkeypatch):
    wire = Wire(monkeypatch)
    holder.receive, plain = Mock(side_effect=RuntimeError("the disk is full")), holder.receive
    with pytest.raises(ServiceUnavailable, match="the disk is full"):
        push(clients, server, Shipment(3, state=state(*range(20))))
    holder.receive = plain
    assert push(clients, server, Shipment(3, state=state(*range(20))))[0] == {3: True}
    assert content(holder.shipments[0][1].batches) == values(*range(20))
    assert 20 < wire.rows < 24, "the last part"


@pytest.mark.parametrize("fails", [False, True])
def test_nobody_reads_while_the_end_of_writing_is_said(fails, holder, server, clients, monkeypatch):
    """Flight ends the process if the reader learns at that moment that the call has failed."""
    reading, found = [], []
    plain_read, plain_done = Stream.read, Stream.done_writing

    def read(stream):
        reading.append(stream)
        try:
            return plain_read(stream)
        finally:
            reading.remove(stream)

    def done_writing(stream):
        time.sleep(0.05)  # for a reader to come, if there is one
        found.append(len(reading))
        plain_done(stream)

    monkeypatch.setattr(Stream, "read", read)
    monkeypatch.setattr(Stream, "done_writing", done_writing)
    if fails:
        holder.receive = lambda *_: 1 / 0
        with pytest.raises(ServiceUnavailable, match="division by zero"):
            push(clients, server, Shipment(3, state=state(*range(20))))
        assert found == [], "the call is over"
    else:
        assert push(clients, server, Shipment(3, state=state(*range(20))))[0] == {3: True}
        assert found == [0]


def test_parts_of_another_journey_of_the_same_unit_do_not_count(holder, server, clients, monkeypatch):
    wire, first = Wire(monkeypatch, 8), Shipment(3, 2, 1, state=state(*range(20)))
    with pytest.raises(ServiceUnavailable, match="the line breaks"):
        push(clients, server, first)
    push(clients, server, Shipment(3, 2, 3, state=state(*range(30, 50))))
    assert content(holder.shipments[0][1].batches) == values(*range(30, 50))
    wire.rows = 0
    push(clients, server, first)
    assert wire.rows == 20, "they are not kept"


def test_what_is_pulled_goes_on_where_its_stream_broke(holder, server, clients, monkeypatch):
    holder.left[1, 7] = Slow(state(*range(20)), breaks_at=[6, 13])
    got, wire = [], Wire(monkeypatch)
    for _ in range(2):
        with pytest.raises(ServiceUnavailable, match="the line breaks"):
            clients.pull(server.address, 1, [7, 8], got.extend)
        assert not got and holder.left
    clients.pull(server.address, 1, [7, 8], got.extend)
    assert [(shipment.unit, content(shipment.batches)) for shipment in got] == [(7, values(*range(20))), (8, {})]
    assert wire.rows == 20, "none came twice"


def test_a_copy_begins_anew_if_its_stream_broke_for_it_may_have_changed(holder, server, clients, monkeypatch):
    Wire(monkeypatch, 8)
    with pytest.raises(ServiceUnavailable, match="the line breaks"):
        clients.copy(server.address, 2, 4, (1, 0), list(state(*range(20)).export(150)), [])
    newer = [rows.pack(SCHEMA, [(key, (7, b""))]) for key in range(20)]
    clients.copy(server.address, 2, 4, (2, 0), newer, [])
    assert holder.copies == [(2, 4, (2, 0), dict.fromkeys(range(20), (7, b"")), [])]


def test_nothing_is_acknowledged_after_the_call(holder, server, clients):
    """What a stream says later might be taken for what the next one says of the same unit."""
    door, answers = hold_up(holder, "receive"), []
    breaks = [Shipment(3, state=state(*range(20))), Shipment(4, state=Slow(state(*range(20)), breaks_at=[3]))]
    with pytest.raises(ServiceUnavailable, match="the line breaks"):
        clients.push(server.address, 2, "here:1", breaks, lambda *_: None, answers.extend)
    before = list(answers)
    door.set()
    time.sleep(0.1)
    assert answers == before
