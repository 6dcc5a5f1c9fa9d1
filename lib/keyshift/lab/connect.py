"""The front door for notebooks and the command line: services, jars and Spark, opened together and closed together."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from keyshift.endpoints import Endpoints
from keyshift.errors import service_errors
from keyshift.lab.run import Lab
from keyshift.lab.spec import RunSpec
from keyshift.place.profile import load_profile
from keyshift.progress import Say, progress, tell
from keyshift.services.jars import jars, require_java
from keyshift.services.stack import Stack
from keyshift.state import backends

ANSWER_S = 5.0


@contextmanager
def open_services(profile: str | None = None, say: Say = tell) -> Iterator[Endpoints]:
    """The services of a profile (see ``load_profile``); embedded ones that were down are stopped again at the end.

    Raises BadInput for a profile that is not right, ServiceUnavailable for a service that cannot be reached.
    """
    place = load_profile(profile)
    if place.services != "embedded":
        yield _reached(place.endpoints())
        return
    stack = Stack()
    mine = not stack.running()
    try:
        yield stack.up(say)
    finally:
        if mine:
            stack.down(say=say)


def _reached(endpoints: Endpoints) -> Endpoints:
    for name in ("kafka", "zookeeper", "minio"):
        _reach(name, getattr(endpoints, name))
    return endpoints


def _reach(name: str, address: str) -> None:
    host, port = address.rsplit(":", 1)
    with service_errors((OSError, OverflowError), lambda error: f"{name} at {address} cannot be reached: {error}"):
        socket.create_connection((host, int(port)), ANSWER_S).close()


@contextmanager
def open_lab(specs: list[RunSpec], profile: str | None = None, say: Say | None = None) -> Iterator[Lab]:
    """A lab in which each of ``specs`` can run; without ``say``, its progress is shown by ``progress``.

    Raises KeyshiftError before anything is started if Java is missing, the profile is not right, or a run does not fit
    into it.
    """
    place, cores = load_profile(profile), max(spec.cores for spec in specs)
    place.require_cores(cores)
    require_java()
    for spec in specs:
        backend = backends.get(spec.backend.name)
        backend.require(backend.settings(**spec.backend.settings), not place.spark.on_kubernetes)
    with (
        progress(say) as shown,
        open_services(profile, shown) as endpoints,
        Lab(endpoints, jars("spark", shown), Stack().home, cores, shown, place.spark) as lab,
    ):
        yield lab
