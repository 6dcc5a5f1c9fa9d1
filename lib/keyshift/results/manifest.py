"""What was run and what came of it: the manifest of a stored run, published as docs/manifest.schema.json.

A change that removes, renames or redefines a field, or a column of ``results.tables``, is a new ``SCHEMA_VERSION``;
what older versions stored is read as the newest one. A number that could not be measured is null, never 0: a missing
measurement must not win a comparison.
"""

import contextlib
import math
import platform
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.refusals import refusal
from keyshift.results.anonymous import anonymous
from keyshift.services import limits
from keyshift.services.jars import java_version

SCHEMA_VERSION: Literal[4] = 4
EXAMPLES_KEPT = 20
NEW_NAMES = {"then_slots": "then"}  # of parameters: the old one means nothing else today
_NEW_NAMES_4 = NEW_NAMES | {"replicas": "copies"}  # likewise, of parameters of a version before 4
RUN_ID = r"^[0-9]{8}T[0-9]{6}-[a-z0-9_]+-[a-z0-9_]+-[0-9a-f]{6}$"


def _nan_is_null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


Scalar = bool | int | float | str | None
MeasuredValue = Annotated[NonNegativeFloat | None, BeforeValidator(_nan_is_null)]
Moment = Annotated[FiniteFloat | None, BeforeValidator(_nan_is_null)]
Count = Annotated[NonNegativeInt | None, BeforeValidator(_nan_is_null)]
RunId = Annotated[str, Field(pattern=RUN_ID, description="UTC time, workload, strategy and six random hex digits")]
Lost = Annotated[NonNegativeInt, Field(description="expected results that never came")]
Duplicated = Annotated[NonNegativeInt, Field(description="results that came more than once")]
Reordered = Annotated[NonNegativeInt, Field(description="results out of order within one router and key")]
Wrong = Annotated[NonNegativeInt, Field(description="results or final values that differ from the oracle's")]
# Prose of errors and notes, also of Spark's: others read it, and it must not say whose machine it was.
Prose = Annotated[str, AfterValidator(anonymous)]
UtcTime = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Machine(_Record):
    """Where the run took place; holds no host name and no path."""

    cpus: int = Field(ge=1, description="processors this process may use")
    memory_mib: int = Field(ge=1, description="memory this process may use")
    system: str = Field(description="operating system, its release, and the architecture")
    cpu: str = Field(description="processor model")


class Stage(_Record):
    """A keyed stage of the job."""

    name: str
    due: Literal["event", "workload"] = Field(
        description="which results have to come: one for each event, or those that the workload names"
    )


COUNTS = ("lost", "duplicated", "reordered", "wrong", "ownership_violations")  # violations that every run counts


class Verdict(_Record):
    """How the results and the final state compare with the sequential oracle."""

    lost: Lost
    duplicated: Duplicated
    reordered: Reordered
    wrong: Wrong
    ownership_violations: NonNegativeInt = Field(description="writes to a unit by a slot that did not own it")
    others: dict[str, NonNegativeInt] = Field(default_factory=dict, description="further checks: name to violations")
    examples: list[Prose] = Field(
        default_factory=list, max_length=EXAMPLES_KEPT, description="the first violations, one sentence each"
    )

    @property
    def ok(self) -> bool:
        """True if no check found a violation."""
        return not any(getattr(self, name) for name in COUNTS) and not any(self.others.values())


