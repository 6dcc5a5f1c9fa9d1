"""What an experiment is: parameters in parts, with defaults that finish in about a minute on two cores.

Each parameter is declared once: those of a run and its job in ``parts``, those of a scenario, a workload, a strategy or
a state backend beside its code. Users give them by their names alone (``--set``, notebooks), and ``make_spec`` finds
the part; where two parts have the same name, ``part.name`` says which.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from keyshift.experiment.loads import check_loads, loads_of, routers_of
from keyshift.experiment.parameters import DEFAULTS, declared, owner_of
from keyshift.experiment.parts import AUTO, OF_AUTO, Choice, JobPart, RunPart
from keyshift.experiment.possible import Rehearsal, rehearse
from keyshift.experiment.replicas import NOTHING_MOVES, check_replicas, check_under_order, deaths_of, nothing_moves
from keyshift.experiment.scenario import ALL, AutoscalerPart, Change, ScenarioPart, target_of
from keyshift.model.errors import BadInput, PlanRejected
from keyshift.model.keys import Assignment
from keyshift.ordering import orderings
from keyshift.planner import Strategy, change, in_units, make_plan, require_units, strategies
from keyshift.refusals import made
from keyshift.registry import by_name, require_new
from keyshift.state import backends
from keyshift.traffic.load import SourceLoad
from keyshift.workloads import Workload, parcel_of, untold, workloads

MAX_FRAMES_PER_S = 4000  # rows into the slots that no machine this is meant for can take; a typing error, surely
SNAPSHOTS = "snapshots"  # of ``verify``


@dataclass(frozen=True)
class RunSpec:
    """The effective parameters of one run. Raises BadInput if they are not possible together, PlanRejected if a
    strategy of one's own makes a plan that is none.
    """

    run: RunPart
    job: JobPart
    workload: Workload  # a pydantic model, too
    strategy: Choice
    backend: Choice
    scenario: ScenarioPart
    autoscaler: AutoscalerPart
    unsettled: tuple[str, ...] = ()  # of OF_AUTO, what is to be chosen before it begins; until then the default
    lasts: bool = False  # until it is stopped, whatever ``run`` says of seconds

    def __post_init__(self) -> None:
        run, job, scenario, key_groups = self.run, self.job, self.scenario, self.workload.key_groups
        point = self.point()
        require_units(point, key_groups)
        for name, slots in [("slots", job.slots), ("slots_max", job.slots_max), *scenario.numbers]:
            if slots > key_groups:
                raise BadInput(
                    f"{name} = {slots}: more slots than key groups ({key_groups}); lower {name} or raise key_groups"
                )
        check_loads(self)
        for line in untold(self.backend.settings):
            raise BadInput(f"backend = {self.backend.name}: {line}")
        scenario.check(run.seconds, self.strategy.name, point.restarts)
        if timed := [stage.name for stage in self.workload.stages[1:] if stage.operator().uses_time]:
            raise BadInput(
                f"workload = {self.workload.name}: stage {', '.join(timed)} uses time, and only the first may yet"
            )
        if run.verify == SNAPSHOTS and (why := _without_snapshots(self)):
            raise BadInput(f"verify = {run.verify}: {why}")
        least, most = self.autoscaler.slots_min, self.slots_most
        for name, slots in self.slots_of.items():
            if scenario.trigger == "auto" and not least <= slots <= most:
                raise BadInput(
                    f"slots = {slots} of {name}: trigger = auto begins between slots_min = {least} and slots_max = "
                    f"{most}; change one"
                )
        self._check_script()
        self._check_faults()
        check_replicas(self)
        self._check_ordering()
        if "frame_ms" not in self.unsettled:
            require_rows(self, run.frame_ms)
        for name in self.moving:
            groups = begin = Assignment.contiguous(key_groups, self.slots_of[name])
            for requested in self.changes:
                groups = target_of(requested, groups, [1.0] * key_groups, begin)
        _require_plans(self)
        rehearse(scenario.commands(), Rehearsal(self, self.tasks))

    def _check_ordering(self) -> None:
        """Raise BadInput for what is not possible where slots work in turns, or is not yet."""
        name, heartbeat_ms, frame_ms = self.job.ordering, self.job.heartbeat_ms, self.run.frame_ms
        protocol = orderings.of_library(name)
        if not protocol.agrees:
            return
        if protocol.leads and self.job.takes_snapshots:
            raise BadInput(
                f"ordering = {name} with snapshot_s = {self.job.snapshot_s:g}: a job with leaders goes on from a "
                "snapshot only as one of several replicas yet; set snapshot_s = 0, or replicas = 2"
            )
        if heartbeat_ms < frame_ms:
            raise BadInput(
                f"heartbeat_ms = {heartbeat_ms:g}: an epoch cannot be shorter than a frame, frame_ms = {frame_ms:g}; "
                "raise heartbeat_ms or lower frame_ms"
            )
        if heartbeat_ms > (deadline_ms := self.job.deadline_s * 1000):
            raise BadInput(
                f"heartbeat_ms = {heartbeat_ms:g}: a step would be late before its epoch ends, deadline_s = "
                f"{deadline_ms / 1000:g}; lower heartbeat_ms"
            )
        check_under_order(self.job, self.strategy.name, self.point())
        stages = [stage.name for stage in self.workload.stages]
        if protocol.leads and self.scenario.trigger != NOTHING_MOVES and self.moving != stages[-1:]:
            said, remedy = f"stage = {', '.join(self.moving)}", f"set stage = {stages[-1]}"
            if (trigger := self.scenario.trigger) in ("auto", "script"):
                said = f"trigger = {trigger}, which may move all stages"
                remedy = f"set trigger = scale and stage = {stages[-1]}"
                remedy += ", and leave script out" if trigger == "script" else ""
            raise BadInput(
                f"ordering = {name} with {said}: leaders order the rows of each slot by themselves, so a stage in "
                f"front of another one cannot move; {remedy}"
            )
        if self.job.takes_snapshots and len(stages) > 1:
            raise BadInput(
                f"ordering = {name} with snapshot_s = {self.job.snapshot_s:g}: workload = {self.workload.name} has the "
                f"stages {', '.join(stages)}, which do not come to a snapshot at one epoch yet; set snapshot_s = 0"
            )

    def _check_script(self) -> None:
        scenario, commands = self.scenario, self.scenario.commands()
        if scenario.trigger == "script" and not commands:
            raise BadInput("script is missing: trigger = script needs commands and their times, 4: scale 3; 9: double")
        if commands and scenario.trigger != "script":
            raise BadInput(f"script = {scenario.script}: trigger is {scenario.trigger}; set trigger = script")
        if commands and self.run.events:
            raise BadInput(
                f"events = {self.run.events}: trigger = script may change the rate, and a file has the events of one "
                "load; leave events out, or take another trigger"
            )
        for at_s, command in commands:
            if at_s >= self.run.seconds:
                raise BadInput(f"script: {command} at {at_s:g} s is not before the end, seconds = {self.run.seconds:g}")

    def _check_faults(self) -> None:
        run, job, text = self.run, self.job, self.scenario.fault
        faults = self.scenario.faults()
        if late := [fault.at_s for fault in faults if fault.at_s is not None and fault.at_s >= run.seconds]:
            raise BadInput(f"fault = {text}: {late[0]:g} s is not before the end of the run, seconds = {run.seconds:g}")
        if (deaths := len(deaths_of(job, self.scenario))) > run.recoveries:
            raise BadInput(
                f"{self.scenario.faults_said}: the query dies {deaths} times and is started anew recoveries = "
                f"{run.recoveries} times; raise recoveries"
            )
        for fault in faults:
            if fault.of_migration and self.point().restarts:
                raise BadInput(
                    f"fault = {text}: {self.strategy.name} stops the whole query, it has no phase {fault.phase!r}; "
                    "take kill:slot@12 (seconds of measured time)"
                )
            together = len(self.moving) > 1 and self.scenario.trigger not in ("auto", "script")
            if together and fault.local and fault.of_migration and fault.action != "kill":
                raise BadInput(
                    f"fault = {text} with stage = {self.scenario.stage}: {' and '.join(self.moving)} come to "
                    f"{fault.phase!r} at the same time, and each would be hit; name one stage"
                )
            if fault.phase == "snapshot" and (why := _without_snapshots(self)):
                raise BadInput(f"fault = {text}: {why}")
            if fault.phase == "batch" and job.batch_s >= run.load_s:
                raise BadInput(
                    f"fault = {text}: no batch of Spark ends in {run.load_s:g} s; lower batch_s = {job.batch_s:g}"
                )

    def point(self) -> Strategy:
        """The strategy with what the user changed of it. Raises BadInput."""
        return change(strategies.get(self.strategy.name), self.strategy.settings)

    @cached_property
    def moving(self) -> list[str]:
        """The stages that migrate. Raises BadInput."""
        known, text = [stage.name for stage in self.workload.stages], self.scenario.stage
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        for number, name in enumerate(wanted):
            require_new("stage", text, "stage", name, [*known, ALL], wanted[:number])
        if ALL in wanted:
            if others := ", ".join(name for name in wanted if name != ALL):
                raise BadInput(f"stage = {text}: {ALL} stands alone; leave out {others}, or {ALL}")
            wanted = known
        if (trigger := self.scenario.trigger) in ("auto", "script"):
            if wanted:
                raise BadInput(f"stage = {text}: trigger = {trigger} may move all stages; leave it out")
            return known
        return wanted or known[-1:]

    @cached_property
    def tasks(self) -> dict[str, int]:
        """The slots of each keyed stage that are needed at any time. Raises BadInput."""
        later = [slots for _, slots in self.scenario.numbers]
        if self.scenario.trigger in ("auto", "script"):
            later = [self.slots_most]
        return {
            name: max(slots, self.job.slots_max, *(later if name in self.moving else ()))
            for name, slots in self.slots_of.items()
        }

    @cached_property
    def slots_of(self) -> dict[str, int]:
        """How many slots of each keyed stage own state before the migration. Raises BadInput."""
        names, most = [stage.name for stage in self.workload.stages], self.workload.key_groups
        what = f"a number of slots from 1 to key_groups = {most}, e.g. {names[-1]}:{min(4, most)}"
        given = by_name("stage_slots", self.job.stage_slots, "stage", names, int, 1, most, what)
        return dict.fromkeys(names, self.job.slots) | given

    @property
    def slots_most(self) -> int:
        """The most slots of a stage that the autoscaler, or a script, may ask for."""
        return self.job.slots_max or min(2 * max(self.slots_of.values()), self.workload.key_groups)

    @cached_property
    def loads(self) -> list[SourceLoad]:
        """What is offered of each source. Raises BadInput."""
        return loads_of(self.workload.sources, self.run)

    @cached_property
    def routers_of(self) -> dict[str, int]:
        """How many routers read each source. Raises BadInput."""
        return routers_of(self.workload.sources, self.job.routers, self.job.source_routers)

    @property
    def routers(self) -> int:
        """Routers of all sources together."""
        return sum(self.routers_of.values())

    @property
    def cores(self) -> int:
        """Cores (logical ones) a query needs: all its tasks run at once. Each replica has as many."""
        return self.routers + sum(map(self.job.processes, self.tasks.values()))

    def start(self, stage: str | None = None) -> Assignment:
        """The assignment of ``stage`` before the migration, in the strategy's units; None: the last that migrates."""
        slots = self.slots_of[stage or self.moving[-1]]
        return in_units(self.point(), Assignment.contiguous(self.workload.key_groups, slots))

    @cached_property
    def changes(self) -> list[Change]:
        """What the scenario changes, one migration each. Raises BadInput."""
        skew, first = self.workload.skew, self.workload.stages[0].name
        if later := [source.later_skew for source in self.workload.sources if source.drifts]:
            skew = min(later)
        if self.moving != [first]:  # behind the first one keys are others
            skew = 0.0
        return self.scenario.changes(skew, min(self.tasks[name] for name in self.moving))

    def target(
        self, current: Assignment, change: Change | None = None, heat: Sequence[float] = (), stage: str | None = None
    ) -> Assignment:
        """Compute where ``change`` leads from ``current``, both in units; without one, the first change of the
        scenario.

        ``heat``: records/s of each unit; without it all are alike. ``stage``: whose units they are; None: as in
        ``start``. Raises BadInput if that is not possible.
        """
        bins, heat = self.workload.bins, heat or [1.0] * len(current.owner)
        begin, groups = (Assignment(current.version, each.owner[::bins]) for each in (self.start(stage), current))
        load = [sum(heat[group * bins : (group + 1) * bins]) for group in range(self.workload.key_groups)]
        return in_units(self.point(), target_of(change or self.changes[0], groups, load, begin))

    def repeated(self, number: int) -> "RunSpec":
        """The spec of the ``number``-th repetition, which has other events if they are drawn."""
        if self.run.events:
            return self
        workload = self.workload
        again = workload.model_dump() | {"seed": workload.seed + number}
        return replace(self, workload=type(workload)(**again))

    def settled(self, **chosen: float) -> "RunSpec":
        """The spec with what was ``chosen`` (of OF_AUTO) for what is unsettled, and for nothing else."""
        if not self.unsettled:
            return self
        auto = [name for name in OF_AUTO if name in self.unsettled or name in self.run.auto]
        values = {name: chosen[name] for name in self.unsettled}
        return replace(self, run=self.run.model_copy(update=values | {"auto": ", ".join(auto)}), unsettled=())

    def parameters(self) -> dict[str, Any]:
        """All parameters by name, as ``make_spec`` takes them; None for what is the strategy's own."""
        values: dict[str, dict[str, Any]] = {  # in JSON mode without paths of this machine
            "run": self.run.model_dump(mode="json") | dict.fromkeys(self.unsettled, AUTO),
            "job": self.job.model_dump(),
            "workload": self.workload.model_dump(mode="json"),
            "strategy": self.strategy.settings,
            "backend": self.backend.settings,
            "scenario": self.scenario.model_dump(),
            "autoscaler": self.autoscaler.model_dump(),
        }
        parts = declared(type(self.workload), backends.get(self.backend.name))
        names = {"workload": self.workload.name, "strategy": self.strategy.name, "backend": self.backend.name}
        common = Counter(name for fields in (names, *parts.values()) for name in fields)
        flat = {
            (name if common[name] == 1 else f"{part}.{name}"): values[part].get(name)
            for part, fields in parts.items()
            for name in fields
        }
        return names | flat


