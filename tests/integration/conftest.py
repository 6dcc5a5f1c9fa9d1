"""What tests with the real services share."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from keyshift.endpoints import Endpoints
from keyshift.lab.run import Lab
from keyshift.services.stack import Stack
from keyshift.wire import client, election, session
from shared_lab import SharedLab

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for small_store


@pytest.fixture(scope="session")
def stack(session_stack: Stack) -> Endpoints:
    """Where the shared services are. Use a topic, a root path and an object prefix of your own."""
    return session_stack.endpoints()


@pytest.fixture(scope="session")
def shared_lab(session_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLab]:
    with contextlib.closing(SharedLab(session_stack, tmp_path_factory.mktemp("lab"))) as shared:
        yield shared


@pytest.fixture
def lab(shared_lab: SharedLab) -> Lab:
    """The lab of all files."""
    return shared_lab.open()


@pytest.fixture
def no_other_spark(shared_lab: SharedLab) -> None:
    """For a test that starts a Spark of its own."""
    shared_lab.close()


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[KazooClient]:
    """The clients of all sessions with ZooKeeper that were begun, in their order."""
    begin, clients = client.begin, list[KazooClient]()

    def seen(*given: Any) -> tuple[KazooClient, threading.Event]:
        begun = begin(*given)
        clients.append(begun[0])
        return begun

    for module in (election, session):
        monkeypatch.setattr(module, "begin", seen)
    return clients


@pytest.fixture
def expire() -> Callable[[KazooClient], None]:
    """Ends a session, as ZooKeeper does after a long pause; returns when its client has another one."""

    def end(client: KazooClient) -> None:
        deadline = time.monotonic() + 60
        hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
        ended = None
        while ended is None or client.client_id in (None, ended):
            assert time.monotonic() < deadline
            if session := client.client_id:  # again if its owner was quicker than its twin
                ended = session
                twin = KazooClient(hosts=hosts, client_id=session)
                twin.start()
                twin.stop()
                twin.close()
            time.sleep(0.02)

    return end
