"""The runs of a notebook: named points of one question, and what its figures need of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from keyshift.analysis import metrics
from keyshift.analysis.machine import with_disturbed
from keyshift.analysis.tables import RunTables
from keyshift.analysis.timelines import faults
from keyshift.experiment.parameters import DEFAULTS, declared
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.lab.environment import open_lab
from keyshift.lab.run import run_each, run_in_one_job
from keyshift.model.errors import BadInput, KeyshiftError, PointsDied
from keyshift.planner import change
from keyshift.planner import strategies as known
from keyshift.progress import Say
from keyshift.refusals import made
from keyshift.results.anonymous import anonymous
from keyshift.results.manifest import COUNTS, Manifest
from keyshift.results.store import ResultStore
from keyshift.state import backends
from keyshift.studies import notebook

Points = Mapping[str, Mapping[str, Any]]  # parameters of each point, by its name, over what is common to all
_ALLOWED = "names of strategies in a list, or {name: {strategy: …, settings: {…}}}"
_OF_KEYS = ("background", "cache")  # coordinates that say what becomes of keys behind a unit that moves without them


@dataclass
class Study:
    """The runs of a notebook. ``runs``: of each point, by its name, with their tables. ``died``: why a run of a point
    has none, with the paths of this machine, as whoever waits here looks for its log.
    """

    runs: dict[str, list[tuple[Manifest, RunTables]]]
    specs: dict[str, RunSpec]
    died: dict[str, str] = field(default_factory=dict)

    def __or__(self, other: "Study") -> "Study":
        """The points of both, which have different names."""
        return Study(self.runs | other.runs, self.specs | other.specs, self.died | other.died)

    def add(self, point: str, store: ResultStore, run: Callable[[], Manifest]) -> bool:
        """Add what ``run`` makes as another run of ``point``, or why it died. Gives whether it has ended."""
        try:
            manifest = run()
        except KeyshiftError as error:
            self.died[point] = str(error)
            return False
        self.runs[point].append((manifest, store.get_tables(manifest.run_id)))
        return True

    @property
    def manifests(self) -> list[Manifest]:
        """Manifests of all runs that ended, point by point."""
        return [manifest for some in self.runs.values() for manifest, _ in some]

    @property
    def load(self) -> str:
        """What all points are offered, in words; what differs is left out."""
        words = {"rate": "{:g} events/s", "frame_ms": "frames of {:g} ms"}
        found = {name: {getattr(spec.run, name) for spec in self.specs.values()} for name in words}
        return ", ".join(words[name].format(*values) for name, values in found.items() if len(values) == 1)

    def verdicts(self) -> pd.DataFrame:
        """A row for each run: its point, the verdict, and how many faults were found of each kind."""
        rows = [
            {"point": name, "run": manifest.run_id, "verdict": manifest.status}
            | {count: getattr(manifest.verdict, count) for count in COUNTS}
            for name, some in self.runs.items()
            for manifest, _ in some
        ]
        # A table cuts long texts off: in a copy of the notebook the rest of a path or an address is not known as one.
        rows += [{"point": name, "run": "", "verdict": f"died: {anonymous(why)}"} for name, why in self.died.items()]
        return pd.DataFrame(rows).set_index("point")

    def rows(self) -> list[dict[str, Any]]:
        """Summary rows for tables and figures, named by their points; runs whose verdict is bad are among them."""
        return [
            manifest.summary.model_dump(mode="json") | {"strategy": name}
            for name, some in self.runs.items()
            for manifest, _ in some
            if manifest.summary
        ]

    def good(self) -> dict[str, list[tuple[Manifest, RunTables]]]:
        """The ``runs`` without those whose verdict is bad: they enter no figure."""
        found = {name: [run for run in some if run[0].status == "ok"] for name, some in self.runs.items()}
        return {name: some for name, some in found.items() if some}

    @property
    def correct(self) -> list[str]:
        """The points all of whose runs are correct. As in ``sentences``, no other one is compared."""
        return [name for name, some in self.good().items() if len(some) == len(self.runs[name])]

    def timelines(self) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
        """Latency by second over the repetitions of a point, and the first one's migration: for ``panels``."""
        timelines = {}
        for name, some in self.good().items():
            seconds = [with_disturbed(metrics.per_second(tables["latency"]), tables["metrics"]) for _, tables in some]
            timelines[name] = (
                seconds[0] if len(seconds) == 1 else metrics.over_repetitions(seconds),
                some[0][1]["migration"],
            )
        return timelines

    def tables(self, table: str) -> dict[str, list[pd.DataFrame]]:
        """The table ``table`` (one of ``results.tables.TABLES``) of each good run, by point."""
        return {name: [tables[table] for _, tables in some] for name, some in self.good().items()}

    def without_warm_up(self) -> dict[str, list[pd.DataFrame]]:
        """Latencies of all events that were due behind the warm-up, of each good run, by point."""
        return {
            name: [metrics.without_warm_up(tables["latency"], run.measured_from_s) for run, tables in some]
            for name, some in self.good().items()
        }

    def faults(self) -> dict[str, list[float]]:
        """Read when faults hit the first good run of each point, in seconds from the trigger: for ``panels``."""
        return {name: [at_s for at_s, _ in faults(tables["metrics"])] for name, tables in self.first().items()}

    def offered(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        """The seconds of measured time from which on so many events per second are offered, until the load is over: of
        each point, by source whose rate changes, for ``staircase_panels``.
        """
        found = {}
        for name, spec in self.specs.items():
            warmup_s = spec.run.warmup_s
            found[name] = {
                source.name: [(at_s - warmup_s, rate) for at_s, rate in load.stretches(spec.run.load_s)]
                for source, load in zip(spec.workload.sources, spec.loads, strict=True)
                if load.steps
            }
        return found

    def first(self) -> dict[str, RunTables]:
        """All tables of the first good run of each point: for ``throughput_panels`` and ``resource_panels``."""
        return {name: some[0][1] for name, some in self.good().items()}

    def after(self) -> dict[str, pd.DataFrame]:
        """Latencies from the trigger on, of all repetitions of a point together: for ``timelines.tail``.

        In one job a run ends a few seconds behind its own migration: a longer migration has more results in all.
        """
        together = {name: pd.concat(latencies) for name, latencies in self.tables("latency").items()}
        return {name: latency[latency["created_s"] >= 0] for name, latency in together.items()}

    def curves(self) -> dict[str, pd.DataFrame]:
        """The distribution of ``after`` for ``ccdf_figure``."""
        runs = self.good()
        return {name: metrics.ccdf(latency, len(runs[name])) for name, latency in self.after().items()}

    def effective(self) -> pd.DataFrame:
        """The parameters of every point in which points differ, and those that were not left at their defaults."""
        table = pd.DataFrame({name: spec.parameters() for name, spec in self.specs.items()})
        usual = pd.DataFrame({name: _defaults(spec) for name, spec in self.specs.items()}, dtype=object)
        left = table.eq(usual.reindex(table.index)) | table.isna()
        return table[~left.all(axis=1) | (table.nunique(axis=1) > 1)]

    def versions(self) -> pd.DataFrame:
        """Versions of the software that the runs were made with; more than one column only if it changed meanwhile."""
        found = {repr(sorted(m.versions.items())): m.versions for m in self.manifests}
        return pd.DataFrame([*found.values()]).T.set_axis([f"version {n + 1}" for n in range(len(found))], axis=1)

    def require_good(self) -> None:
        """Raise KeyshiftError if no run is left for figures. Those that are bad are published first: a notebook gets no
        further, and whoever reads it or its batch has to find them. If points died, too, that is what is said.
        """
        if not self.manifests:
            raise PointsDied(f"all points died: {'; '.join(self.died.values())}")
        if not self.good():
            self.publish()
            raise KeyshiftError(
                f"none of the runs is correct, so no figure can be drawn: {', '.join(m.run_id for m in self.manifests)}"
            )

    def publish(self, *others: "Study") -> None:
        """Leave a row per run in the last cell, see ``notebook.publish``, of ``others``, too, whose points may have the
        same names. Then raises PointsDied if some have.
        """
        studies, manifests = [self, *others], dict[str, list[Manifest]]()
        for name, some in (point for study in studies for point in study.runs.items()):
            manifests.setdefault(name, []).extend(manifest for manifest, _ in some)
        notebook.publish(manifests)
        died = [f"{name} ({why})" for study in studies for name, why in study.died.items()]
        if died:
            points = sum(len(study.specs) for study in studies)
            raise PointsDied(f"{len(died)} of {points} points died: {'; '.join(died)}")


def _defaults(spec: RunSpec) -> dict[str, Any]:
    """Defaults of all parameters, with the workload and backend of ``spec``: by their names, and with their parts."""
    found: dict[str, Any] = {}
    for part, fields in declared(type(spec.workload), backends.get(spec.backend.name)).items():
        for name, info in fields.items():
            found[name] = found[f"{part}.{name}"] = info.get_default(call_default_factory=True)
    return found | DEFAULTS


def measure(
    points: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any] | None = None,
    profile: str = "",
    one_job: bool = True,
) -> Study:
    """The runs of ``points``: parameters by name, each over those ``common`` to all.

    ``one_job``: points that differ in strategy, trigger or measured time only are migrations of one running job, see
    ``lab.scripts.series``, and so is one that shares its job with no other, if others share theirs; otherwise each run
    has a job of its own. A point that dies does not stop the others.
    Raises BadInput, before anything is started, for a point that is not possible, and KeyshiftError if all died, or if
    no run is correct (``Study.require_good``).
    """
    study = collect(specs_of(points, common or {}), profile, one_job)
    study.require_good()
    return study


