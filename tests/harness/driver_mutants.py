"""The driver with one bug each, and what a chain of drivers has to say about it; see ``shell_mutants``.

Each was there once. Where the library has a second net below the first one, a mutant has a hole in both.
"""

import threading
import time
from unittest.mock import patch

import driver_run
from driver_shape import Life
from one_run import Outcome
from places import Fault

from keyshift.control import process
from keyshift.control.files import Jobs
from keyshift.driver.completed import CompletedSnapshots
from keyshift.driver.job import Job
from keyshift.driver.snapshotter import Snapshotter
from keyshift.lab.ending import Ending
from keyshift.lab.live.failover import JobFailover
from keyshift.lab.live.inbox import Inbox
from keyshift.lab.live.presence import Presence
from keyshift.model.errors import ProtocolViolation
from keyshift.wire import savepoint
from keyshift.wire.memory import Memory
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.slot.snapshots import SlotSnapshots
from mutation import Mutants

CALM = {
    "moves": 0.0, "batch_s": None, "expires_s": None, "fails": 0.0, "zookeeper_s": 0.005, "store_s": 0.0,
    "store_fails": 0.0, "deadline_s": 5.0, "snapshot_s": 0.05, "kind": "push", "strategy": "fluid",
}  # fmt: skip
KILLED, LONGER = Life(0.2, "kill", runs=True), Life(0.8, "kill", runs=True)
mutant = Mutants()


def hunt(name: str, seeds: int) -> Outcome | None:
    """The first chain of these seeds that sees the mutant."""
    return mutant.by_name[name].hunt(range(seeds), driver_run.run)


def stalls(seconds: float, call: str, *numbers: int) -> Life:
    """A life in which some calls take long."""
    faults = tuple(Fault("stall", call, number, seconds=seconds) for number in numbers)
    return Life(0.3 + seconds * len(faults), "kill", faults, runs=True)


# -- what a job goes on from -------------------------------------------------------------------------------------------


@mutant(Ending, "over", ("deleted", "lost job"), CALM, lives=(KILLED, Life(0.2, "interrupt")))
def deletes_however_it_ends(original, ending):
    return True


@mutant(CompletedSnapshots, "needed", "deleted", CALM, lives=(stalls(0.6, "disk replace", 3, 5),))
def removes_snapshots_before_the_journal_names_their_successors(original, snapshots):
    return {snapshot.name for snapshot in snapshots.newest}


@mutant(
    JobFailover,
    "journal_written",
    "deleted",
    CALM,
    strategy="stop_restart",
    requests_s=0.1,
    lives=(Life(1.5, "kill", runs=True),),
)
def removes_the_savepoint_that_it_would_go_on_from_without_a_snapshot(original, failover):
    original(failover)
    failover._job.snapshots.supersede(savepoint.name for savepoint in failover._past.savepoints)


@mutant(
    Job,
    "_give_up_unreadable",
    "went back",
    CALM,
    lives=tuple(Life(0.3, "kill", (Fault("fail", "zookeeper acknowledge", n),)) for n in (60, 1, 2)),
)
def discards_a_snapshot_of_which_an_attempt_has_died(original, job, said):
    if (snapshot := job.snapshots.last) and snapshot.name == job.config.restore:
        job.snapshots.replace(job.snapshots.newest[:-1])


ONE_JOURNAL = Fault("stall", "disk replace", 4, seconds=1.5)


@mutant(Job, "_go_on", "duplicated", CALM, lives=(Life(0.3, "kill", (ONE_JOURNAL,), runs=True, forgets_s=0.6),))
def goes_on_under_versions_that_zookeeper_has_lost(original, job, unfinished, gap=0):
    original(job, unfinished)


@mutant(JobFailover, "readable", "lost job", CALM, lives=(Life(0.4, "kill", runs=True, loses_s=0.2),))
def gives_up_a_job_whose_newest_snapshot_has_read_what_kafka_has_lost(original, failover, journal):
    return journal


FULL_DISK = Fault("fail", "disk replace", 4)


@mutant(process._Entry, "keep", ("crash", "lost job"), CALM, lives=(Life(5.0, "kill", (FULL_DISK,), runs=True),))
def ends_when_the_disk_is_full(original, entry, journal):
    try:
        original(entry, journal)
    except OSError as error:
        raise RuntimeError(str(error)) from error


# -- snapshots ---------------------------------------------------------------------------------------------------------


@mutant(
    SlotSnapshots,
    "captured",
    "promise",
    CALM,
    without=((Snapshotter, "_await_writers"), (savepoint, "_require_chains")),
    deadline_s=0.3,
    rate=100.0,
    lives=(stalls(0.8, "minio put", 4, 7, 10, 13),),  # of one slot every other put is a manifest
)
def writes_two_snapshots_at_once(original, snapshots, effect):
    snapshots.busy, snapshots._writing = False, threading.Lock()
    original(snapshots, effect)


BEGINS_ANEW = Fault("lose", "minio put", 4, after=True)


@mutant(SavepointStore, "commit", "promise", CALM, lives=(Life(1.0, "kill", (BEGINS_ANEW,), runs=True),))
def commits_what_refers_to_what_the_store_has_lost(original, store, name, manifest):
    with patch.object(store._bucket, "names", lambda: manifest.segments):
        original(store, name, manifest)


@mutant(SavepointStore, "commit", "silent", CALM, without=((Snapshotter, "check"),), lives=(LONGER,))
def takes_no_more_snapshots_and_says_nothing(original, store, name, manifest, **made_by):
    raise ProtocolViolation(f"injected: {name}")


# -- two drivers -------------------------------------------------------------------------------------------------------

ASKED = threading.local()


@mutant(Jobs, "resumable", "two drivers", CALM, lives=(KILLED, *(Life(0.1, "kill", twice=True),) * 3))
def resumes_without_looking_again(original, jobs, run, take_over=False):
    """When nobody else can resume it."""
    again, ASKED.before = getattr(ASKED, "before", False), True
    return original(jobs, run, take_over or again)


@mutant(
    Presence,
    "await_none",
    "two drivers",
    CALM,
    lives=(*(Life(0.2, "pause", woken_s=5.0, runs=True),) * 3, KILLED),
)
def goes_on_with_a_job_whose_process_zookeeper_still_hears(original, presence, say):
    pass


@mutant(
    Memory,
    "require_driver",
    ("two drivers", "deleted", "lost job", "never", "lost", "wrong", "duplicated", "promise", "unread"),
    CALM,
    lives=(*(Life(0.2, "pause", woken_s=0.2, runs=True),) * 3, Life(0.5, "kill", runs=True)),
)
def lets_a_driver_write_whose_job_another_one_has_claimed(original, memory, epoch):
    pass


# -- requests ----------------------------------------------------------------------------------------------------------


@mutant(Inbox, "serve", "unanswered", CALM, answer_s=1e6, requests_s=0.003, lives=(Life(1.5, "kill", runs=True),))
def forgets_what_was_asked_together_with_what_finds_the_query_dead(original, inbox):
    time.sleep(0.1)  # for the query to die in, and for others to ask
    waiting = []
    while found := inbox._next():
        waiting.append(found)
    for each in waiting:
        inbox._answer(*each)
