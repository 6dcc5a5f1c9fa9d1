"""What is sent arrives and is acknowledged, what is asked for comes."""

import gc
import threading
import weakref

import pyarrow.flight as flight
import pytest
from small_flight import SCHEMA, content, hold_up, push, rest, state, value, values

from keyshift.model.errors import ServiceUnavailable
from keyshift.state import rows
from keyshift.state.timers import EVENT
from keyshift.waiting import wait_until
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import CopyDropped, KeysDropped, OfStep, Opened, Shipment, Taken, Wanted
from keyshift.worker.flight.server import StateServer

# -- units -------------------------------------------------------------------------------------------------------------


def test_pushed_units_arrive_whole_and_each_is_acknowledged(holder, server, clients):
    shipments = [Shipment(3, 2, 1, state=state(*range(20))), Shipment(4, state=state()), Shipment(5, state=state(99))]
    acknowledged, sizes = push(clients, server, *shipments)
    assert list(acknowledged.items()) == [(3, True), (4, True), (5, True)]
    assert sizes[3] > sizes[5] > sizes[4] == 0
    assert [slot for slot, _ in holder.shipments] == [2, 2, 2]
    assert [content(shipment.batches) for _, shipment in holder.shipments] == [values(*range(20)), {}, values(99)]
    assert len(holder.shipments[0][1].batches) > 5, "in parts of about the size that was asked for"


def test_what_is_said_of_a_unit_arrives_with_it(holder, server, clients):
    push(
        clients,
        server,
        Shipment(3, 7, 2, routers=frozenset({0, 2}), state=state(1)),
        Shipment(4, 7, 1, routers=frozenset(), state=state(1)),
        Shipment(5, 8, 1, partial=True, state=state(1, 2)),
    )
    lent, returned, partial = (shipment for _, shipment in holder.shipments)
    assert (lent.unit, lent.version, lent.hop, lent.routers, lent.partial) == (3, 7, 2, frozenset({0, 2}), False)
    assert returned.routers == frozenset(), "not the same as none"
    assert partial.partial and partial.home == "here:1" and partial.routers is None
    assert content(partial.batches) == {}, "its keys stay"


def test_connections_that_are_cut_break_what_is_under_way_and_the_next_call_connects_anew(holder, server, clients):
    push(clients, server, Shipment(3, state=state(1)))
    acknowledged = []

    def cut(shipment, size):
        clients.cut("127.0.0.1:1")

    with pytest.raises(ServiceUnavailable):
        clients.push(server.address, 2, "here:1", [Shipment(4, state=state(*range(20)))], cut, acknowledged.append)
    assert not any(acknowledged)
    assert wait_until(lambda: pushed_again(clients, server), 60)
    assert holder.shipments[-1][1].unit == 4


def pushed_again(clients, server):
    """Whether it goes now: a client hears of its connection's end a moment later."""
    try:
        return push(clients, server, Shipment(4, state=state(*range(20))))[0] == {4: True}
    except ServiceUnavailable:
        return False


def test_a_proxy_that_the_environment_names_is_not_asked(holder, server, clients, monkeypatch):
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert push(clients, server, Shipment(3, state=state(1)))[0] == {3: True}


def test_small_units_travel_together_with_their_timers_even_if_their_keys_stay(holder, server, roomy):
    states = [state(*range(unit)) for unit in range(12)]
    for unit in range(0, 12, 2):
        states[unit].timers.set(EVENT, 100 + unit, unit)
        states[unit].timers.reach(10 + unit, 7)
    holder.refuses = {7}
    answers, order, sizes = [], [], []
    shipments = [Shipment(20 + unit, 3, 1, partial=unit == 4, state=each) for unit, each in enumerate(states)]
    roomy.push(
        server.address,
        2,
        "here:1",
        shipments,
        lambda shipment, size: order.append(shipment.unit) or sizes.append(size),
        answers.append,
    )
    assert holder.together == [list(range(20, 32))], "in one call"
    assert answers == [[(unit, unit != 7) for unit in range(20, 32)]], "and acknowledged in one"
    assert order == list(range(20, 32))
    assert sizes[0] == sizes[4] == 0 and sizes[6:] == sorted(sizes[6:]) and sizes[6] > 600
    for unit, (_, shipment) in enumerate(holder.shipments):
        expected = range(unit) if unit != 4 else ()
        assert content(shipment.batches) == values(*expected)
        assert (shipment.unit, shipment.version, shipment.hop, shipment.partial) == (20 + unit, 3, 1, unit == 4)
        there = state()
        there.timers.install(shipment.timers)
        assert (there.timers.watermark, there.timers.clock) == ((0, 0) if unit % 2 else (10 + unit, 7))
        assert there.timers.due(EVENT, 200) == ([] if unit % 2 else [(100 + unit, unit)])


