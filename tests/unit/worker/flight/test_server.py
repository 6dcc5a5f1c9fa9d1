"""Strangers get nothing, state of another shape is refused, and trouble at one side is trouble at the other."""

from unittest.mock import Mock

import pyarrow as pa
import pytest
from small_flight import CALLS, content, push, state, value, values

from certificate import CERTIFICATE, KEY
from keyshift.model.errors import ServiceUnavailable
from keyshift.state.memory import MemoryState
from keyshift.wire.config import Certificate
from keyshift.worker.flight.messages import KeysDropped, Shipment
from keyshift.worker.flight.server import StateServer


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_the_token_of_the_job_nothing_is_given_or_taken(call, holder, server, connect):
    with pytest.raises(ServiceUnavailable, match="token"):
        call(connect("guess"), server.address)
    assert not holder.shipments and not holder.copies and not holder.messages
    assert (1, 7) in holder.left
    assert len(holder.lent[4, 9]) == 20 and holder.lent[4, 9].values[3] == value(3)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_place_where_nobody_listens_is_named(call, server, clients):
    address = server.address
    server.shutdown()
    with pytest.raises(ServiceUnavailable, match=address):
        call(clients, address)


@pytest.mark.parametrize("name", ["push", "keys", "rest", "write", "copy", "tell"])
def test_trouble_at_the_other_side_is_trouble_here(name, holder, server, clients):
    for method in ("receive", "keys", "rest", "forget", "write", "copy", "message"):
        setattr(holder, method, Mock(side_effect=RuntimeError("the disk is full")))
    with pytest.raises(ServiceUnavailable, match="the disk is full"):
        CALLS[name](clients, server.address)


def test_state_of_another_shape_is_refused(holder, server, connect):
    other = pa.schema([pa.field("key", pa.int64()), pa.field("sum", pa.float64())])
    clients = connect(schema=other)
    with pytest.raises(ServiceUnavailable, match="not those of this job"):
        push(clients, server, Shipment(3, state=MemoryState(other.remove(0))))
    with pytest.raises(ServiceUnavailable, match="not those of this job"):
        clients.keys(server.address, [], written=[((4, 9), [], [(3, (1.0,))])])
    assert not holder.shipments and holder.lent[4, 9].values[3] == value(3)


PROOF = Certificate(CERTIFICATE, KEY)


@pytest.fixture
def over_tls(holder):
    server = StateServer(holder, "127.0.0.1", "secret", 150, PROOF)
    yield server
    server.shutdown()


def test_over_tls_state_keys_and_messages_arrive_as_ever(holder, over_tls, connect):
    clients = connect(certificate=PROOF)
    assert push(clients, over_tls, Shipment(4, state=state(1, 2, 3)))[0] == {4: True}
    ((_, shipment),) = holder.shipments
    assert content(shipment.batches) == values(1, 2, 3)
    assert clients.keys(over_tls.address, [(4, 9, [5])]).found == [[(5, value(5))]]
    clients.tell(over_tls.address, KeysDropped())
    assert holder.messages == [KeysDropped()]


def test_nothing_is_told_in_clear_to_a_server_that_wants_tls_nor_to_one_that_cannot_prove_who_it_is(
    holder, server, over_tls, connect
):
    for address, certificate in ((over_tls.address, None), (server.address, PROOF)):
        with pytest.raises(ServiceUnavailable):
            connect(deadline_s=3.0, certificate=certificate).tell(address, KeysDropped())
    assert holder.messages == []