def collect(
    specs: dict[str, RunSpec],
    profile: str = "",
    one_job: bool = False,
    after: Callable[[Manifest], object] = lambda manifest: None,
    say: Say | None = None,
) -> Study:
    """The runs of ``specs_of``, made as by ``measure``; all may have died.

    ``after``: gets each run that has ended, before the next one begins. ``say``: see ``open_lab``.
    """
    study = Study({name: [] for name in specs}, specs)

    def failed(spec: RunSpec, error: KeyshiftError) -> None:
        study.died[names[id(spec)]] = str(error)

    with open_lab([*specs.values()], profile, say, one_job=one_job) as lab:
        study.specs = dict(zip(specs, lab.settled([*specs.values()]), strict=True))
        names = {id(spec): name for name, spec in study.specs.items()}
        for spec, manifest in (run_in_one_job if one_job else run_each)(lab, [*study.specs.values()], failed):
            study.runs[names[id(spec)]].append((manifest, lab.store.get_tables(manifest.run_id)))
            after(manifest)
    return study


def specs_of(points: Points, common: Mapping[str, Any]) -> dict[str, RunSpec]:
    """The specs of ``points``, by their names; see ``measure``. Raises BadInput."""
    specs = {name: make_spec({**common, **given}) for name, given in points.items()}
    if not specs:
        raise BadInput("measure: no point given")
    # Parameters have the names of files, which others may have, too.
    given = [(spec.parameters(), spec.run.events, spec.workload.model_dump()) for spec in specs.values()]
    if alike := [name for number, name in enumerate(specs) if given[number] in given[number + 1 :]]:
        raise BadInput(f"measure: {', '.join(alike)} has the same parameters as another point")
    return specs


