"""Measured runs for the simulator: what they say that things cost, and how far simulated ones are off."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf, isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from keyshift.analysis.tables import RunTables
from keyshift.clock import SECOND_US
from keyshift.experiment.possible import slots_at_first
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.forecast import Cluster, Costs, Fit, Load, MeasuredRun, Simulated, fit, require_possible, simulated
from keyshift.forecast.cost import event_cpu_us, event_us
from keyshift.forecast.fitting import SIZES
from keyshift.forecast.model import LEVELS
from keyshift.forecast.simulation import Question
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.ordering import orderings
from keyshift.planner import Strategy, make_plan
from keyshift.planner.targets import zipf_mass
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore
from keyshift.runtime.router import TICK_US
from keyshift.workloads import uses_time
from keyshift.workloads.keyed import Keyed

LEAST_S = 1.0  # measured before a migration, to tell what is usual


@dataclass(frozen=True)
class Calibration:
    """``costs``: from all runs. ``table``: how they were found (``forecast.Fit``).

    ``validation``: a row for each run, simulated with costs from other runs: run, strategy, held_out (the runs without
    which the costs were found: of its strategy, or just this one of a restart; empty if there were too few others),
    and completion_s, spike_ms and bytes_moved as measured, and behind ``simulated_``: NaN if those costs do not tell
    (of a restart, or of more events than a slot can take by costs of other workloads).
    """

    costs: Costs
    table: pd.DataFrame
    validation: pd.DataFrame


@dataclass(frozen=True)
class _SimulatedRun:
    manifest: Manifest
    spec: RunSpec
    point: Strategy
    measured: MeasuredRun

    def simulated(self, costs: Costs) -> Simulated:
        """Simulate the run, with the plan that the planner makes for it, on the machine that it was measured on."""
        spec, measured = self.spec, self.measured
        current = spec.start()
        load = _load(spec, self.manifest)
        target = spec.target(current, None, load.rates.tolist())
        plan = make_plan(self.point, current, target, load.rates.tolist(), spec.workload.seed)
        cluster = Cluster(host_slots=measured.slots, cores=measured.cpus, link_bytes_per_s=inf)
        return simulated(self.point, plan, current, target, load, cluster, costs, spec.workload.seed)


def calibrate(runs: Mapping[str, Sequence[tuple[Manifest, RunTables]]]) -> Calibration:
    """Find costs from runs with their tables, of any points, as ``Study.good()`` has them.

    Each is also simulated with costs that are found without the runs of its strategy (of a restart: without that run),
    and compared. A run whose migration was not complete, or without latency before it, is left out. Raises BadInput for
    a run that cannot be simulated, or if there is too little to find costs from.
    """
    known = [_run(manifest, tables) for some in runs.values() for manifest, tables in some if _measured(manifest)]
    everything = fit([run.measured for run in known])
    rows = [_validated(run, known, everything) for run in known]
    return Calibration(everything.costs, everything.table, pd.DataFrame(rows))


def require_costs(
    points: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any], asked: Mapping[str, Question], in_pods: bool
) -> None:
    """Require, before runs of ``points`` are made (parameters by name over those ``common`` to all), that ``calibrate``
    can find costs from them, and those of everything that is ``asked``, as far as parameters tell. ``in_pods``: so are
    executors.

    Raises BadInput for executors in pods, for a point that cannot be simulated, if none has several steps, or if a
    restart is asked about and there are no two of which one has more state.
    """
    if in_pods:
        raise BadInput(
            "no costs follow from runs whose executors are pods: nobody looks at Python workers there; measure with "
            "`--profile local`, or take runs of the store (from_store)"
        )
    specs = {name: make_spec({**common, **given}) for name, given in points.items()}
    for name, spec in specs.items():
        _require_known(name, spec)
    live = [spec for spec in specs.values() if not spec.point().restarts]
    if specs and not any(_steps(spec) > 1 for spec in live):  # without points, `measure` has the right words
        raise BadInput(f"none of {', '.join(specs)} has several steps, from which costs follow; measure fluid, too")
    sizes = [_state(spec) for spec in specs.values() if spec.point().restarts]
    restarts = [name for name, question in asked.items() if question.strategy.restarts]
    if restarts and max(sizes, default=0) < SIZES * min(sizes, default=1):
        raise BadInput(
            f"{restarts[0]}: what a restart costs follows from two that are measured, one with {SIZES} times as much "
            "state; measure stop_restart with two sizes of state, or leave the restart out"
        )


def usable(store: ResultStore, newest: int = 60) -> dict[str, list[tuple[Manifest, RunTables]]]:
    """The newest runs of a store that ``calibrate`` can use, by strategy, all from machines like that of the newest.

    One that cannot be read, or that somebody deletes meanwhile, is left out. Raises ServiceUnavailable.
    """
    found: dict[str, list[tuple[Manifest, RunTables]]] = {}
    listed = store.list_runs(limit=10 * newest)
    for manifest, tables in islice(_alike(store, listed.loc[listed["status"] == "ok", "run_id"]), newest):
        found.setdefault(manifest.strategy, []).append((manifest, tables))
    return found


def _alike(store: ResultStore, run_ids: Iterable[str]) -> Iterator[tuple[Manifest, RunTables]]:
    """The possible runs whose executors were no pods, from machines like that of the first of them."""
    machine = None
    for run_id in run_ids:
        try:
            manifest = store.get_manifest(run_id)
            _spec(manifest)
            if not _measured(manifest) or manifest.machine != (machine or manifest.machine):
                continue
            tables = store.get_tables(run_id)
        except ServiceUnavailable:
            raise
        except KeyshiftError:  # it cannot be read, or simulated: a cell may have defined its strategy anew since
            continue
        if not _in_pods(tables):
            machine = manifest.machine
            yield manifest, tables


def _measured(manifest: Manifest) -> bool:
    summary = manifest.summary
    needed = ("p99_ms", "completion_s", "spike_ms", "bytes_minimum")
    return summary is not None and all(getattr(summary, name) is not None for name in needed)


def _in_pods(tables: RunTables) -> bool:
    """Whether executors were pods, of which each is sampled as a whole: nobody has looked at their Python workers."""
    return bool(tables["metrics"]["instance"].str.startswith("pod ").any())


def _spec(manifest: Manifest) -> RunSpec:
    """The spec of what was run. Raises BadInput if that cannot be simulated, and PlanRejected as ``RunSpec`` does."""
    spec = make_spec(manifest.parameters)
    _require_known(f"run {manifest.run_id}", spec, live=not {"seconds", "run.seconds"} & manifest.parameters.keys())
    return spec


def _require_known(name: str, spec: RunSpec, live: bool = False) -> None:
    for why in _beyond_the_model(spec, live):
        raise BadInput(f"{name}: {why}")
    require_possible(spec.point().of_migration(0))


def _state(spec: RunSpec) -> int:
    """Bytes of the values of all keys."""
    assert isinstance(spec.workload, Keyed)
    return max(spec.workload.keys * spec.workload.state_bytes, 1)


def _steps(spec: RunSpec) -> int:
    """Steps of the migration, if all units are alike."""
    current = spec.start()
    alike = [1.0] * len(current.owner)
    return len(make_plan(spec.point().of_migration(0), current, spec.target(current), alike, spec.workload.seed).steps)


def _beyond_the_model(spec: RunSpec, live: bool) -> Iterator[str]:
    """Say what a run has that the simulator does not know, and its costs would hide. ``live``: of a job without end."""
    run, job, workload = spec.run, spec.job, spec.workload
    if live:
        yield "a job that lasts has commands, other strategies and rates; take runs"
    if not (isinstance(workload, Keyed) and workload.from_start):
        yield f"the keys of workload {workload.name} are not fixed; take keycount or micro, from the start"
    if any(source.drifts for source in workload.sources):
        yield f"workload = {workload.name}: its later events are not like its earlier ones"
    if spec.point().of_migration(0).replicate and (share := getattr(workload, "active_share", 1.0)) < 1:
        yield f"active_share = {share:g}: copies are simulated as if every event changed its key"
    if len(workload.stages) > 1 or uses_time(workload.stages):
        yield f"workload = {workload.name}: what is simulated is a single stage without timers"
    if job.snapshot_s:
        yield f"snapshot_s = {job.snapshot_s:g}: snapshots are not simulated"
    if job.slots_per_process > 1:
        yield f"slots_per_process = {job.slots_per_process}: each slot is simulated in a process of its own"
    if orderings.get(job.ordering).agrees:
        yield f"ordering = {job.ordering}: neither turns of slots nor replicas are simulated"
    if len(spec.changes) != 1 or spec.scenario.fault or run.rate_steps or run.events or spec.backend.name != "memory":
        yield "not one migration, under one rate of drawn events, without faults and with state in memory"
    if spec.scenario.trigger_s < LEAST_S:
        yield f"trigger_s = {spec.scenario.trigger_s:g}: too short a time to know what is usual; at least {LEAST_S:g} s"


def _run(manifest: Manifest, tables: RunTables) -> _SimulatedRun:
    spec = _spec(manifest)
    if _in_pods(tables):
        raise BadInput(f"run {manifest.run_id}: its executors were pods; take runs whose executors were not")
    latency, metrics = tables["latency"], tables["metrics"]
    since_s = -spec.scenario.trigger_s  # the end of the warm-up, in which a job is slow and takes more
    before = latency.loc[latency["created_s"].between(since_s, 0, inclusive="left"), "latency_ms"]
    workers = metrics[(metrics["metric"] == "cpu_cores") & (metrics["instance"] == "python_workers")]
    cores = workers.loc[workers["t_s"].between(since_s, 0, inclusive="left"), "value"].median()
    point, current = spec.point().of_migration(0), spec.start()
    target = spec.target(current, None, _load(spec, manifest).rates.tolist())
    frame_s, slots, owners = spec.run.frame_ms / 1000, max(spec.tasks.values()), len(set(current.owner))
    idle_s = frame_s * ceil(TICK_US / SECOND_US / frame_s)  # one that owns nothing gets no row of every frame
    assert manifest.summary is not None
    # A job of its own has no other slots before a restart; one of several runs has those of all of them.
    [there] = (spec.tasks if manifest.summary.one_job else slots_at_first(spec)).values()
    measured = MeasuredRun(
        restarts=point.restarts,
        copies_first=point.replicate > 0 and point.copies == "warm_up",
        routers=spec.routers,
        frame_s=frame_s,
        rate=spec.run.rate,
        slots=slots,
        owners=(owners, len(set(target.owner))),
        rows_per_s=spec.routers * (owners / frame_s + (there - owners) / idle_s),
        cpus=manifest.machine.cpus,
        event_s=event_us(spec.workload) / 1e6,
        event_cpu_s=event_cpu_us(spec.workload) / 1e6,
        cores=float(cores),
        latency_ms=np.quantile(before.to_numpy("float64"), LEVELS),
        migration=tables["migration"],
    )
    return _SimulatedRun(manifest, spec, point, measured)


def _load(spec: RunSpec, manifest: Manifest) -> Load:
    """Gather what a run offered and kept by unit: bytes by the number of keys, as many as what moved had in the end."""
    workload, current = spec.workload, spec.start()
    assert isinstance(workload, Keyed) and manifest.summary is not None
    keys = np.bincount(workload.units, minlength=len(current.owner)).astype(float)
    groups = keys.reshape(-1, workload.bins).sum(axis=1)
    mass = np.array(zipf_mass(workload.key_groups, workload.skew)) * (groups > 0)
    share = keys / np.repeat(np.maximum(groups, 1), workload.bins)
    rates = spec.run.rate * np.repeat(mass / mass.sum(), workload.bins) * share
    moves = current.slot_of != spec.target(current, None, rates.tolist()).slot_of
    needed = manifest.summary.bytes_minimum or 0
    key_bytes = needed / keys[moves].sum() if needed and keys[moves].any() else workload.state_bytes
    return Load(rates, keys * key_bytes, keys, spec.routers, spec.run.frame_ms / 1000, spec.job.copy_every_s)


def _validated(run: _SimulatedRun, known: Sequence[_SimulatedRun], everything: Fit) -> dict[str, Any]:
    summary = run.manifest.summary
    assert summary is not None
    alone = run.measured.restarts
    others = [each for each in known if each is not run and (alone or each.manifest.strategy != run.manifest.strategy)]
    held_out, costs = (run.manifest.run_id if alone else run.manifest.strategy), everything.costs
    try:
        found = fit([each.measured for each in others]).costs
        if alone and isnan(found.restart_s):
            raise BadInput("too few restarts")
        costs = found
    except BadInput:
        held_out = ""
    row: dict[str, Any] = {"run": run.manifest.run_id, "strategy": run.manifest.strategy, "held_out": held_out}
    made = None
    with suppress(BadInput):
        made = run.simulated(costs)
    for name in ("completion_s", "spike_ms", "bytes_moved"):
        row |= {name: getattr(summary, name), f"simulated_{name}": nan if made is None else getattr(made, name)}
    return row
