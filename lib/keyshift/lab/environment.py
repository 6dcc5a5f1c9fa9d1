"""The front door for notebooks and the command line: services, jars and Spark, opened together and closed together."""

import os
import pwd
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial

from keyshift.driver.spark import require_no_spark
from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import wanted_slots
from keyshift.experiment.spec import RunSpec, require_rows
from keyshift.folders import state_folder
from keyshift.lab.live.job import LiveJob
from keyshift.lab.machine.auto_load import DEFAULT, cores_of, frames_for
from keyshift.lab.machine.load_cost import cost_spec, kept_cost
from keyshift.lab.run import Lab
from keyshift.lab.scripts.series import judged, with_jobs
from keyshift.lab.service_faults import require_possible
from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.ordering import orderings
from keyshift.place.needs import OF_A_SEARCH, Resources, require_needs, size, verdict_bytes
from keyshift.place.profile import Profile, load_profile
from keyshift.progress import Say, progress, tell
from keyshift.services.jars import jars, require_java
from keyshift.services.stack import ROOM_BYTES, SERVICES, Stack
from keyshift.state import backends, settings_of
from keyshift.wire.client import connected
from keyshift.wire.election import require_session

ANSWER_S = 5.0


@dataclass(frozen=True)
class Asked:
    """What was to be started: runs in a place, and what they start beside its services. ``lasts_s``: for how long they
    get load, if their specs do not say that. ``verdict_bytes``: what the largest verdict takes in the driver, about:
    that on a run, or on all migrations of one job. ``searched``: whether the highest rate is, in the job of each run.
    ``jobs``: those of which some of the runs are migrations.
    """

    specs: tuple[RunSpec, ...]
    place: Profile
    also: tuple[str, ...] = ()
    lasts_s: float | None = None
    verdict_bytes: int = 0
    searched: bool = False
    jobs: tuple[RunSpec, ...] = ()

    @property
    def load_s(self) -> float:
        """Seconds of load, of all runs one after the other. Migrations of one job may take less."""
        if self.lasts_s is not None:
            return self.lasts_s
        return sum(spec.run.load_s * spec.run.repetitions for spec in self.specs)


class NotStarted(BaseException):
    """Raised instead of a start, where ``nothing_starts``; no error, so that nobody handles it as one."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked


_NOTHING_STARTS = ContextVar("nothing starts", default=False)


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Inside, whoever is about to start a run or services raises ``NotStarted`` instead, with what was to be."""
    token = _NOTHING_STARTS.set(True)
    try:
        yield
    finally:
        _NOTHING_STARTS.reset(token)


def _stop_if_asked(asked: Asked) -> None:
    if _NOTHING_STARTS.get():
        raise NotStarted(asked)


@contextmanager
def open_services(
    profile: str | None = None,
    say: Say = tell,
    reach: bool = True,
    needs: Collection[str] = SERVICES,
    room_bytes: int = ROOM_BYTES,
) -> Iterator[Endpoints]:
    """The services of a profile (see ``load_profile``). Embedded ones that were down stop again when the last command
    that uses them ends. Without ``reach`` some of those that others run may be away. ``needs``: those of SERVICES that
    are started, or have to be reached. ``room_bytes``: see ``Stack.used``.

    Raises BadInput for a profile that is not right, ServiceUnavailable for a service that cannot be reached.
    """
    place = load_profile(profile)
    _stop_if_asked(Asked((), place))
    if (stack := _stack(place)) is None:
        known = place.endpoints()
        for name in needs if reach else ():
            addresses = getattr(known, name)
            with service_errors(OSError, partial("{} at {} cannot be reached: {}".format, name, addresses)):
                connected(addresses, ANSWER_S).close()
        yield known
        return
    with stack.used(say, needs, room_bytes) as endpoints:
        yield endpoints


def _stack(place: Profile) -> Stack | None:
    """The embedded services as a profile wants them; None if it names others."""
    return Stack(session_ms=place.session_ms, nodes=place.nodes) if place.services == "embedded" else None


@contextmanager
def open_lab(
    specs: list[RunSpec],
    profile: str | None = None,
    say: Say | None = None,
    cores: int = 0,
    lasts_s: float | None = None,
    warned: bool = False,
    one_job: bool = False,
    searched: bool = False,
) -> Iterator[Lab]:
    """A lab in which each of ``specs`` can run; without ``say``, its progress is shown by ``progress``.

    ``cores``: logical ones, if the specs need less. ``lasts_s``: seconds of load, if they are not those of the specs.
    ``warned``, ``one_job``, ``searched``: see ``require_possible_here``.
    Raises KeyshiftError before anything is started, as ``require_possible_here`` and, if it has a Spark,
    ``require_no_spark`` do, and before Spark is started, as ``require_session`` does.
    """
    place = require_possible_here(specs, profile, lasts_s=lasts_s, warned=warned, one_job=one_job, searched=searched)
    here = (spec for spec in (*specs, *_jobs(specs, one_job)) if spec.job.replicas == 1)  # in the Spark of the lab
    needed = max((spec.cores for spec in here), default=0)
    if any(spec.unsettled for spec in specs):  # the job that says what a load costs has to fit, too
        needed = max(needed, cost_spec().cores)
    if needed := max(needed, cores):
        require_no_spark()
    with progress(say) as shown, open_services(profile, shown) as endpoints:
        for spec in specs:
            if orderings.get(spec.job.ordering).leads:
                require_session(endpoints.zookeeper, spec.job.session_ms)
        given = endpoints, jars("spark", shown), Stack().home, needed, shown, place.spark, _stack(place)
        with Lab(*given) as lab:
            yield lab


