import pyarrow as pa
import pytest

from keyshift.errors import ServiceUnavailable
from keyshift.executor.transfer import StateClients, StateServer
from keyshift.state.memory import MemoryState

VALUE = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])
SCHEMA = pa.schema([pa.field("key", pa.int64()), *VALUE])


def state(*keys):
    made = MemoryState(VALUE)
    for key in keys:
        made.put(key, (key * 10, bytes([key]) * 100))
    return made


class Holder:
    """Keeps what arrives, gives what it was made with."""

    state_schema = SCHEMA

    def __init__(self, left=None):
        self.left = left or {}
        self.arrived = {}

    def receive(self, slot, unit, batches, info):
        made = MemoryState(VALUE)
        made.install(batches)
        self.arrived[slot, unit] = made

    def sealed(self, slot, unit):
        return self.left[slot, unit]

    def taken(self, slot, unit):
        del self.left[slot, unit]


@pytest.fixture
def served():
    holder = Holder(left={(1, 7): state(1, 2), (1, 8): state()})
    server = StateServer(holder, "127.0.0.1", "secret", 150)
    clients = StateClients("secret", 10.0)
    yield holder, server, clients
    clients.close()
    server.shutdown()


def test_pushed_units_arrive_whole_and_each_is_acknowledged(served):
    holder, server, clients = served
    sizes, acknowledged = {}, []
    units = [(3, state(*range(20))), (4, state()), (5, state(99))]
    clients.push(server.address, 2, SCHEMA, units, 150, sizes.__setitem__, acknowledged.append)
    assert acknowledged == [3, 4, 5]
    assert sizes[3] > sizes[5] > sizes[4] == 0
    assert {unit: len(made) for (_, unit), made in holder.arrived.items()} == {3: 20, 4: 0, 5: 1}
    assert holder.arrived[2, 3].get(7) == (70, bytes([7]) * 100)


def test_pulled_units_are_dropped_where_they_were(served):
    holder, server, clients = served
    got = {}
    clients.pull(
        server.address, 1, [7, 8], lambda unit, batches: got.__setitem__(unit, sum(b.num_rows for b in batches))
    )
    assert got == {7: 2, 8: 0}
    assert not holder.left


def test_a_unit_that_is_not_there_is_named(served):
    _, server, clients = served
    with pytest.raises(ServiceUnavailable, match="unit 9 of slot 1 is not here"):
        clients.pull(server.address, 1, [9], lambda *_: None)


def test_without_the_token_of_the_job_nothing_is_given_or_taken(served):
    holder, server, _ = served
    stranger = StateClients("guess", 10.0)
    with pytest.raises(ServiceUnavailable, match="token"):
        stranger.pull(server.address, 1, [7], lambda *_: None)
    with pytest.raises(ServiceUnavailable, match="token"):
        stranger.push(server.address, 2, SCHEMA, [(3, state(1))], 150, lambda *_: None, lambda *_: None)
    stranger.close()
    assert not holder.arrived
    assert (1, 7) in holder.left


def test_state_of_another_shape_is_refused(served):
    holder, server, clients = served
    other = pa.schema([pa.field("key", pa.int64()), pa.field("sum", pa.float64())])
    with pytest.raises(ServiceUnavailable, match="not those of this job"):
        clients.push(
            server.address, 2, other, [(3, MemoryState(other.remove(0)))], 150, lambda *_: None, lambda *_: None
        )
    assert not holder.arrived
