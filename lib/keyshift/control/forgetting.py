"""Deletes what is left of a job in the background that has ended and that nobody wants to go on with."""

import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from pydantic import ValidationError

from keyshift.control.files import REDIS, UNKNOWN, Jobs, Kept
from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import frame_ms_of, ordering_of
from keyshift.experiment.parameters import DEFAULTS
from keyshift.lab.environment import open_services
from keyshift.lab.live.presence import Presence
from keyshift.model.errors import BadInput, Deposed, RunsElsewhere, ServiceUnavailable
from keyshift.ordering import orderings
from keyshift.progress import Say
from keyshift.state import backends, clean_stores
from keyshift.traffic.topics import Topic
from keyshift.wire.config import InputTopic, inputs_of, order_of, replica_of, results_of
from keyshift.wire.coordination import Coordination
from keyshift.wire.epoch import Epoch
from keyshift.wire.nodes import ALL, of_job
from keyshift.wire.savepoint import SavepointStore

ROOM_BYTES = 64 << 20  # of the state folder, to start services: this makes room where there is none for runs


def forget(name: str, say: Say) -> list[str]:
    """Delete all that is left of the job ``name``; returns what was deleted, in words.

    Raises BadInput, with nothing changed, if there is no such job or it runs, and ServiceUnavailable if ZooKeeper is
    away, which knows that. Else nothing goes on with it from then on. Raises ServiceUnavailable if something could not
    be deleted: that is tried when this is called once more.
    """
    jobs = Jobs()
    job, deleted = jobs.choose(name), list[str]()
    if (left := _left(jobs, name)) is not None:
        with open_services(left.profile, say, reach=False, room_bytes=ROOM_BYTES) as endpoints:
            with _claimant(endpoints, left) as participant:  # first: a claim from now on is one that nobody looks for
                epoch = participant.epoch_of(_jobs(left)[0])
            _require_no_driver(endpoints, left, say)
            with jobs.naming():
                _left(jobs, name)
                _end(endpoints, left, epoch)
                jobs.journal(name).close()
            deleted = _all_deleted(jobs, name, _parts(endpoints, left, say), say)
    with jobs.naming():
        if (file := jobs.read(name)) and file.entry == job.entry:  # also if another process has resumed it, and died
            jobs.remove(file)
    return [*deleted, f"the entry of job {name}"]


def _left(jobs: Jobs, name: str) -> Kept | None:
    jobs.require_gone(job := jobs.choose(name))
    if (ended := jobs.ended(job)).remains == UNKNOWN:
        raise BadInput(f"job {name} does not run here: {ended}")
    return jobs.journal(name).left()


def _require_no_driver(endpoints: Endpoints, left: Kept, say: Say) -> None:
    """Raise BadInput if a process on another machine drives the job, ServiceUnavailable if nobody here knows."""
    try:
        for source in _inputs(left):
            _await_silence(Topic.at(endpoints, source.topic, source.partitions), frame_ms_of(left.values))
        Presence(endpoints, _jobs(left)[0], left.token).await_none(say)
    except RunsElsewhere as error:
        raise BadInput(f"{error}; stop it there, or forget it when its process has ended") from error


def _claimant(endpoints: Endpoints, left: Kept, epoch: Epoch | None = None) -> closing[Coordination]:
    """A place in ZooKeeper where the job is claimed: of a job with replicas, at that of the first, as a resume does."""
    return closing(Coordination(endpoints.zookeeper, of_job(_jobs(left)[0]), left.token, epoch))


def _end(endpoints: Endpoints, left: Kept, epoch: Epoch | None) -> None:
    """Let nobody claim the job any more. Raises BadInput if another process has claimed it since that ``epoch``."""
    try:
        with _claimant(endpoints, left, epoch) as participant:
            participant.end_epoch()
    except Deposed as error:
        raise BadInput(
            "the job runs elsewhere: a process there has just gone on with it; stop it there, or forget it when its "
            "process has ended"
        ) from error


