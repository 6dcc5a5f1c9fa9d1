"""The configuration of every task of a job. It travels in the query's closures, never through results or logs."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from keyshift.endpoints import Endpoints
from keyshift.model.frames import RESULT_FIELDS
from keyshift.model.keys import SlotId
from keyshift.ordering import orderings
from keyshift.registry import unknown
from keyshift.state import Store, backends
from keyshift.wire.faults import Fault
from keyshift.wire.nodes import of_job, of_stage
from keyshift.workloads import ORIGIN, KeyedStage, Source, Workload, model_of

UNIT = pa.field("unit", pa.int32())


@dataclass(frozen=True, slots=True)
class Certificate:
    """What slots prove who they are with, over TLS: PEM texts, for the host ``NAME`` wherever they are."""

    NAME: ClassVar = "keyshift"

    chain: str  # whoever is signed by one of these is trusted
    key: str = field(repr=False)


class InputTopic(NamedTuple):
    """The ``topic`` of a source has so many partitions, and ``first`` is the router that reads partition 0."""

    topic: str
    first: int
    partitions: int


@dataclass(frozen=True)
class JobConfig:
    """One attempt of one job, a query from its start to its stop, as seen by one of its keyed stages. Parameters of the
    job have their defaults in ``experiment.parts.JobPart``.
    """

    job: str
    attempt: int
    endpoints: Endpoints
    workload: str
    parameters: dict[str, Any]  # the workload's own
    stage: str  # of the workload: the keyed stage whose routers and slots these are
    routers: int  # of the first stage: tasks that read the input. Of others: the slots of the stage before
    slots: int  # of the keyed stage, those included that own nothing yet
    key_groups: int
    _: KW_ONLY
    bins: int = 1
    slots_per_process: int  # and task: of Spark's tasks each has a Python worker of its own
    parcel: str = field(default="", repr=False)  # of a workload that the library does not have
    sources: tuple[tuple[str, int], ...] = ()  # names, and the routers of each; empty: one source has all routers
    number: int = 0  # of the stage in the chain of stages
    onward: tuple[tuple[str, int], ...] = ()  # the stages behind this one, and the slots of each
    backend: str
    backend_settings: dict[str, Any] = field(default_factory=dict)
    backend_secret: str = field(default="", repr=False)  # that goes with them
    token: str = field(default="", repr=False)  # the job's secret: what Flight calls present, and ZooKeeper's nodes ask
    certificate: Certificate | None = None  # state travels over TLS; None: in clear
    host: str = "127.0.0.1"  # where slots of this job listen, unless their executor is a pod with an address
    chunk_bytes: int  # of state, per message
    reserve_bytes: int = 32 << 20  # of memory that a slot touches at its start, for state to land in
    queue_bytes: int  # of records that wait in one slot, or in one router: more of them wait in Kafka
    deadline_s: float  # of every phase of a migration
    hop_us: int  # a slot sends results on to the next stage so often, at most
    snapshot_s: float  # from one snapshot to the next; 0: none
    keep_snapshots: bool = False  # all of them, for a verdict on each; otherwise the newest ones
    tracks: bool = True  # slots note what changes behind a snapshot or a capture, for the next one
    restore: str | None = None  # the savepoint or snapshot to begin from
    restore_of: str = ""  # the job that it is of; empty: this one
    faults: tuple[Fault, ...] = ()  # in phases, of the first attempt
    ordering: str  # the order protocol in front of each slot
    heartbeat_us: int  # from one mark to the next, with an order
    session_ms: int  # of whoever leads a slot, with an order that has leaders
    slots_before: int = 0  # of the stages before this one
    order_begins: tuple[int, ...] = ()  # offsets of the order log's partitions: before them another process wrote
    input_of: str = ""  # the job whose input this one reads, too, as one of its replicas; empty: its own
    replica: int = 0  # its number among those
    apart: bool = False  # one of them moves after the other: they may have different assignments for a while
    epoch: int = 0  # of the driver; 0: nobody has claimed the job yet
    epochs: tuple[tuple[tuple[int, int], ...], ...] = ()  # for each router, offsets at which an epoch begins, and which
    trace: str = ""  # a folder for the moments at which frames pass; empty: none are kept

    @property
    def in_turns(self) -> bool:
        """Whether slots work in turns, behind an order protocol that agrees on some."""
        return orderings.get(self.ordering).agrees

    @property
    def shared(self) -> str:
        """The job that this one is or is a replica of: what all replicas have together has its name."""
        return self.input_of or self.job

    @property
    def order_topic(self) -> str:
        """Kafka topic of the order log, one partition per slot of each stage, from ``slots_before`` on."""
        return order_of(self.shared)

    def order_begin(self, slot: SlotId) -> int:
        """The offset from which on the order log of ``slot`` counts."""
        return self.order_begins[self.slots_before + slot] if self.order_begins else 0

    @property
    def replicated(self) -> bool:
        """Whether there are other replicas."""
        return bool(self.input_of)

    def of_replica(self, number: int) -> "JobConfig":
        """The same as a replica of this job: what it writes has another name, what it reads has not. What fails in a
        phase is the first one. It takes no snapshots of its own: see ``lab.replicas.resume_points``. If nobody does it
        writes its state down only for one that comes back: no other time may follow.
        """
        mine = replace(self, job=replica_of(self.job, number), input_of=self.job, replica=number)
        mine = replace(mine, snapshot_s=0.0, tracks=self.snapshot_s > 0)
        return replace(mine, faults=() if number else self.faults)

    @property
    def root(self) -> str:
        """The folder of the stage in ZooKeeper."""
        return f"{of_job(self.job)}/{of_stage(self.attempt, self.stage)}"

    @property
    def inputs(self) -> tuple[InputTopic, ...]:
        """Kafka topics of the input, of each source."""
        return inputs_of(self.shared, self.sources or (("events", self.routers),))

    @property
    def results_topic(self) -> str:
        """Kafka topic of the output, one partition per slot."""
        return results_of(self.job)

    @property
    def next(self) -> "JobConfig | None":
        """The same as seen by the next stage; None behind the last one."""
        if not self.onward:
            return None
        (stage, slots), *rest = self.onward
        return replace(
            self,
            stage=stage,
            routers=self.slots,
            slots=slots,
            number=self.number + 1,
            slots_before=self.slots_before + self.slots,
            onward=tuple(rest),
        )

    @property
    def processes(self) -> int:
        """Tasks of Spark that the slots of the stage are in."""
        return -(-self.slots // self.slots_per_process)

    def slots_of(self, process: int) -> list[SlotId]:
        """The slots of the stage that are in one of its tasks."""
        first = process * self.slots_per_process
        return [*map(SlotId, range(first, min(first + self.slots_per_process, self.slots)))]

    def chain(self) -> "list[JobConfig]":
        """The same as seen by this stage and by each one behind it."""
        following = self.next
        return [self, *(following.chain() if following else [])]

    def with_slots(self, slots: Mapping[str, int]) -> "JobConfig":
        """The same with other numbers of slots of some stages, by their names."""
        onward = tuple((stage, slots.get(stage, before)) for stage, before in self.onward)
        return replace(self, slots=slots.get(self.stage, self.slots), onward=onward)

    def make_workload(self) -> Workload:
        """The workload with its parameters."""
        return model_of(self.workload, self.parcel)(**self.parameters)

    def make_source(self, router: int = 0) -> Source:
        """The source of the events that a router of the first stage reads."""
        firsts = [each.first for each in self.inputs]
        return self.make_workload().sources[bisect_right(firsts, router) - 1]

    def make_stage(self) -> KeyedStage:
        """The stage of this name. Raises BadInput if the workload has none."""
        stages = {stage.name: stage for stage in self.make_workload().stages}
        if self.stage not in stages:
            raise unknown("stage", self.stage, list(stages))
        return stages[self.stage]

    def open_store(self, slot: SlotId, schema: pa.Schema) -> Store:
        """The store of a slot, in the job's backend. ``schema``: of a value."""
        backend = backends.get(self.backend)
        name = f"{self.job}/{self.attempt}/{self.stage}/{slot}"
        return backend.open(name, schema, backend.settings(**self.backend_settings).with_secret(self.backend_secret))


