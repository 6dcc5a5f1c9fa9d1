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
def clients():
    clients = StateClients("secret", 10.0, SCHEMA, 150)
    yield clients
    clients.close()


@pytest.fixture
def roomy():
    """Clients whose chunks have room for many units."""
    clients = StateClients("secret", 10.0, SCHEMA, 4 << 20)
    yield clients
    clients.close()


@pytest.fixture
def hasty():
    """Clients for which a second is a long time."""
    clients = StateClients("secret", 1.0, SCHEMA, 150)
    yield clients
    clients.close()
