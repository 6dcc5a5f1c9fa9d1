"""What an experiment is: one validated set of parameters, with defaults that finish in about a minute on two cores."""

from collections.abc import Sequence
from types import NoneType
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from keyshift.errors import BadInput
from keyshift.keys import Assignment
from keyshift.planner import Strategy, change, in_units, settings, strategies, targets
from keyshift.registry import named_values, unknown
from keyshift.state import backends
from keyshift.workloads import Workload, workloads

MAX_FRAMES_PER_S = 4000  # rows into the slots that no machine this is meant for can take; a typing error, surely


class RunSpec(BaseModel):
    """The effective parameters of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload: str = Field("keycount", description="a name from `keyshift workloads`")
    strategy: str = Field("fluid", description="a name from `keyshift strategies`")
    rate: float = Field(2000.0, gt=0, description="events per second offered, all routers together")
    seconds: float = Field(24.0, gt=0, description="measured time in seconds, after the warm-up")
    warmup_s: float = Field(4.0, ge=0, description="load before the measured time, in seconds")
    trigger_s: float = Field(8.0, ge=0, description="seconds of measured time before the migration")
    keys: int = Field(20_000, ge=1, description="number of distinct keys")
    skew: float = Field(0.8, ge=0, le=10, description="Zipf exponent over key groups; 0 is uniform")
    state_bytes: int = Field(1024, ge=16, le=1 << 26, description="bytes of state per key")
    key_groups: int = Field(128, ge=1, le=1 << 15, description="number of key groups")
    routers: int = Field(2, ge=1, le=64, description="routers, one per Kafka partition")
    slots: int = Field(2, ge=1, description="slots that own state before the migration")
    to_slots: int = Field(4, ge=1, description="slots that own state after it (trigger scale)")
    then_slots: str = Field("", description="further numbers of slots, one migration each: 4,8,6 (trigger scale)")
    gap_s: float = Field(6.0, gt=0, description="seconds from one migration's trigger to the next one's")
    on_overlap: Literal["queue", "replace", "cancel"] = Field(
        "queue", description="what a trigger does while the migration before is under way"
    )
    trigger: Literal["scale", "shuffle", "balance", "zipf", "map"] = Field(
        "scale", description="scale to to_slots, shuffle affected groups, balance measured load or Zipf mass, or a map"
    )
    affected: int = Field(64, ge=1, description="groups that change their slot (trigger shuffle)")
    moves: str = Field("", description="groups and their new slots, 0:3,7:1 (trigger map)")
    frame_ms: float = Field(20.0, gt=0, le=10_000, description="milliseconds between frames of a partition")
    batch_s: float = Field(300.0, ge=5, description="length of a Spark batch in seconds")
    backend: str = Field("memory", description="a name from `keyshift backends`")
    master: Literal["local", "local-cluster"] = Field("local", description="Spark in one process, or two executors")
    catch_up_s: float = Field(
        60.0, gt=0, description="seconds after the load in which a backlog must be worked off, or the job is overloaded"
    )
    deadline_s: float = Field(30.0, gt=0, description="deadline of every phase of a migration, in seconds")
    chunk_bytes: int = Field(4 << 20, ge=1024, le=1 << 28, description="bytes of state per message")
    queue_bytes: int = Field(64 << 20, ge=1 << 16, description="bytes of records that may wait in a slot or a router")
    copy_every_s: float = Field(1.0, gt=0, description="seconds between rounds of copying, with replicate")
    copy_lag_keys: int = Field(200, ge=0, description="changed keys per round at which copies count as close")
    recoveries: int = Field(1, ge=0, le=100, description="how often the query may die and is started anew")
    seed: int = Field(1, ge=0, description="seed of the events")
    repetitions: int = Field(1, ge=1, le=1000, description="runs with seeds seed, seed + 1, …")

    # The strategy as a point of its space; left out, they are the preset's own (`keyshift strategies --json`).
    order: str | None = Field(None, description="strategy: which unit first (id, reverse, random, hottest, access)")
    batch: str | None = Field(None, description="strategy: what makes a step (all, global, per_source, matched)")
    size: int | None = Field(None, description="strategy: units per step (global) or per source and step (per_source)")
    cap: int | None = Field(None, description="strategy: units per step at the most; 0 is no cap")
    replicate: int | None = Field(None, description="strategy: copy every n-th key group before; 0 is none")
    replicas: str | None = Field(
        None, description="strategy: copies from the trigger on (warm_up) or before (periodic)"
    )
    holders: str | None = Field(None, description="strategy: copies kept at the destination, or along a ring")
    handover: str | None = Field(None, description="strategy: a copied unit hands over a delta, or the whole")
    unit: str | None = Field(None, description="strategy: what moves (group, bin, key)")
    bins: int | None = Field(None, description="strategy: bins per key group, a power of two")
    gate: str | None = Field(None, description="strategy: what waits (none, slots, router, query)")
    transfer: str | None = Field(None, description="strategy: what makes state move (push, fetch, access, remote)")
    background: bool | None = Field(None, description="strategy: whether what no record asks for moves too")
    fetch_back: int | None = Field(None, description="strategy: how often a unit may travel back for a late record")
    fetch_interval_ms: int | None = Field(None, description="strategy: milliseconds of requests that go together")
    cache: bool | None = Field(None, description="strategy: whether remote keys are kept where they are used")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        backends.get(self.backend)
        point = self.point()
        later = [("then_slots", slots) for slots in self.reconfigurations[1:]]
        for name, slots in [("slots", self.slots), ("to_slots", self.to_slots), *later]:
            if slots > self.key_groups:
                raise BadInput(
                    f"{name} = {slots}: more slots than key groups ({self.key_groups}); "
                    f"lower {name} or raise key_groups"
                )
        if self.trigger_s >= self.seconds:
            raise BadInput(f"trigger_s = {self.trigger_s:g}: must be less than seconds = {self.seconds:g}")
        if self.then_slots and (self.trigger != "scale" or point.restarts):
            raise BadInput(
                f"then_slots = {self.then_slots}: only a live migration with trigger = scale goes on to other numbers"
            )
        last_s = self.trigger_s + self.gap_s * (len(self.reconfigurations) - 1)
        if last_s >= self.seconds:
            raise BadInput(
                f"seconds = {self.seconds:g}: the last of {len(self.reconfigurations)} migrations is triggered at "
                f"{last_s:g} s; raise seconds or lower gap_s = {self.gap_s:g}"
            )
        rows = self.routers * self.tasks * 1000 / self.frame_ms
        if rows > MAX_FRAMES_PER_S:
            raise BadInput(
                f"frame_ms = {self.frame_ms:g} with {self.routers} routers and {self.tasks} slots makes {rows:.0f} "
                f"rows/s between them; at most {MAX_FRAMES_PER_S}: raise frame_ms"
            )
        groups = Assignment.contiguous(self.key_groups, self.slots)
        for number in range(len(self.reconfigurations)):
            groups = self.target_groups(groups, number, [1.0] * self.key_groups)
        self.start()
        self.make_workload()
        return self

    def point(self) -> Strategy:
        """The strategy with what the user changed of it. Raises BadInput."""
        preset = strategies.get(self.strategy)
        wanted = {name: getattr(self, name) for name in settings(preset)}
        return change(preset, {name: value for name, value in wanted.items() if value is not None})

    @property
    def reconfigurations(self) -> list[int]:
        """Numbers of slots, one for each migration; they count only with trigger scale."""
        try:
            return [self.to_slots, *(int(part) for part in self.then_slots.split(",") if part)]
        except ValueError:
            raise BadInput(f"then_slots = {self.then_slots!r}: must be whole numbers and commas, e.g. 4,8,6") from None

    @property
    def tasks(self) -> int:
        """Tasks of the keyed stage: the slots that are needed at any time."""
        return max(self.slots, *self.reconfigurations) if self.trigger == "scale" else self.slots

    @property
    def cores(self) -> int:
        """Cores (logical ones) a query needs: all its tasks run at once."""
        return self.routers + self.tasks

    def start(self) -> Assignment:
        """The assignment before the migration, in the strategy's units."""
        return in_units(self.point(), Assignment.contiguous(self.key_groups, self.slots))

    def target(self, current: Assignment, number: int = 0, heat: Sequence[float] = ()) -> Assignment:
        """Where the ``number``-th migration leads from ``current``, both in units. ``heat``: records/s of each unit."""
        point = self.point()
        groups = Assignment(current.version, current.owner[:: point.bins])
        load = [sum(heat[group * point.bins : (group + 1) * point.bins]) for group in range(self.key_groups)]
        return in_units(point, self.target_groups(groups, number, load))

    def target_groups(self, groups: Assignment, number: int, load: Sequence[float]) -> Assignment:
        """The same for whole key groups. Raises BadInput for a target that is not possible."""
        match self.trigger:
            case "scale":
                return targets.scale(groups, self.reconfigurations[number])
            case "shuffle":
                return targets.shuffle(groups, self.affected)
            case "balance":
                return targets.balance(groups, load, self.slots)
            case "zipf":
                return targets.zipf_balance(groups, self.skew, self.slots)
        return targets.explicit(groups, self._moves(), self.slots)

    def _moves(self) -> dict[int, int]:
        try:
            pairs = [part.split(":") for part in self.moves.split(",")]
            return {int(group): int(slot) for group, slot in pairs}
        except ValueError:
            raise BadInput(f"moves = {self.moves!r}: trigger map needs group:slot pairs, e.g. 0:3,7:1") from None

    def make_workload(self) -> Workload:
        """The workload with the parameters it shares with the run. Raises BadInput."""
        return workloads.get(self.workload)(**self.workload_parameters())

    def workload_parameters(self) -> dict[str, Any]:
        """Those parameters that the workload declares."""
        declared = workloads.get(self.workload).model_fields  # type: ignore[attr-defined]
        shared = {name: getattr(self, name) for name in declared if name in RunSpec.model_fields}
        return shared | {"bins": self.point().bins}


