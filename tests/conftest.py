"""Settings of pytest for every kind of test, and the services that tests share."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from keyshift.services.stack import Stack

sys.path.insert(0, str(Path(__file__).parent))  # for what several folders share

# No deadlines: tests assert what happens, never how fast, and the machine may be busy.
# dev finds new examples at each run and keeps failing ones in .hypothesis; ci runs the same ones each time, so that a
# change is judged by what it changed; nightly looks longer. A failure prints the line that replays it.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=5000)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts its background jobs with Ctrl-C ignored,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and so would all that tests start and interrupt
os.environ.pop("KEYSHIFT_PROFILE", None)  # a user's services are no place for tests, and many know the default
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if PROFILE != "nightly" else []:
        if marker := item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: `make nightly` has it"))


@pytest.fixture(scope="session")
def session_stack(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator["Stack"]:
    """The real services, started on first use: one set for each worker of pytest. A test may ask it, but not stop it.

    In a temporary folder and on other ports, so that tests neither need nor disturb the user's. Jars and the MinIO
    program come from the user's cache.
    """
    from keyshift.services.stack import DEFAULT_PORTS, Stack
    from own_stack import stopped_with_us

    first = 10_000 + 500 * int(worker_id.removeprefix("gw") if worker_id != "master" else 0)
    ports = {name: port + first for name, port in DEFAULT_PORTS.items()}
    shared = Stack(tmp_path_factory.mktemp("stack"), ports)
    with stopped_with_us(shared):
        shared.up(lambda line: logging.getLogger(__name__).info(line))
        yield shared