class Summary(_Record):
    """One tidy row per run; a number that could not be measured is null."""

    run_id: RunId
    workload: str = Field(description="what the job computes")
    strategy: str = Field(description="how its state moves")
    verdict: Literal["ok", "bad"] = Field(
        description="whether all results and the final state are as of a sequential run: ok or bad"
    )
    lost: Lost
    duplicated: Duplicated
    reordered: Reordered
    wrong: Wrong
    measured_from_s: Moment = Field(
        default=None, description="end of the warm-up, seconds before the trigger as a negative number"
    )
    events: Count = Field(description="events offered")
    rate_per_s: MeasuredValue = Field(description="events offered per second")
    offered_per_s: MeasuredValue = Field(
        default=None,
        description="events that the generator made, per second of load; if it was late, per second until its last "
        "event",
    )
    sustained_per_s: MeasuredValue = Field(default=None, description="events answered per second while the load lasted")
    results_due: Count = Field(
        default=None, description="results of events that had to come: lost is counted against them"
    )
    backlog: Count = Field(
        default=None,
        description="events offered and not answered when the load ended; includes the few frames that are always on "
        "their way",
    )
    worked_off_s: MeasuredValue = Field(
        default=None, description="end of the load to the last result; null if the run did not wait for it"
    )
    unprocessed: Count = Field(
        default=None,
        description="events offered that the run did not wait for; all measures and the verdict concern the others",
    )
    overloaded: bool = Field(
        default=False,
        description="whether a backlog was left catch_up_s after the load, so that there are unprocessed events",
    )
    rate_changed: bool = Field(
        default=False,
        description="whether a command or a search for the highest rate changed a rate: no parameter tells",
    )
    one_job: bool = Field(
        default=False,
        description="whether the run is one of several migrations of one running job, behind one for practice: no "
        "parameter tells",
    )
    p50_ms: Moment = Field(
        description="median latency of events created after the warm-up and before the trigger, and answered before "
        "it; below 0, as other latencies, if the clock of Kafka's log is behind"
    )
    p99_ms: Moment = Field(
        description="99th percentile of latency of events created after the warm-up and before the trigger, and "
        "answered before it"
    )
    p99_undisturbed_ms: Moment = Field(
        default=None,
        description="as p99_ms, of events created in seconds that are not disturbed; null if there is none, or nobody "
        "looked",
    )
    spike_ms: Moment = Field(
        description="largest per-second P99 from the trigger until migration and recovery are both over; a result "
        "counts for the second in which its event was created"
    )
    silence_ms: MeasuredValue = Field(description="longest time between two successive results, from the trigger on")
    longest_ms: Moment = Field(default=None, description="latency of the slowest event, of results after the trigger")
    completion_s: MeasuredValue = Field(
        description="first routing switch to last installed unit; of several migrations, the sum of theirs, without "
        "the pauses between them, and what overlaps (in two stages) once; null if a step did not install a unit, even "
        "if a later one did, or if the last steps of the last one never began"
    )
    incomplete: bool = Field(
        default=False,
        description="whether units are known not to be where the last migration of their stage wanted them",
    )
    phases: dict[str, MeasuredValue] = Field(description="phase to seconds, see docs/results.md")
    recover_s: MeasuredValue = Field(
        description="trigger until the per-second P99 stays under the objective; 0 if it never was above, null if the "
        "run ended first"
    )
    bytes_moved: Count = Field(
        description="bytes of state sent because of the migration: whole units or their deltas, each time that they "
        "were sent, and keys one by one; null if a source has not told, or the attempt has ended in which keys went "
        "one by one, or units were lent"
    )
    bytes_copied: Count = Field(
        default=None,
        description="bytes of state sent before the migration to make copies, until they were close, but for those "
        "that were made last in an attempt that has ended; null if there are no others",
    )
    bytes_minimum: Count = Field(
        description="bytes of state of the units that moved: as it was sent if units move whole and nothing was copied "
        "before, else in bytes of the final savepoint"
    )
    units_moved: Count = Field(description="units installed at their destination")
    steps: Count = Field(description="steps of the plan that were begun")
    floor_s: MeasuredValue = Field(
        description="bytes_minimum divided by the bandwidth of a bare copy, measured on this machine within a day"
    )
    peak_rss_mib: MeasuredValue = Field(
        description="largest resident memory of all processes of the job together, in one second"
    )
    fewer_replicas_s: MeasuredValue = Field(
        default=None,
        description="seconds of the load in which fewer than `replicas` were full: one had died, and did not keep up "
        "with the others again; null if there is one, and after a resume, as it is not known then",
    )
    cpu_busy: MeasuredValue = Field(
        default=None,
        description="share of the processors that the run may use that was at work before the trigger, 0 to 1, for "
        "whatever; from 0.9 on latencies measure the machine. In a container with a quota: share of that time which "
        "the run had itself",
    )
    cpu_steal: MeasuredValue = Field(
        default=None,
        description="share of those processors that the host gave to others before the trigger, 0 to 1; null in a "
        "container with a quota",
    )
    disturbed_s: MeasuredValue = Field(
        default=None,
        description="seconds after the warm-up in which the host, or processes that are not of the run, had at least a "
        "tenth of those processors; null if nobody looked, as in a container with a quota or with executors in pods",
    )
    parameters: dict[str, Scalar] = Field(description="effective parameters")


