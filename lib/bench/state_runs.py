"""What a job that lasts costs, in whole runs: a chain of stages, snapshots, and a death beside a planned restart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.measurements import Measurement
from keyshift.analysis import metrics
from keyshift.analysis.tables import RunTables
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import MIB
from keyshift.progress import tell
from keyshift.studies.study import collect

SNAPSHOT_S, KILL_S, TRIGGER_S = 5.0, 10.0, 4.0
QUIET_S = 15.0  # before the migration: three intervals between snapshots, behind the first one, which writes everything
WRITTEN_AT_MOST, RECOVERY_AT_MOST = 0.05, 1.5

# A migration belongs to every run; of these what counts is the time before it.
_CHAIN = {"workload": "chain", "keys": 4000, "state_bytes": 256, "seconds": 21.0, "trigger_s": 17.0, "to_slots": 3}
# 256 MiB of state. Within an interval 750 events touch some 1 % of the keys.
_SNAPSHOTS = {
    "keys": 65_536,
    "state_bytes": 4096,
    "rate": 150.0,
    "warmup_s": 8.0,
    "seconds": 22.0,
    "trigger_s": 18.0,
    "to_slots": 3,
}
_DEATH = {"seconds": 26.0, "trigger_s": TRIGGER_S, "snapshot_s": SNAPSHOT_S}
SPECS: dict[str, Mapping[str, Any]] = {
    "one stage": _CHAIN | {"chain": "counter"},
    "three stages": _CHAIN | {"chain": "counter,counter,counter"},
    "no snapshots": _SNAPSHOTS,
    "snapshots": _SNAPSHOTS | {"snapshot_s": SNAPSHOT_S},
    "restart": _DEATH | {"strategy": "stop_restart"},
    "death": _DEATH | {"fault": f"kill:slot@{KILL_S:g}"},
}


# Part, measure, unit and figure of what is compared, the runs that have it, and the aim for their ratio.
COMPARED = (
    ("chain", "P50 (ms) of three stages", "ms", "P50 (ms)", ("three stages", "one stage"), 3.0),
    ("chain", "P99 (ms) of three stages", "ms", "P99 (ms)", ("three stages", "one stage"), None),
    ("snapshots", f"P99 with one every {SNAPSHOT_S:g} s", "ms", "P99 (ms)", ("snapshots", "no snapshots"), 1.3),
    ("recovery", "silence after a killed worker", "ms", "silence (ms)", ("death", "restart"), RECOVERY_AT_MOST),
)


def whole_runs(repetitions: int) -> list[Measurement]:
    """Every run of SPECS in turn, so often, and what follows. Raises AssertionError if a verdict is not ok."""
    specs = {name: make_spec({**given, "repetitions": repetitions}) for name, given in SPECS.items()}
    study = collect(specs, after=lambda run: tell(f"{run.run_id}: {run.status}"), say=lambda line: None)
    verdicts = study.verdicts()["verdict"]
    assert (verdicts == "ok").all(), verdicts.to_dict()
    found = {name: [_figures(tables, specs[name]) for _, tables in runs] for name, runs in study.runs.items()}
    for name, repeated in found.items():
        for figures in repeated:
            tell(f"{name}: " + ", ".join(f"{what} {value:.4g}" for what, value in figures.items()))
    return measurements(found)


def measurements(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Measurement]:
    """What is compared with what; ``found``: the figures of each repetition of each of SPECS, by their names."""

    def of(name: str, figure: str) -> list[float]:
        return [figures[figure] for figures in found[name]]

    rows = [
        Measurement(part, measure, unit, of(ours, figure), of(other, figure), aim)
        for part, measure, unit, figure, (ours, other), aim in COMPARED
    ]
    written, state = (of("snapshots", figure) for figure in ("written (MiB)", "state (MiB)"))
    rows.append(Measurement("snapshots", "written by one, of the state", "MiB", written, state, WRITTEN_AT_MOST))
    normal = f"until P99 is normal, less {SNAPSHOT_S:g} s of replay"
    replayed = [value - SNAPSHOT_S for value in of("death", "recovery (s)")]
    rows.append(Measurement("recovery", normal, "s", replayed, of("restart", "recovery (s)"), RECOVERY_AT_MOST))
    return sorted(rows, key=lambda row: row.part)


def figures_of(latency: pd.DataFrame, snapshots: pd.DataFrame, quiet_s: float, disturbed_s: float) -> dict[str, float]:
    """Figures before a run's migration, of its snapshots then, and after what happens ``disturbed_s`` from the trigger.

    ``quiet_s``: seconds before the migration that count.
    """
    p50, p99 = metrics.before(latency, -quiet_s)
    assert p50 is not None and p99 is not None, "no results before the migration"
    after = latency.assign(created_s=latency["created_s"] - disturbed_s)
    recovery = metrics.recover_s(metrics.per_second(after), metrics.objective_ms(p99))
    figures = {"P50 (ms)": p50, "P99 (ms)": p99, "silence (ms)": metrics.silence_ms(after) or 0.0}
    figures["recovery (s)"] = float("nan") if recovery is None else recovery
    taken = snapshots.loc[snapshots["begun_s"].between(-quiet_s, 0.0)]
    for figure, column in (("written (MiB)", "bytes_written"), ("state (MiB)", "bytes_state")):
        figures[figure] = float(np.median(taken[column])) / MIB if len(taken) else float("nan")
    return figures


def _figures(tables: RunTables, spec: RunSpec) -> dict[str, float]:
    disturbed_s = KILL_S - spec.scenario.trigger_s if spec.scenario.fault else 0.0
    return figures_of(tables["latency"], tables["snapshots"], min(QUIET_S, spec.scenario.trigger_s), disturbed_s)
