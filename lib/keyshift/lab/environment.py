"""The front door for notebooks and the command line: services, jars and Spark, opened together and closed together."""

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import psutil

from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import room
from keyshift.experiment.spec import RunSpec
from keyshift.lab.live.job import LiveJob
from keyshift.lab.load_cost import cost_spec
from keyshift.lab.replicas.room import require_room
from keyshift.lab.run import Lab
from keyshift.lab.service_faults import require_possible
from keyshift.model.errors import BadInput, service_errors
from keyshift.place.profile import load_profile
from keyshift.progress import Say, progress, tell
from keyshift.services.jars import jars, require_java
from keyshift.services.stack import Stack
from keyshift.state import backends
from keyshift.workloads.keyed import INDEX_BYTES, Keyed

ANSWER_S = 5.0
GIB = 1 << 30


@contextmanager
def open_services(profile: str | None = None, say: Say = tell, reach: bool = True) -> Iterator[Endpoints]:
    """The services of a profile (see ``load_profile``). Embedded ones that were down stop again when the last command
    that uses them ends. Without ``reach`` some of those that others run may be away.

    Raises BadInput for a profile that is not right, ServiceUnavailable for a service that cannot be reached.
    """
    place = load_profile(profile)
    if place.services != "embedded":
        yield _reached(place.endpoints()) if reach else place.endpoints()
        return
    with Stack(session_ms=place.session_ms).used(say) as endpoints:
        yield endpoints


def _reached(endpoints: Endpoints) -> Endpoints:
    for name in ("kafka", "zookeeper", "minio"):
        _reach(name, getattr(endpoints, name))
    return endpoints


def _reach(name: str, address: str) -> None:
    host, port = address.rsplit(":", 1)
    with service_errors((OSError, OverflowError), lambda error: f"{name} at {address} cannot be reached: {error}"):
        socket.create_connection((host, int(port)), ANSWER_S).close()


@contextmanager
def open_lab(specs: list[RunSpec], profile: str | None = None, say: Say | None = None, cores: int = 0) -> Iterator[Lab]:
    """A lab in which each of ``specs`` can run; without ``say``, its progress is shown by ``progress``.

    ``cores``: logical ones, if the specs need less.
    Raises KeyshiftError before anything is started if Java is missing, the profile is not right, or a run does not fit
    into it.
    """
    alone = [spec for spec in specs if spec.job.replicas == 1]
    place, needed = load_profile(profile), max((spec.cores for spec in alone), default=0)
    place.require_cores(needed)
    if any(spec.unsettled for spec in specs):  # the job that says what a load costs has to fit, too
        needed = max(needed, cost_spec().cores)
    cores = max(needed, cores)
    if not place.spark.on_kubernetes:
        for spec in specs:
            require_memory(spec, psutil.virtual_memory().total)
    require_java()
    stack = Stack(session_ms=place.session_ms) if place.services == "embedded" else None
    for spec in specs:
        require_room(spec, place.spark)
        require_possible(spec.scenario.faults(), stack, place.spark)
        backend = backends.get(spec.backend.name)
        backend.require(backend.settings(**spec.backend.settings), not place.spark.on_kubernetes)
    with (
        progress(say) as shown,
        open_services(profile, shown) as endpoints,
        Lab(endpoints, jars("spark", shown), Stack().home, cores, shown, place.spark, stack) as lab,
    ):
        yield lab


def require_memory(spec: RunSpec, there: int) -> None:
    """Raises BadInput if keys that exist from the start do not fit into ``there`` bytes: which there are, in every
    process, and their state, unless it is in files.
    """
    if isinstance(workload := spec.workload, Keyed):
        state = 0 if spec.backend.name == "rocksdb" else workload.state_bytes
        needed = workload.from_start * (state + INDEX_BYTES * (spec.cores + 2))  # generator and verdict, too
        if needed > there:
            raise BadInput(
                f"keys = {workload.keys}: they take {needed / GIB:.0f} GiB of memory before the first event, and there "
                f"are {there / GIB:.0f}; fewer keys and less state_bytes take less, and keycount's with exist = 'once "
                "used' nothing"
            )


def start_job(spec: RunSpec, profile: str | None = None, say: Say | None = None) -> LiveJob:
    """A job in a lab of its own, which is closed when the job has ended; see ``open_lab`` and ``Lab.start``."""
    with ExitStack() as stack:
        lab = stack.enter_context(open_job_lab(spec, profile, say))
        return lab.start(spec, stack.pop_all().close)
    raise AssertionError  # for mypy: no exit of the stack swallows an error


def open_job_lab(spec: RunSpec, profile: str | None = None, say: Say | None = None) -> AbstractContextManager[Lab]:
    """A lab in which the live job of ``spec`` can run, with room for restarts with more slots."""
    return open_lab([spec], profile, say, spec.routers + room(spec) * len(spec.tasks))