def slot_rows_per_s(spec: RunSpec, frame_ms: float) -> float:
    """Rows into the slots of all replicas, if all slots own state; see ``JobPart.rows``."""
    return spec.job.replicas * spec.job.rows(spec.routers, spec.tasks.values()) * 1000 / frame_ms


def require_rows(spec: RunSpec, frame_ms: float) -> None:
    """Raise BadInput if frames of this length make too many rows."""
    if (rows := slot_rows_per_s(spec, frame_ms)) > MAX_FRAMES_PER_S:
        raise BadInput(
            f"frame_ms = {frame_ms:g} with {spec.routers} routers and {', '.join(map(str, spec.tasks.values()))} slots "
            f"makes {rows:.0f} rows/s between them in all replicas; at most {MAX_FRAMES_PER_S}: raise frame_ms or "
            "slots_per_process"
        )


def _without_snapshots(spec: RunSpec) -> str:
    """Say why no snapshot is taken, and what helps; empty if some are."""
    if not spec.job.takes_snapshots:
        return "no snapshots are taken; set snapshot_s, and no replicas"
    if not spec.lasts and spec.job.snapshot_s >= spec.run.load_s:
        return f"no snapshot is taken in {spec.run.load_s:g} s; lower snapshot_s = {spec.job.snapshot_s:g}"
    return ""


