"""What a live job says of itself, as it goes over HTTP, and its states. Seconds; latencies are in milliseconds."""

from enum import StrEnum, auto
from typing import TypedDict

from keyshift.experiment.commands import Migration
from keyshift.results.manifest import Manifest, Summary

OfSlot = dict[str, float | None]  # what is known of a slot, by its name; None is not known


class JobState(StrEnum):
    """How far a live job is. It keeps its state while it recovers."""

    STARTING = auto()  # no events go in yet
    RUNNING = auto()  # it obeys
    STOPPING = auto()  # the load has ended: the last results come, and are judged
    ENDED = auto()  # it has a verdict
    FAILED = auto()  # it has ended without one


LEADS_TO: dict[JobState, frozenset[JobState]] = {
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.FAILED}),
    JobState.STOPPING: frozenset({JobState.ENDED, JobState.FAILED}),
    JobState.ENDED: frozenset(),
    JobState.FAILED: frozenset(),
}
GOES_ON = frozenset({JobState.RUNNING, JobState.STOPPING})  # its migrations come to their end


class JobLife:
    """The state of one job, for any thread; the controlling one changes it."""

    def __init__(self) -> None:
        self.state = JobState.STARTING
        self.stop_wanted = False  # remembered, whatever becomes of the query meanwhile; any thread sets it

    def enter(self, state: JobState) -> None:
        """Change the state. Raises ValueError, and changes nothing, if the state now does not lead there."""
        if state not in LEADS_TO[self.state]:
            raise ValueError(f"a job that is {self.state} cannot be {state} next")
        self.state = state


class StageStatus(TypedDict):
    """The status of a stage. ``slots``: that own state, of those that are ``provisioned``; ``owners``: the slot of each
    unit; ``of_slot``: what each slot said last (bytes, records since the attempt began), by its number, which JSON
    makes a text; with replicas the slot of one of them, whose number is ``replica``.
    """

    slots: int
    provisioned: int
    owners: list[int]
    of_slot: dict[int, OfSlot]
    activity: str
    migrating: bool


class ReplicaStatus(TypedDict):
    """The status of a replica. ``state``: one of ``REPLICA_STATES``; who comes back may be at work already, and is not
    as far as the others. ``lag_ms``: how far its newest results are behind those of the replica that has come furthest,
    by the schedule of the events, as was told a second ago at the most; None while nothing comes of it. ``deaths``: how
    often it has died.
    """

    state: str
    lag_ms: float | None
    deaths: int


REPLICA_STATES = LIVES, COMES_BACK, GONE = "lives", "coming back", "gone"


class SystemStatus(TypedDict, total=False):
    """What the system knows without asking anybody. ``snapshot_bytes``: of the newest one. ``replicas``: by their
    numbers, which JSON makes texts, of a job that has some.
    """

    stages: dict[str, StageStatus]
    attempt: int
    snapshots: int
    snapshot_bytes: int | None
    notes: list[str]
    replicas: dict[int, ReplicaStatus]


class StageDecisionTold(TypedDict):
    """What was decided of one stage; see ``planner.scaling.StageScaling``. None is not known."""

    slots: int
    wanted: int
    target: int
    true_per_s: float | None
    demand_per_s: float | None
    utilisation: float | None
    worth: float | None


class DecisionTold(TypedDict):
    """What was decided at one look, in ``words`` and numbers; see ``planner.scaling.Scaling``. None is not known."""

    at_s: float
    offered_per_s: float
    backlog: float
    missed_s: float
    migrating: bool
    stay_cost: float | None
    move_cost: float | None
    moves: bool
    reason: str
    stages: dict[str, StageDecisionTold]
    words: str


class ScalingStatus(TypedDict):
    """How often an autoscaler has looked and moved something, and its newest ``decisions``."""

    looks: int
    moves: int
    decisions: list[DecisionTold]


class Status(SystemStatus, total=False):
    """What a live job says of itself. Before events go in, ``stages`` and ``migrations`` are empty, and what is below
    them is missing.

    ``state``: one of ``JobState``; ``why``: it has failed, in one line; ``examples``: of what is wrong; ``migrations``:
    see ``commands.Migration``; ``rate``: events per second that all sources together are to offer now; 0 of a job that
    stops. Latencies and ``results_per_s`` are those of the last second.
    """

    run_id: str
    state: str
    why: str | None
    workload: str
    strategy: str
    summary: Summary | None  # of the run when it has ended
    examples: list[str]
    manifest: Manifest | None  # likewise
    migrations: list[Migration]
    activity: str
    running_s: float
    rate: float
    offered: int
    results: int
    results_per_s: int
    p50_ms: float | None
    p99_ms: float | None
    migrating: bool
    deaths: int
    autoscaler: ScalingStatus | None