def test_units_that_have_arrived_together_leave_again_one_by_one(holder, server, roomy, clients):
    push(roomy, server, *(Shipment(unit, state=state(unit, 50 + unit)) for unit in range(5)))
    installed = []
    for _, shipment in holder.shipments:
        there = state()
        there.install(shipment.batches)
        installed.append(there)
    holder.shipments.clear()
    push(clients, server, *(Shipment(unit, state=each) for unit, each in enumerate(installed)))
    assert [content(each.batches) for _, each in holder.shipments] == [values(unit, 50 + unit) for unit in range(5)]


def test_a_delta_sends_the_changed_keys_and_names_the_deleted_ones(holder, server, clients):
    changed = frozenset({2, 3, 77})
    acknowledged, sizes = push(clients, server, Shipment(3, delta_of=(88, 4), changed=changed, state=state(*range(20))))
    assert acknowledged == {3: True}
    (_, shipment) = holder.shipments[0]
    assert content(shipment.batches) == values(2, 3)
    assert shipment.deleted == (77,) and shipment.delta_of == (88, 4)
    assert 200 < sizes[3] < 400, "two of twenty keys"


def test_units_are_taken_one_after_the_other_while_earlier_ones_arrive(holder, server, clients):
    """So that what somebody waits for can still be put first: the shipments are a queue, not a list."""
    first_is_there, done = threading.Event(), []

    def receive(slot, shipments):
        first_is_there.set()
        return [True] * len(shipments)

    def shipments():
        for unit in range(50):
            if unit == 40:
                assert first_is_there.wait(60)
            yield Shipment(unit, state=state(*range(20)))

    holder.receive = receive
    clients.push(server.address, 2, "here:1", shipments(), lambda *_: None, done.extend)
    assert done == [(unit, True) for unit in range(50)]


def test_pulled_units_stay_where_they_were_as_nobody_knows_yet_that_they_came_and_one_that_is_not_there_is_named(
    holder, server, clients
):
    holder.left[1, 7].timers.set(EVENT, 50, 1)
    got = {}
    clients.pull(server.address, 1, [7, 8], lambda some: got.update((shipment.unit, shipment) for shipment in some))
    assert {unit: content(shipment.batches) for unit, shipment in got.items()} == {7: values(1, 2), 8: {}}
    made = state()
    made.timers.install(got[7].timers)
    assert made.timers.due(EVENT, 50) == [(50, 1)]
    assert (got[7].version, got[7].hop, got[7].routers) == (0, 0, None)
    assert holder.left.keys() == {(1, 7), (1, 8)}
    with pytest.raises(ServiceUnavailable, match="unit 9 of slot 1 is not here"):
        clients.pull(server.address, 1, [9], lambda *_: None)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_single_keys_of_several_units_come_in_one_call_and_stay_until_it_is_said_that_they_have_moved(
    holder, server, clients
):
    answer = clients.keys(server.address, [(4, 9, [3, 5, 99]), (5, 9, [3]), (6, 9, [1]), (4, 9, [1])])
    assert answer.found == [[(3, value(3)), (5, value(5))], [], [], [(1, value(1))]]
    assert answer.nbytes > 3 * 8 and answer.written_bytes == 0
    assert len(holder.lent[4, 9]) == 20
    answer = clients.keys(server.address, [(4, 9, [3, 6])], moved=[(4, 9, [3, 5])])
    assert answer.found == [[(6, value(6))]], "those that have moved go before others are given"
    assert len(holder.lent[4, 9]) == 18


def test_requests_for_keys_share_a_stream_until_it_breaks(holder, server, clients, monkeypatch):
    opened = []
    do_exchange = StateServer.do_exchange
    monkeypatch.setattr(StateServer, "do_exchange", lambda self, *a: opened.append(1) or do_exchange(self, *a))
    for _ in range(3):
        assert clients.keys(server.address, [(4, 9, [3])]).found == [[(3, value(3))]]
    assert len(opened) == 1
    holder.keys, works = None, holder.keys
    with pytest.raises(ServiceUnavailable):
        clients.keys(server.address, [(4, 9, [3])])
    holder.keys = works
    for _ in range(3):
        assert clients.keys(server.address, [(4, 9, [3])]).found == [[(3, value(3))]]
    assert len(opened) == 2


