"""What tests with the real services share."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from keyshift.endpoints import Endpoints
from keyshift.lab.run import Lab
from keyshift.services.jars import jars
from keyshift.services.stack import Stack
from keyshift.wire.coordination import Coordination

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for small_store


@pytest.fixture(scope="session")
def stack(session_stack: Stack) -> Endpoints:
    """Where the shared services are. Use a topic, a root path and an object prefix of your own."""
    return session_stack.endpoints()


@pytest.fixture(scope="module")
def lab(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab on them, for runs of up to six routers and slots; the runs of a file share its Spark session.

    There are cores for two queries: a slow machine still ends the tasks of one that died when the next one begins.
    """
    with Lab(stack, jars("spark"), tmp_path_factory.mktemp("lab"), cores=12, say=lambda line: None) as lab:
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