def _require_plans(spec: RunSpec) -> None:
    """Refuse a plan that breaks an invariant, or a workload that cannot leave this process, before any start.

    Raises PlanRejected, and BadInput.
    """
    point = spec.point()
    for name in spec.moving if point.propose else ():
        current = spec.start(name)
        for requested in spec.changes:
            heat = [1.0] * len(current.owner) if spec.job.replicas == 1 else []  # as the job will give it
            target = spec.target(current, requested, heat, name)
            try:
                make_plan(point, current, target, heat, spec.workload.seed)
            except PlanRejected as error:
                raise PlanRejected(f"strategy = {spec.strategy.name}: {error}") from error
            current = target
    parcel_of(type(spec.workload))


def make_spec(values: Mapping[str, Any], lasts: bool = False) -> RunSpec:
    """The spec with these values, by name, over the defaults. Raises BadInput, one line, naming value and remedy.

    ``lasts``: of a job that runs until it is stopped.
    """
    names = {part: str(values.get(part, name)) for part, name in DEFAULTS.items()}
    workload, backend = workloads.get(names["workload"]), backends.of_library(names["backend"])
    strategy = strategies.get(names["strategy"])
    parts = declared(workload, backend)
    given: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for name, value in values.items():
        if name not in names:
            part, own = owner_of(name, parts, names)
            if own in given[part]:
                raise BadInput(f"{part}.{own} is given twice; leave one out")
            given[part][own] = value
    unsettled = tuple(name for name in OF_AUTO if given["run"].get(name) == AUTO)
    for name in OF_AUTO:
        if name in str(given["run"].get("auto", "")) and name not in given["run"]:
            raise BadInput(f"auto = {given['run']['auto']}: a run says that of itself; ask for it by {name}=auto")
    for name in unsettled:
        del given["run"][name]
    job = made(JobPart, given["job"])
    if "trigger" not in given["scenario"] and nothing_moves(job, given["scenario"]):
        given["scenario"]["trigger"] = NOTHING_MOVES
    settings = {name: value for name, value in given["strategy"].items() if value is not None}
    bins = change(strategy, settings).bins
    chosen = made(workload, given["workload"] | {"bins": bins})
    for source in chosen.sources:
        source.require()
    return RunSpec(
        made(RunPart, given["run"]),
        job,
        chosen,
        Choice(name=names["strategy"], settings=settings),
        Choice(name=names["backend"], settings=made(backend.settings, given["backend"]).model_dump()),
        made(ScenarioPart, given["scenario"]),
        made(AutoscalerPart, given["autoscaler"]),
        unsettled,
        lasts,
    )
