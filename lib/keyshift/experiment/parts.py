"""The parameters of a run and its job, and the choice of a strategy or a state backend."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from keyshift.experiment.scenario import Part, Text
from keyshift.workloads.files import InputFile

DAY_S = 86_400
MOST_RATE = 1e9  # events per second, of a source
AUTO, OF_AUTO = "auto", ("rate", "frame_ms")  # a value that is chosen for the machine, and of which parameters
_AUTO = "auto: the default, or what half of the processors can take"


class RunPart(Part):
    """What is offered, for how long, and how often."""

    rate: float = Field(
        default=2000.0,
        gt=0,
        le=MOST_RATE,
        description=f"events per second offered of the first source, all routers together; {_AUTO}",
    )
    rates: Text = Field(default="", description="events per second of other sources, by name: control:5")
    rate_steps: Text = Field(
        default="",
        description="later rates, each from a second of measured time on: 0:2000,10:6000,20:0; of another source than "
        "the first one control=30:500,60:0, and ; between several",
    )
    injectors: int = Field(
        default=1, ge=1, le=16, description="processes that offer a source, each with partitions of its own"
    )
    events: InputFile = Field(
        default="", description="event file whose events are offered (keyshift events write); empty: they are drawn"
    )
    seconds: float = Field(
        default=24.0, gt=0, le=365 * DAY_S, description="measured time in seconds, after the warm-up"
    )
    warmup_s: float = Field(default=4.0, ge=0, le=DAY_S, description="load before the measured time, in seconds")
    frame_ms: float = Field(
        default=20.0, gt=0, le=10_000, description=f"milliseconds between frames of a partition; {_AUTO}"
    )
    auto: Literal["", "rate", "frame_ms", "rate, frame_ms"] = Field(
        default="", description="of rate and frame_ms, what was chosen for the machine; a run that was asked says so"
    )
    catch_up_s: float = Field(
        default=60.0,
        gt=0,
        description="seconds after the load in which a backlog must be worked off, or the job is overloaded",
    )
    recoveries: int = Field(default=1, ge=0, le=100, description="how often the query may die and is started anew")
    verify: Literal["end", "snapshots"] = Field(
        default="end", description="state that is compared with the oracle: at the end, or at each snapshot, too"
    )
    repetitions: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="runs with seeds seed, seed + 1, …; those with an event file, or in one job, have the same events",
    )

    @property
    def load_s(self) -> float:
        """Seconds of load, the warm-up included."""
        return self.warmup_s + self.seconds


class JobPart(Part):
    """Parameters of the query under test."""

    routers: int = Field(default=2, ge=1, le=64, description="routers of each source, one per Kafka partition")
    source_routers: Text = Field(default="", description="other numbers of routers, by source: control:1")
    slots: int = Field(default=2, ge=1, description="slots of each stage that own state before the migration")
    stage_slots: Text = Field(default="", description="other numbers of slots, by stage: map:2,counter:4")
    slots_max: int = Field(
        default=0,
        ge=0,
        description="slots that each stage has room for, at the least; 0: as many as the scenario needs",
    )
    slots_per_process: int = Field(
        default=1,
        ge=1,
        le=64,
        description="slots that share a task of Spark and its Python process: fewer rows and wake-ups for as many "
        "slots, but state that moves between them crosses no process",
    )
    batch_s: float = Field(default=300.0, ge=5, le=365 * DAY_S, description="length of a Spark batch in seconds")
    deadline_s: float = Field(
        default=30.0, gt=0, le=DAY_S, description="deadline of every phase of a migration, in seconds"
    )
    chunk_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 28, description="bytes of state per message")
    queue_bytes: int = Field(
        default=64 << 20, ge=1 << 16, description="bytes of records that may wait in a slot or a router"
    )
    snapshot_s: float = Field(
        default=0.0,
        ge=0,
        le=365 * DAY_S,
        description="seconds between snapshots of all state; 0: none. Of replicas one writes them, and another process "
        "may go on from them",
    )
    replicas: int = Field(
        default=1, ge=1, le=8, description="whole jobs that read the same input, each in a Spark of its own"
    )
    returns: bool = Field(
        default=True, description="a replica that has died comes back, from what another one writes down"
    )
    spares: int = Field(
        default=0,
        ge=0,
        le=4,
        description="Spark applications that are started ahead, each for a replica that dies: it is back sooner",
    )
    replicas_move: Literal["together", "one_by_one"] = Field(
        default="together",
        description="replicas move their state behind the same epochs, or one after the other while the rest answers",
    )
    ordering: Text = Field(
        default="none", description="how replicas of the job agree on an order (keyshift orderings); none: not"
    )
    heartbeat_ms: float = Field(
        default=20.0, gt=0, description="with an ordering: milliseconds of an epoch, which slots wait for"
    )
    session_ms: int = Field(
        default=500,
        ge=20,
        le=60_000,
        description="with an ordering that has leaders: milliseconds without a sign of life of a leader, until another "
        "one is elected",
    )
    copy_every_s: float = Field(
        default=1.0,
        gt=0,
        le=DAY_S,
        description="seconds between rounds of copying, with replicate; one at most until copies are close",
    )
    copy_lag_keys: int = Field(
        default=200,
        ge=0,
        description="changed keys per round (all keys of copies that begin) at which copies count as close, if they "
        "come as close",
    )

    @property
    def takes_snapshots(self) -> bool:
        """Whether the job goes on from snapshots by itself. What a replica writes is for another process."""
        return self.replicas == 1 and self.snapshot_s > 0

    def processes(self, slots: int) -> int:
        """Tasks of Spark, each in a process, for so many slots of a stage."""
        return -(-slots // self.slots_per_process)

    def rows(self, routers: int, slots: Iterable[int]) -> int:
        """Rows into slots, if all own state, when each router has a frame. ``slots``: of each stage.

        A router has a row for each process of slots, and so has each slot for each process of the next stage.
        """
        senders = [routers, *slots]
        return sum(each * self.processes(following) for each, following in pairwise(senders))


class Choice(Part):
    """A strategy or a state backend by its name, and what was set of it."""

    name: str
    settings: dict[str, Any]