def require_possible_here(
    specs: Sequence[RunSpec],
    profile: str | None = None,
    also: Sequence[str] = (),
    lasts_s: float | None = None,
    warned: bool = False,
    one_job: bool = False,
    searched: bool = False,
) -> Profile:
    """Require that each of ``specs`` can run in the profile, and return it. Whatever starts a run asks this before it
    starts anything. What is too much for this machine without being refused is told, unless whoever has started this
    process has told it (``warned``).

    ``also``, ``lasts_s``: see ``Asked``. ``one_job``: whether those that can be are migrations of one job;
    ``searched``: whether the highest rate is, in the job of each.
    Raises KeyshiftError if Java is missing, the user has no name, the profile is not right, or a run does not fit into
    it.
    """
    place = load_profile(profile)
    verdicts = judged(specs) if one_job else ((spec, spec.run.load_s) for spec in specs)
    largest = max((verdict_bytes(spec, load_s) for spec, load_s in verdicts), default=0)
    asked = Asked(tuple(specs), place, tuple(also), lasts_s, largest, searched, _jobs(specs, one_job))
    _stop_if_asked(asked)
    resources = Resources.here()
    require_java()
    for spec in (*specs, *asked.jobs):
        require_fit(spec, place, resources)
    if not warned:
        if searched:
            _tell_once(OF_A_SEARCH)
        _tell_what_is_too_much(asked, resources)
    return place


def _jobs(specs: Sequence[RunSpec], one_job: bool) -> tuple[RunSpec, ...]:
    """The jobs of which some of ``specs`` are migrations; none unless ``one_job``."""
    return tuple(job for _, job in with_jobs(specs) if job is not None) if one_job else ()


def _tell_what_is_too_much(asked: Asked, resources: Resources) -> None:
    """Tell if a verdict needs too much memory, or the load too many processors, if it is known what one costs here."""
    if asked.verdict_bytes > resources.memory:
        _tell_once(
            f"a verdict takes about {size(asked.verdict_bytes)} in the driver, and this machine has "
            f"{size(resources.memory)}; nothing is refused for that"
        )
    if asked.place.spark.on_kubernetes or (cost := kept_cost(state_folder())) is None:
        return
    cores = max((cores_of(spec, cost) for spec in asked.specs if not spec.unsettled), default=0.0)
    if cores > cost.machine.cpus:
        _tell_once(
            f"the load is expected to take {cores:.1f} of {cost.machine.cpus} processors ({cost}); lower rate or raise "
            "frame_ms"
        )


@cache
def _tell_once(line: str) -> None:
    """Tell a line once in this process: who measures beside another engine asks twice."""
    tell(line)


def require_fit(spec: RunSpec, place: Profile, resources: Resources) -> None:
    """Raise KeyshiftError if a run is not possible in ``place``, with the ``resources`` of this machine."""
    require_user()
    require_needs(spec, place, resources)
    if "frame_ms" in spec.unsettled:
        require_rows(spec, DEFAULT.frame_ms if place.spark.on_kubernetes else frames_for([spec])[-1])
    require_possible(spec.scenario.every_fault(), _stack(place), place.spark)
    settings = settings_of(spec.backend.name, spec.backend.settings, place.redis)
    backends.get(spec.backend.name).require(settings, not place.spark.on_kubernetes)


def require_user() -> None:
    """Raise ServiceUnavailable if the user of this process has no name: Spark would start last, and end for that."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        said = f"user {os.getuid()} has no name, and Spark needs one"
        raise ServiceUnavailable(f"{said}; add a line for it to /etc/passwd, or use another user") from None


def start_job(spec: RunSpec, profile: str | None = None, say: Say | None = None) -> LiveJob:
    """A job in a lab of its own, which is closed when the job has ended; see ``open_lab`` and ``Lab.start``."""
    with ExitStack() as stack:
        lab = stack.enter_context(open_job_lab(spec, profile, say))
        [spec] = lab.settled([spec])  # now: from the next line on the lab is closed by the job alone
        return lab.start(spec, stack.pop_all().close)
    raise AssertionError  # for mypy: no exit of the stack swallows an error


def open_job_lab(
    spec: RunSpec, profile: str | None = None, say: Say | None = None, warned: bool = False
) -> AbstractContextManager[Lab]:
    """A lab in which the live job of ``spec`` can run, with room for restarts with more slots; see ``open_lab``. There
    is none where each task is alone in a process: those that may never come would take as much as the others.
    """
    alone = load_profile(profile).spark.executors_for(spec.cores) == spec.cores
    cores = 0 if alone or spec.job.replicas > 1 else spec.routers + wanted_slots(spec) * len(spec.tasks)
    return open_lab([spec], profile, say, cores, warned=warned)