class _Choice(BaseModel):
    """A strategy under another name, with other settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: str = Field(description="a name from `keyshift strategies`")
    settings: dict[str, Any] = Field({}, description="coordinates of it that are changed")


def require_free(settings: Mapping[str, Any], *taken: str) -> None:
    """Raise BadInput if the ``settings`` of a notebook have a name that its other parameters set: those would win."""
    if twice := sorted({*taken} & settings.keys()):
        raise BadInput(f"settings: {', '.join(twice)}: set by other parameters of this notebook")


def _names(parameter: str, given: Iterable[Any], allowed: str) -> list[str]:
    """The names in a list. Raises BadInput for what is none, and for one that is there twice: it would be one point."""
    names: list[str] = []
    for name in given:
        if not isinstance(name, str):
            raise BadInput(f"{parameter}: {name!r}: must be {allowed}")
        if name in names:
            raise BadInput(f"{parameter}: {name} is there twice; leave one out")
        names.append(name)
    return names


def named(strategies: Sequence[str] | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A point for each strategy, for ``measure``: parameters of a run, by the name that figures show.

    ``strategies``: names from ``keyshift strategies``, or points of one's own by their names,
    ``{"chunk 16": {"strategy": "chunked", "settings": {"size": 16}}}``. A name alone may stand for a point.
    Raises BadInput, naming the point, for a strategy or a setting that is not known, a value that is refused, and a
    name that is in a list twice.
    """
    if isinstance(strategies, str) or not isinstance(strategies, (Sequence, Mapping)):
        raise BadInput(f"strategies = {strategies!r}: must be {_ALLOWED}")
    if not isinstance(strategies, Mapping):
        strategies = {name: name for name in _names("strategies", strategies, _ALLOWED)}
    points = {}
    for name, chosen in strategies.items():
        told = {"strategy": chosen} if isinstance(chosen, str) else chosen
        if not isinstance(told, Mapping):
            raise BadInput(f"strategies: {name} = {chosen!r}: must be {_ALLOWED}")
        try:
            choice = made(_Choice, dict(told))
            change(known.get(choice.strategy), choice.settings)
        except BadInput as refused:
            raise BadInput(f"strategies: {name}: {refused}") from None
        points[str(name)] = {"strategy": choice.strategy, **choice.settings}
    return points


def on_backends(names: Sequence[str], strategies: Sequence[str] | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Points for ``measure``: each of ``named(strategies)`` on each of the backends ``names``, by both names.

    With a backend that all slots reach, units go by their names. So nothing is copied there, and ``background`` and
    ``cache`` take no effect: points that copy are left out, and of those that differ in these alone the first one
    stands for all, without them. Raises BadInput as ``named``, for a backend that is not known, and for one of which
    no point is left.
    """
    points: dict[str, dict[str, Any]] = {}
    chosen = named(strategies)
    for backend in _names("backends", names, "names from `keyshift backends`"):
        on_it = _on_shared(chosen) if backends.of_library(backend).server else chosen
        if chosen and not on_it:
            raise BadInput(f"backend = {backend}: all slots reach it, so nothing is copied; name one without copies")
        points |= {f"{backend}, {name}": point | {"backend": backend} for name, point in on_it.items()}
    return points


def _on_shared(points: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of ``points`` that differ where all slots reach the store."""
    found: dict[str, dict[str, Any]] = {}
    for name, point in points.items():
        told = {setting: value for setting, value in point.items() if setting not in _OF_KEYS}
        settings = {setting: value for setting, value in point.items() if setting != "strategy"}
        if not change(known.get(point["strategy"]), settings).replicate and told not in found.values():
            found[name] = told
    return found