def slot_schema(stage: KeyedStage, first: bool = True) -> pa.Schema:
    """Columns of the events a slot gets. ``first``: no stage is before this one, and a row says what frame it is of."""
    return pa.schema([*stage.events, *(ORIGIN[-1:] if first else ORIGIN), UNIT])


def result_schema(stage: KeyedStage) -> pa.Schema:
    """Columns of a result frame."""
    return pa.schema([*RESULT_FIELDS, *stage.result_fields])


def inputs_of(job: str, sources: Sequence[tuple[str, int]]) -> tuple[InputTopic, ...]:
    """The Kafka topics of the input of a job. ``sources``: their names, and the routers of each.

    That of an only source is named alike, whatever the source is.
    """
    inputs, first = [], 0
    for name, partitions in sources:
        topic = f"{job}-events" if len(sources) == 1 else f"{job}-{name}-events"
        inputs.append(InputTopic(topic, first, partitions))
        first += partitions
    return tuple(inputs)


def replica_of(job: str, number: int) -> str:
    """The name under which a replica of a job writes."""
    return f"{job}-r{number}"


def order_of(job: str) -> str:
    """The Kafka topic of the order log of a job, if its order comes from leaders."""
    return f"{job}-order"


def results_of(job: str) -> str:
    """The Kafka topic of the output of a job."""
    return f"{job}-results"
