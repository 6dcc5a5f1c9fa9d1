"""The real services, started on first use and shared by all integration tests.

A stack of their own: in a temporary folder and on other ports, so that they neither need nor disturb the user's. Jars
and the MinIO program come from the user's cache.
"""

import logging
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from keyshift.endpoints import Endpoints
from keyshift.executor.zookeeper import Coordination
from keyshift.lab.run import Lab
from keyshift.services.jars import jars
from keyshift.services.stack import DEFAULT_PORTS, Stack


@pytest.fixture(scope="session")
def session_stack(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Stack]:
    """The shared stack itself, one for each worker of pytest; a test may ask it, but not stop it."""
    first = 10_000 + 500 * int(worker_id.removeprefix("gw") if worker_id != "master" else 0)
    ports = {name: port + first for name, port in DEFAULT_PORTS.items()}
    shared = Stack(tmp_path_factory.mktemp("stack"), ports)
    try:
        shared.up(lambda line: logging.getLogger(__name__).info(line))
        yield shared
    finally:
        shared.down()


@pytest.fixture(scope="session")
def stack(session_stack: Stack) -> Endpoints:
    """Where the shared services are. Use a topic, a root path and an object prefix of your own."""
    return session_stack.endpoints()


@pytest.fixture(scope="module")
def lab(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab on them, for runs of up to six routers and slots; the runs of a file share its Spark session."""
    with Lab(stack, jars("spark"), tmp_path_factory.mktemp("lab"), cores=6, say=lambda line: None) as lab:
        yield lab


@pytest.fixture
def expire() -> Callable[[Coordination], None]:
    """Ends somebody's session, as ZooKeeper does after a long pause; returns when he has another one."""

    def end(coordination: Coordination) -> None:
        client, deadline = coordination._client, time.monotonic() + 60
        ended = None
        while ended is None or client.client_id in (None, ended):
            assert time.monotonic() < deadline
            if session := client.client_id:  # again if its owner was quicker than its twin
                ended = session
                twin = KazooClient(hosts=coordination._hosts, client_id=session)
                twin.start()
                twin.stop()
                twin.close()
            time.sleep(0.02)

    return end
