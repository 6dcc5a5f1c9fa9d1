"""What a run needs of the place where it runs, from its parameters, and whether that is there."""

from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from keyshift.experiment.scenario import target_of
from keyshift.experiment.spec import SNAPSHOTS, RunSpec
from keyshift.model.errors import BadInput
from keyshift.model.keys import ALL_UNITS, Assignment
from keyshift.place.profile import CLUSTER, Profile
from keyshift.results.tables import TABLES
from keyshift.results.verdict import PART_EVENTS, TOGETHER_EVENTS
from keyshift.services import limits
from keyshift.state import backends
from keyshift.workloads.keyed import INDEX_BYTES, Keyed

MIB, GIB = 1 << 20, 1 << 30
JOB_BYTES = 700 * MIB  # of a driver and its JVM
TASK_BYTES = 150 * MIB  # of a router or a slot, without its state
EXECUTOR_BYTES = 550 * MIB  # of one that is a process of this machine
UNIT_BYTES = 8 << 10  # of a unit, whatever is in it: 4 to 5 KiB in a slot, the rest in the driver, with 2^16 of them
MOVED_PER_S = 2000  # small units in one step, from all slots together: 2^15 took 14 s on two busy processors
JUDGED_BYTES = 2 * GIB / 1e6  # of an event in the verdict, as a soak of windowcount had it (docs/faults.md)
TABLED_BYTES, IN_PART_BYTES = 230, 260  # of keycount: of each event, and of those that are judged together beside that
KEPT_BYTES = sum(field.type.bit_width // 8 for field in TABLES["latency"])  # of each event, in the table of a run
# As TABLED_BYTES if events and results are on disk: of those that are judged together, of a result (its latency, in the
# table and in the summary), of a frame. Measured, of 5 and 8 million made-up events.
SPILLED_BYTES, LATENCY_BYTES, FRAME_BYTES = 700, 100, 48
OF_A_SEARCH = (
    "how long a search for the highest rate takes, and how many events it offers, is not known before: what its "
    "verdict takes in the driver grows with them, and Kafka keeps all of them on its disk"
)


class Resources(NamedTuple):
    """Where keyshift runs: processors that may be used, bytes of memory, and how many of them are free."""

    cpus: int
    memory: int
    free: int

    @classmethod
    def here(cls) -> "Resources":
        """The resources of this process, as they are now."""
        return cls(limits.processors(), *limits.memory())


@dataclass(frozen=True)
class Needs:
    """What one run needs, or several one after the other: the most of each.

    ``cores``: logical ones, of all replicas together. ``processors``: at the least. ``applications``: of Spark, each
    with executors of its own: replicas, and spares for those that die. ``keys_bytes``: of the keys that exist from the
    start, in all processes; ``slots_bytes``: what routers and slots have of them. ``memory``: bytes before the first
    event, ``keys_bytes`` among them. ``verdict_bytes``: what the driver has of all events of a run when it is judged,
    about; nothing is refused for it. ``servers``: in which state is, if it is in some.
    """

    cores: int = 0
    processors: int = 1
    applications: int = 1
    keys_bytes: int = 0
    slots_bytes: int = 0
    memory: int = 0
    verdict_bytes: int = 0
    servers: tuple[str, ...] = ()

    def __or__(self, other: "Needs") -> "Needs":
        """Return what is enough for both, one after the other."""
        most = Needs(*map(max, astuple(self), astuple(other)))
        return replace(most, servers=tuple(dict.fromkeys((*self.servers, *other.servers))))


def needs_of(spec: RunSpec) -> Needs:
    """Compute what a run needs: each replica has all of the job's tasks and state. State in files takes no memory."""
    replicas, backend = spec.job.replicas, backends.get(spec.backend.name)
    in_slots = others = 0
    if isinstance(workload := spec.workload, Keyed):
        stages = sum(len(stage.operator().state_schema) > 0 for stage in spec.workload.stages)  # each has all keys
        state = 0 if backend.files else stages * workload.state_bytes
        in_slots = replicas * workload.from_start * (state + INDEX_BYTES * spec.cores)
        others = 2 * workload.from_start * INDEX_BYTES  # generator and verdict
    tasks = replicas * (JOB_BYTES + TASK_BYTES * spec.cores) + spec.job.spares * JOB_BYTES
    units = replicas * len(spec.tasks) * _units(spec) * UNIT_BYTES
    keys = in_slots + others
    servers = (backend.server,) if backend.server else ()
    return Needs(
        replicas * spec.cores,
        replicas,
        replicas + spec.job.spares,
        keys,
        in_slots,
        tasks + units + keys,
        verdict_bytes(spec, spec.run.load_s),
        servers,
    )


def kept_bytes(spec: RunSpec) -> int:
    """Estimate what a notebook keeps of a run and its repetitions until it ends: the latency of each event."""
    return int(_events(spec, spec.run.load_s) * spec.run.repetitions * KEPT_BYTES)


def verdict_bytes(spec: RunSpec, load_s: float) -> int:
    """Estimate what the driver has of all events of ``load_s`` seconds of a run when they are judged together."""
    events = _events(spec, load_s)
    if spec.workload.only(ALL_UNITS) is None:
        return int(events * JUDGED_BYTES)
    groups = np.arange(1.0, spec.workload.key_groups + 1)
    largest = 1 / np.sum(groups**-spec.workload.skew)  # share of a key group, all of which is judged together
    together = min(events, max(PART_EVENTS, events * largest))
    if events <= TOGETHER_EVENTS or spec.job.replicas > 1 or spec.run.verify == SNAPSHOTS:
        return int(events * TABLED_BYTES + together * IN_PART_BYTES)
    frames = spec.routers * load_s * 1000 / spec.run.frame_ms
    return int(frames * FRAME_BYTES + max(together * SPILLED_BYTES, events * LATENCY_BYTES))


def _events(spec: RunSpec, load_s: float) -> float:
    return sum(load.events(load_s) for load in spec.loads)


def require_needs(spec: RunSpec, place: Profile, resources: Resources) -> None:
    """Raise BadInput, with what is needed and what is there, if a run does not fit into ``place``.

    On this machine its memory counts, and what is free of it if several replicas are to start at once; elsewhere that
    of the executors' Python workers.
    """
    needs, replicas, spark = needs_of(spec), spec.job.replicas, place.spark
    if replicas > 1 and spark.master == CLUSTER:
        raise BadInput(
            f"replicas = {replicas}: each would have executors of its own on this machine, which nobody has tried; use "
            "`--profile local`, or one of Kubernetes"
        )
    place.require_cores(spec.cores)
    _require_time(spec)
    if spark.on_kubernetes:
        there = replicas * spark.executors * spark.python_bytes  # each replica has executors of its own
        if needs.slots_bytes > there and not needs.servers:
            raise BadInput(
                f"the run has {size(needs.slots_bytes)} of keys in its slots before the first event, and "
                f"{replicas * spark.executors} executors have {size(there)} for that; raise spark.executors or "
                f"spark.memory_overhead in the profile, or lower {_what_takes(spec)}"
            )
        return
    if resources.cpus < needs.processors:
        raise BadInput(
            f"replicas = {replicas}: each needs a processor at the least, so {replicas}, and this machine has "
            f"{resources.cpus}; lower replicas"
        )
    there, how = (resources.free, "free") if replicas > 1 else (resources.memory, "there")
    alone = spark.executors_for(spec.cores)
    if (needed := needs.memory + alone * EXECUTOR_BYTES) > there:
        processes = f", {size(alone * EXECUTOR_BYTES)} for {alone} executors" if alone else ""
        raise BadInput(
            f"the run needs {size(needed)} of memory before the first event, {size(needs.keys_bytes)} of them "
            f"for keys{processes}, and {size(there)} are {how}; lower "
            f"{'spark.executors, ' if alone else ''}{_what_takes(spec)}{_or_units(spec, there - needed)}"
        )


def _require_time(spec: RunSpec) -> None:
    """Raise BadInput if a step would take longer than its deadline, as units are many. A savepoint may: slots tell how
    much they have written.
    """
    if (together := moved_together(spec)) > (most := int(MOVED_PER_S * spec.job.deadline_s)):
        raise BadInput(
            f"key_groups = {spec.workload.key_groups}: a step moves {together} units, about {MOVED_PER_S} per second, "
            f"so {together / MOVED_PER_S:.0f} s, and deadline_s = {spec.job.deadline_s:g}; raise deadline_s, or set "
            f"cap = {most} or less"
        )


def _units(spec: RunSpec) -> int:
    return spec.workload.key_groups * spec.workload.bins


def _or_units(spec: RunSpec, room: int) -> str:
    """Advise fewer key groups, if that helps; else nothing. ``room``: what is missing, in bytes, negative."""
    each = spec.job.replicas * len(spec.tasks) * UNIT_BYTES * spec.workload.bins
    groups = spec.workload.key_groups + room // each
    return f", or key_groups to {groups}" if groups >= max(spec.tasks.values()) else ""


def moved_together(spec: RunSpec) -> int:
    """Units of the largest step of the changes that are known before, at the most."""
    most, bins = 0, spec.workload.bins
    for stage in spec.moving:
        slots = spec.slots_of[stage]
        current = begin = Assignment.contiguous(spec.workload.key_groups, slots)
        for number, change in enumerate(spec.changes):
            target = target_of(change, current, [1.0] * spec.workload.key_groups, begin)
            strategy = spec.point().of_migration(number)
            moves = bins * int(np.count_nonzero(current.slot_of != target.slot_of))
            sources, current = len(np.unique(current.slot_of)), target
            if strategy.restarts or strategy.propose:  # through a savepoint, or nobody knows
                continue
            sizes = {"global": strategy.size, "per_source": strategy.size * sources, "matched": sources}
            most = max(most, min(moves, sizes.get(strategy.batch, moves), strategy.cap or moves))
    return most


def _what_takes(spec: RunSpec) -> str:
    more = [("replicas", spec.job.replicas > 1), ("spares", spec.job.spares > 0)]
    names = [*(name for name, many in more if many), "slots", "routers"]
    if isinstance(workload := spec.workload, Keyed):
        names += [f"keys = {workload.keys}", f"state_bytes = {workload.state_bytes}"]
        if "exist" in type(workload).model_fields:
            return f"{', '.join(names)}, or take exist = 'once used'"
    return f"{', '.join(names[:-1])} or {names[-1]}"


def size(amount: int) -> str:
    """Bytes, in the unit that people would take."""
    return f"{amount / GIB:,.1f} GiB" if amount >= GIB else f"{amount / MIB:.0f} MiB"


def executors(place: Profile, needs: Needs) -> str:
    """Give in words where the tasks of a run are."""
    spark, cores = place.spark, needs.cores
    if spark.on_kubernetes:
        there = needs.applications * spark.executors
        return (
            f"{-(-cores // spark.cores)} of {there} executors of {spark.cores} cores in pods, each asking "
            f"for {spark.request_cpu} CPU, {spark.memory} and {spark.memory_overhead}"
        )
    if there := spark.executors_for(cores):
        each = -(-cores // there)
        more = size(there * EXECUTOR_BYTES)
        return f"{there} executors of {each} core{'s' * (each > 1)}, processes of this machine, which take {more} more"
    return "no executors, Spark in one process"


def services(place: Profile, needs: Needs, also: tuple[str, ...] = ()) -> list[str]:
    """Give in words what has to be there beside Spark. ``also``: what else the runs start."""
    words = ["Kafka", "ZooKeeper", "MinIO"]
    if place.services == "embedded":
        several = {word: f"{place.nodes} nodes" for word in words[:2] if place.nodes > 1}
        words = [f"{word} (embedded, {several.get(word, 'one node')})" for word in words]
    else:
        given = place.services.model_dump()
        words = [f"{word} at {given[word.lower()]}" for word in words]
    kubernetes = [f"Kubernetes at {place.spark.master}"] if place.spark.on_kubernetes else []
    return [*words, *needs.servers, *kubernetes, *also]
