"""What an experiment is: one validated set of parameters, with defaults that finish in about a minute on two cores."""

from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from keyshift.errors import BadInput
from keyshift.keys import Assignment
from keyshift.planner import strategies
from keyshift.planner.targets import scale, shuffle
from keyshift.protocol import faults
from keyshift.registry import unknown
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
    trigger: Literal["scale", "shuffle"] = Field("scale", description="scale to to_slots, or shuffle affected groups")
    affected: int = Field(64, ge=1, description="groups that change their slot (trigger shuffle)")
    frame_ms: float = Field(25.0, gt=0, le=10_000, description="milliseconds between frames of a partition")
    batch_s: float = Field(300.0, ge=5, description="length of a Spark batch in seconds")
    backend: str = Field("memory", description="a name from `keyshift backends`")
    master: Literal["local", "local-cluster"] = Field("local", description="Spark in one process, or two executors")
    deadline_s: float = Field(30.0, gt=0, description="deadline of every phase of a migration, in seconds")
    chunk_bytes: int = Field(4 << 20, ge=1024, le=1 << 28, description="bytes of state per message")
    seed: int = Field(1, ge=0, description="seed of the events")
    repetitions: int = Field(1, ge=1, le=1000, description="runs with seeds seed, seed + 1, …")
    fault: str = Field("none", description="a deliberate protocol fault, to see the verdict notice it")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        strategies.get(self.strategy), backends.get(self.backend), faults.machines.get(self.fault)
        for name in ("slots", "to_slots"):
            if getattr(self, name) > self.key_groups:
                raise BadInput(
                    f"{name} = {getattr(self, name)}: more slots than key groups ({self.key_groups}); "
                    f"lower {name} or raise key_groups"
                )
        if self.trigger_s >= self.seconds:
            raise BadInput(f"trigger_s = {self.trigger_s:g}: must be less than seconds = {self.seconds:g}")
        rows = self.routers * self.tasks * 1000 / self.frame_ms
        if rows > MAX_FRAMES_PER_S:
            raise BadInput(
                f"frame_ms = {self.frame_ms:g} with {self.routers} routers and {self.tasks} slots makes {rows:.0f} "
                f"rows/s between them; at most {MAX_FRAMES_PER_S}: raise frame_ms"
            )
        self.target()
        self.make_workload()
        return self

    @property
    def tasks(self) -> int:
        """Tasks of the keyed stage: slots before or after, whichever is more."""
        return max(self.slots, self.to_slots) if self.trigger == "scale" else self.slots

    @property
    def cores(self) -> int:
        """Cores (logical ones) a query needs: all its tasks run at once."""
        return self.routers + self.tasks

    def start(self) -> Assignment:
        """The assignment before the migration."""
        return Assignment.contiguous(self.key_groups, self.slots)

    def target(self) -> Assignment:
        """The assignment after it."""
        if self.trigger == "scale":
            return scale(self.start(), self.to_slots)
        return shuffle(self.start(), self.affected)

    def make_workload(self) -> Workload:
        """The workload with the parameters it shares with the run. Raises BadInput."""
        return workloads.get(self.workload)(**self.workload_parameters())

    def workload_parameters(self) -> dict[str, Any]:
        """Those parameters that the workload declares."""
        declared = workloads.get(self.workload).model_fields  # type: ignore[attr-defined]
        return {name: getattr(self, name) for name in declared if name in RunSpec.model_fields}


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
        name = ".".join(map(str, first["loc"]))
        field = RunSpec.model_fields.get(name)
        meaning = f" ({field.description})" if field else ""
        raise BadInput(f"{name} = {first['input']!r}: {first['msg'].lower()}{meaning}") from None


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """``name=value`` strings by the declared type of each name. Raises BadInput."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, raw = pair.partition("=")
        if not equals:
            raise BadInput(f"--set {pair!r}: expected name=value")
        field = RunSpec.model_fields.get(name)
        if field is None:
            raise unknown("parameter", name, list(RunSpec.model_fields))
        kind = field.annotation
        choices = get_args(kind)
        if choices and raw not in choices:
            raise BadInput(f"{name} = {raw!r}: allowed are {', '.join(choices)}")
        try:
            values[name] = raw if kind is str or choices or kind is None else kind(raw)
        except ValueError:
            raise BadInput(
                f"{name} = {raw!r}: expected {getattr(kind, '__name__', kind)} ({field.description})"
            ) from None
    return values