def make_spec(values: dict[str, Any]) -> RunSpec:
    """The spec with these values over the defaults. Raises BadInput, one line, naming value and remedy."""
    known = list(RunSpec.model_fields)
    for name in values:
        if name not in known:
            raise unknown("parameter", name, known)
    try:
        return RunSpec(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        field = RunSpec.model_fields.get(name)
        meaning = f" ({field.description})" if field else ""
        raise BadInput(f"{name} = {first['input']!r}: {first['msg'].lower()}{meaning}") from None


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """``name=value`` strings by the declared type of each name. Raises BadInput."""
    values: dict[str, Any] = {}
    for name, raw in named_values(pairs):
        field = RunSpec.model_fields.get(name)
        if field is None:
            raise unknown("parameter", name, list(RunSpec.model_fields))
        kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
        choices = [kind for kind in kinds if isinstance(kind, str)]
        kind: Any = kinds[0] if kinds and not choices else field.annotation
        if choices and raw not in choices:
            raise BadInput(f"{name} = {raw!r}: allowed are {', '.join(choices)}")
        try:
            values[name] = raw if choices or kind is str else _booleans[raw] if kind is bool else kind(raw)
        except (ValueError, KeyError):
            expected = "true or false" if kind is bool else getattr(kind, "__name__", kind)
            raise BadInput(f"{name} = {raw!r}: expected {expected} ({field.description})") from None
    return values


_booleans = {"true": True, "false": False}