def _await_silence(topic: Topic, frame_ms: float) -> None:
    try:
        topic.await_silence(frame_ms)
    except RunsElsewhere:
        raise
    except ServiceUnavailable:
        pass  # ZooKeeper is asked, too


def _jobs(left: Kept) -> list[str]:
    """The job, or that of each of its replicas."""
    return [left.run_id] if left.replicas == 1 else [replica_of(left.run_id, each) for each in range(left.replicas)]


def _inputs(left: Kept) -> tuple[InputTopic, ...]:
    return inputs_of(left.run_id, tuple(left.sources.items()))


def _has_leaders(left: Kept) -> bool:
    """Whether the job may have leaders, as far as is known here: what is not there is deleted without harm."""
    name = ordering_of(left.values)
    return name not in orderings.names() or orderings.get(name).leads


def _settings(left: Kept, backend: str) -> dict[str, Any]:
    """Return what the job was given of its backend: where its stores are. Of all values a spec may not be possible any
    more: a file is gone, code of a notebook needs a module that is not here, a newer keyshift refuses one.
    """
    kind = backends.get(backend).settings
    given = {name.removeprefix("backend."): value for name, value in left.values.items()}
    given = {name: value for name, value in given.items() if name in kind.model_fields}
    try:
        kind(**given)
    except ValidationError as error:
        refused = {name for each in error.errors() for name in each["loc"][:1]}
        given = {name: value for name, value in given.items() if name in REDIS or name not in refused}
    return given


def _all_deleted(jobs: Jobs, name: str, parts: dict[str, Callable[[], object]], say: Say) -> list[str]:
    deleted, failed = list[str](), list[str]()
    for what, delete in parts.items():
        say(f"deleting {what}")
        try:
            delete()
            deleted.append(what)
        except Exception as error:  # the others are to go as well
            failed.append(f"{what} ({error})")
    if failed:
        job, not_deleted = jobs.choose(name), f"not deleted: {'; '.join(failed)}"
        jobs.write(job.model_copy(update={"why": f"it was forgotten; {not_deleted}"}))
        done = f"deleted: {', '.join(deleted) or 'nothing'}; {not_deleted}"
        raise ServiceUnavailable(f"job {name}: {done}; `keyshift job forget {name}` tries it again")
    return deleted


def _parts(endpoints: Endpoints, left: Kept, say: Say) -> dict[str, Callable[[], object]]:
    """List what the job may have left, by the words for it, and how it is deleted; each may be done twice."""
    run, jobs = left.run_id, _jobs(left)
    topics, roots = [*(each.topic for each in _inputs(left)), *map(results_of, jobs)], jobs
    if _has_leaders(left):
        topics, roots = [*topics, order_of(run)], [*jobs, run]

    def nodes(job: str) -> None:
        with closing(Coordination(endpoints.zookeeper, of_job(job), left.token)) as coordination:
            coordination.withdraw(ALL)

    backend = str(left.values.get("backend", DEFAULTS["backend"]))
    known = backend in backends.names()

    def temporary() -> None:
        for job in jobs if known else ():
            clean_stores(backend, _settings(left, backend), endpoints.redis, job)
        shutil.rmtree(left.work, ignore_errors=True)

    if not known:
        say(f"backend {backend} is not known here: what its stores have left elsewhere stays")
    bucket = endpoints.bucket
    return {
        # First: with them goes the right to drive the job.
        **{f"nodes below {of_job(job)} in ZooKeeper": partial(nodes, job) for job in roots},
        **{f"topic {name}": Topic.at(endpoints, name).delete for name in topics},
        **{
            f"snapshots below savepoints/{job}/ in the bucket {bucket}": SavepointStore(endpoints, job).delete_all
            for job in jobs
        },
        "temporary files, and state in stores of its own" if known else "temporary files": temporary,
    }