def test_at_the_end_nothing_stays_open_and_nothing_is_asked_any_more(server, clients, monkeypatch):
    """Or the other side waits for it when it wants to end."""
    ended, do_exchange = threading.Event(), StateServer.do_exchange

    def noted(self, *arguments):
        try:
            do_exchange(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(StateServer, "do_exchange", noted)
    clients.keys(server.address, [(4, 9, [3])])
    assert not ended.is_set()
    clients.close()
    assert ended.wait(60)
    with pytest.raises(ServiceUnavailable, match="not called any more"):
        clients.keys(server.address, [(4, 9, [3])])


def test_a_request_for_keys_that_is_open_at_the_end_is_given_up(holder, server, clients):
    door = hold_up(holder, "keys")
    threading.Timer(0.1, clients.close).start()
    with pytest.raises(ServiceUnavailable):
        clients.keys(server.address, [(4, 9, [3])])
    door.set()


def test_the_rest_of_units_comes_in_parts_ascending_marked_with_its_unit_and_what_has_come_not_again(
    holder, server, clients
):
    got = rest(clients, server, ((4, 9), None), ((5, 9), None))
    assert got == [*((4, 9, key, False) for key in range(20)), (4, 9, None, True), (5, 9, None, True)]
    assert [key for *_, key, _ in rest(clients, server, ((4, 9), 16))] == [17, 18, 19, None]
    plain = holder.rest

    def breaks(stay, after):
        for number, batch in enumerate(plain(stay, after)):
            if number == 7:
                raise RuntimeError("the line breaks")
            yield batch

    holder.rest = breaks
    keys = [key for *_, key, _ in rest(clients, server, ((4, 9), None))]
    assert 0 < len(keys) <= 7 and keys == list(range(len(keys)))


def test_keys_that_were_used_elsewhere_come_back_and_are_there_before_others_are_given(holder, server, clients):
    new = [(3, (1, b"new")), (88, (2, b"newer"))]
    written = [((4, 9), [5], new), ((5, 9), [1], []), ((4, 9), [6], [(88, (3, b"newest"))])]
    answer = clients.keys(server.address, [(4, 9, [3, 5, 88])], written=written)
    assert answer.found == [[(3, (1, b"new")), (88, (3, b"newest"))]]
    assert answer.written_bytes > len(b"new newer newest")
    assert holder.lent[4, 9].values[3] == (1, b"new") and holder.lent[4, 9].values[88] == (3, b"newest")
    assert holder.lent[4, 9].values[5] is None and holder.lent[4, 9].values[6] is None
    assert len(holder.lent[5, 9]) == 0


def test_each_request_has_a_greater_number_so_that_one_that_was_given_up_is_known(holder, server, clients):
    for number in range(3):
        clients.keys(server.address, [(4, 9, [1])])
        clients.keys(server.address, [], written=[((4, 9), [], [(3, (number, b"new"))])])
    assert holder.numbers == sorted(set(holder.numbers)) and len(holder.numbers) == 3


# -- copies and messages -----------------------------------------------------------------------------------------------


def test_parts_of_a_copy_arrive_with_their_number_and_the_keys_that_are_gone(holder, server, clients):
    clients.copy(server.address, 2, 4, (88, 0), list(state(*range(20)).export(150)), [])
    clients.copy(server.address, 2, 4, (88, 1), [rows.pack(SCHEMA, [(3, (1, b"new"))])], [5])
    clients.copy(server.address, 2, 4, (88, 2), [], [6])
    assert holder.copies == [
        (2, 4, (88, 0), values(*range(20)), []),
        (2, 4, (88, 1), {3: (1, b"new")}, [5]),
        (2, 4, (88, 2), {}, [6]),
    ]


def test_a_message_has_arrived_when_the_call_returns(holder, server, clients):
    said = [
        OfStep(2, (Wanted(4, 9, 1, 0),), (Opened(3, 9),)),
        Taken(1, (4, 5)),
        CopyDropped(1, 3, 88),
        KeysDropped(((4, 9),)),
    ]
    for message in said:
        clients.tell(server.address, message)
    assert holder.messages == said


def test_a_connection_that_is_in_use_outlives_the_end_and_one_that_is_not_goes(monkeypatch):
    """Flight crashes the process if a client is closed while another thread begins a call."""
    telling, over, made = threading.Event(), threading.Event(), []

    class Client:
        def __init__(self, address, **options):
            made.append(weakref.ref(self))

        def do_action(self, action, options):
            telling.set()
            over.wait()
            return []

        def close(self):
            pytest.fail("somebody may use it")

    monkeypatch.setattr(flight, "FlightClient", Client)
    clients = StateClients("secret", 1.0, SCHEMA, 150)
    teller = threading.Thread(target=clients.tell, args=("here:1", KeysDropped()), daemon=True)
    teller.start()
    telling.wait()
    clients.close()
    assert made[0]() is not None
    over.set()
    teller.join()
    del teller
    gc.collect()
    assert made[0]() is None