class Manifest(_Record):
    """One run as it is stored in ``manifest.json``; written last, so a run that has one is complete."""

    schema_version: Literal[4] = SCHEMA_VERSION
    run_id: RunId
    status: Literal["ok", "bad", "died"] = Field(description="verdict of a run that ended, or died")
    error: Prose | None = Field(default=None, description="why the run died; null otherwise")
    started_at: UtcTime = Field(description="UTC")
    finished_at: UtcTime
    workload: str
    strategy: str
    parameters: dict[str, Scalar] = Field(description="effective parameters")
    versions: dict[str, str] = Field(description="software name to version")
    machine: Machine
    seeds: dict[str, int] = Field(description="what each seed was used for, and its value")
    stages: list[Stage] = Field(min_length=1, description="in the order of the events' way; numbered from 0 in tables")
    replicas: int = Field(default=1, ge=1, description="queries with the same input; numbered from 0 in tables")
    verdict: Verdict | None = Field(default=None, description="null only if the run died")
    summary: Summary | None = Field(default=None, description="null exactly if the run died")
    files: list[str] = Field(default_factory=list, description="the other files of the run; filled in by the store")
    notes: list[Prose] = Field(default_factory=list, description="what a reader of the numbers should know")

    @property
    def measured_from_s(self) -> float:
        """When the warm-up had ended, in seconds from the trigger. Of an older run, which has not written that down, as
        its parameters say; -inf if there was none.
        """
        known = self.summary.measured_from_s if self.summary else None
        return -float(self.parameters.get("trigger_s") or inf) if known is None else known

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.status == "died":
            if not self.error or self.summary is not None:
                raise ValueError("a run that died has an error and no summary")
            return self
        if self.error is not None or self.verdict is None or self.summary is None:
            raise ValueError(f"a run with status {self.status!r} has a verdict, a summary and no error")
        if (self.status == "ok") != self.verdict.ok or self.summary.verdict != self.status:
            raise ValueError(f"status {self.status!r}, the summary's verdict and the counts disagree")
        for name in ("lost", "duplicated", "reordered", "wrong"):
            if getattr(self.summary, name) != getattr(self.verdict, name):
                raise ValueError(f"{name} differs between verdict and summary")
        for name in ("run_id", "workload", "strategy"):
            if getattr(self.summary, name) != getattr(self, name):
                raise ValueError(f"{name} differs between manifest and summary")
        return self


def validate(raw: Any) -> Manifest:
    """The manifest in ``raw`` (parsed JSON, of this version or an older one).

    Raises KeyshiftError naming the field, its value and what is allowed.
    """
    name = raw.get("run_id") if isinstance(raw, dict) else None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise KeyshiftError(
            f"manifest of run {name!r} has schema_version {version}, this keyshift ({metadata.version('keyshift')}) "
            f"reads up to {SCHEMA_VERSION}: upgrade keyshift to read it"
        )
    if version is None:
        raise KeyshiftError(f"manifest of run {name!r} has no schema_version: it is not a keyshift manifest")
    if version == 1 and not {"stages", "replicas"} & raw.keys():
        raw = raw | {"schema_version": SCHEMA_VERSION, "stages": [{"name": str(raw.get("workload")), "due": "event"}]}
        raw = _renamed(raw, _NEW_NAMES_4)
    elif version in (2, 3):  # version 2 had other columns in its tables
        raw = _renamed(raw | {"schema_version": SCHEMA_VERSION}, _NEW_NAMES_4)
    else:
        raw = _renamed(raw, NEW_NAMES)
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        raise KeyshiftError(f"manifest of run {name!r}: {refusal(error.errors(), Manifest)}") from None


def _renamed(raw: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """``raw`` with today's ``names`` of parameters."""
    found, summary = raw.get("parameters"), raw.get("summary")
    if isinstance(found, dict):
        raw = raw | {"parameters": {names.get(name, name): value for name, value in found.items()}}
    if isinstance(summary, dict):
        raw = raw | {"summary": _renamed(summary, names)}
    return raw


def json_schema() -> dict[str, Any]:
    """The published schema of ``manifest.json``; docs/manifest.schema.json is this, as JSON."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }


def new_run_id(workload: str, strategy: str, begun: datetime | None = None) -> str:
    """A new name for a run: UTC time (now, or when it has ``begun``), workload, strategy and six random hex digits, so
    ids sort by time.
    """
    names = "-".join(re.sub(r"[^a-z0-9_]", "_", name.lower()) for name in (workload, strategy))
    return f"{begun or datetime.now(UTC):%Y%m%dT%H%M%S}-{names}-{secrets.token_hex(3)}"


def describe_machine() -> Machine:
    """The size and kind of this machine, without its name."""
    return Machine(
        cpus=limits.processors(),
        memory_mib=limits.memory().total // 2**20,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_model(),
    )


def _cpu_model() -> str:
    # platform.processor() is empty on many Linux systems.
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found.group(1).strip() if found else platform.processor() or "unknown"


def describe_versions() -> dict[str, str]:
    """Versions of everything that may change a result. Java is left out if there is none that Spark can start."""
    services = ("confluent-kafka", "kafka-python", "kazoo", "minio", "redis")
    packages = ("keyshift", *services, "duckdb", "numpy", "pandas", "pyarrow", "pyspark", "rocksdict")
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}
    with contextlib.suppress(ServiceUnavailable):
        versions["java"] = java_version()
    return versions
