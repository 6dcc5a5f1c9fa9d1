"""What a job that lasts costs, in whole runs: a chain of stages, snapshots, and a death beside a planned restart."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.measurements import Measurement
from keyshift.analysis import metrics
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.lab.environment import open_lab
from keyshift.lab.run import Lab
from keyshift.progress import tell

SNAPSHOT_S, KILL_S, TRIGGER_S = 5.0, 10.0, 4.0
QUIET_S = 15.0  # before the migration: three intervals between snapshots, behind the first one, which writes everything
MIB = 1 << 20
CHAIN_AT_MOST, SNAPSHOT_AT_MOST, WRITTEN_AT_MOST, RECOVERY_AT_MOST = 3.0, 1.3, 0.05, 1.5

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


def whole_runs(repetitions: int) -> list[Measurement]:
    """Every run of SPECS in turn, so often, and what follows. Raises AssertionError if a verdict is not ok."""
    specs = {name: make_spec(dict(given)) for name, given in SPECS.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in specs}
    with open_lab(list(specs.values()), say=lambda line: None) as lab:
        for repetition in range(repetitions):
            for name, spec in specs.items():
                found[name].append(_figures(lab, spec.repeated(repetition)))
                tell(f"{name}: " + ", ".join(f"{what} {value:.4g}" for what, value in found[name][-1].items()))
    return measurements(found)


def measurements(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Measurement]:
    """What is compared with what; ``found``: the figures of each repetition of each of SPECS, by their names."""

    def of(name: str, figure: str) -> list[float]:
        return [figures[figure] for figures in found[name]]

    replayed = [value - SNAPSHOT_S for value in of("death", "recovery (s)")]
    return [
        Measurement(
            "chain", f"{figure} of three stages", "ms", of("three stages", figure), of("one stage", figure), aim
        )
        for figure, aim in (("P50 (ms)", CHAIN_AT_MOST), ("P99 (ms)", None))
    ] + [
        Measurement(
            "snapshots",
            f"P99 with one every {SNAPSHOT_S:g} s",
            "ms",
            of("snapshots", "P99 (ms)"),
            of("no snapshots", "P99 (ms)"),
            SNAPSHOT_AT_MOST,
        ),
        Measurement(
            "snapshots",
            "written by one, of the state",
            "MiB",
            of("snapshots", "written (MiB)"),
            of("snapshots", "state (MiB)"),
            WRITTEN_AT_MOST,
        ),
        Measurement(
            "recovery",
            "silence after a killed worker",
            "ms",
            of("death", "silence (ms)"),
            of("restart", "silence (ms)"),
            RECOVERY_AT_MOST,
        ),
        Measurement(
            "recovery",
            f"until P99 is normal, less {SNAPSHOT_S:g} s of replay",
            "s",
            replayed,
            of("restart", "recovery (s)"),
            RECOVERY_AT_MOST,
        ),
    ]


def figures_of(latency: pd.DataFrame, snapshots: pd.DataFrame, quiet_s: float, disturbed_s: float) -> dict[str, float]:
    """Of one run: before its migration, of its snapshots then, and after what happens ``disturbed_s`` from the trigger.

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


def _figures(lab: Lab, spec: RunSpec) -> dict[str, float]:
    manifest = lab.run(spec)
    assert manifest.status == "ok", f"run {manifest.run_id}: verdict {manifest.status}"
    latency = lab.store.get_table(manifest.run_id, "latency")
    snapshots = lab.store.get_table(manifest.run_id, "snapshots")
    disturbed_s = KILL_S - spec.scenario.trigger_s if spec.scenario.fault else 0.0
    return figures_of(latency, snapshots, min(QUIET_S, spec.scenario.trigger_s), disturbed_s)
