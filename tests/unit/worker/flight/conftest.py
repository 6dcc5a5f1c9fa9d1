"""A server and its clients in one process."""

import pytest
from small_flight import SCHEMA, Holder, state

from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.server import StateServer


@pytest.fixture
def holder():
    return Holder(sealed={(1, 7): state(1, 2), (1, 8): state()}, lent={(4, 9): state(*range(20)), (5, 9): state()})


@pytest.fixture
def server(holder):
    server = StateServer(holder, "127.0.0.1", "secret", 150)
    yield server
    server.shutdown()


@pytest.fixture
def connect():
    """Makes clients, which are closed in the end."""
    made = []

    def connect(token="secret", deadline_s=10.0, schema=SCHEMA, chunk_bytes=150, certificate=None):
        made.append(StateClients(token, deadline_s, schema, chunk_bytes, certificate))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def clients(connect):
    return connect()


@pytest.fixture
def roomy(connect):
    """Clients whose chunks have room for many units."""
    return connect(chunk_bytes=4 << 20)


@pytest.fixture
def hasty(connect):
    """Clients for which a second is a long time."""
    return connect(deadline_s=1.0)
