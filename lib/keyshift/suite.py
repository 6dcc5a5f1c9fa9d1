"""The public face: all that notebooks import comes from here, and stays where it is when the library is rearranged.

A name is loaded when it is used: a notebook that only plans does not load Spark or a client of a service.
"""

from typing import Any

import pandas as pd

# Tables are whole: whoever reads a copy cannot ask for what is left out.
pd.set_option("display.max_rows", 500)
pd.set_option("display.max_columns", None)

_NAMES_OF = {
    "keyshift.analysis": ("metrics", "statistics", "timelines"),
    "keyshift.analysis.conclusions": ("rescaling_sentences", "sentences", "tradeoff_sentences", "verdict_sentences"),
    "keyshift.analysis.plots.strategies": ("ccdf_figure", "pareto"),
    "keyshift.analysis.fired_windows": ("fired", "fired_sentences"),
    "keyshift.analysis.incidents": ("incident_sentences", "incident_table", "overlap_sentences"),
    "keyshift.analysis.interruptions": (
        "fault_moments",
        "interruption_sentences",
        "interruptions",
        "silences_around",
        "steady_sentences",
    ),
    "keyshift.analysis.overhead": ("overhead_sentences", "overhead_table"),
    "keyshift.analysis.plots.live": ("exploration", "exploration_sentences"),
    "keyshift.analysis.plots.plans": ("plan_panels",),
    "keyshift.analysis.plans": ("CostModel", "modelled", "plan_sentences", "plan_table"),
    "keyshift.analysis.plots.timelines": ("panels", "resource_panels", "snapshot_figure", "throughput_panels"),
    "keyshift.analysis.rates": ("RATE_MEASURES", "rate_ratio_sentences", "rate_sentences"),
    "keyshift.analysis.plots.sweeps": ("phase_bars", "sweep_bars", "sweep_lines"),
    "keyshift.analysis.sweeps": ("ranking", "ranking_sentences"),
    "keyshift.analysis.tables": ("MEASURES", "comparison_table", "differences", "points", "tradeoffs"),
    "keyshift.analysis.plots.rescaling": ("rescaling_figure", "rescalings"),
    "keyshift.analysis.plots.replicas": ("cost_figure", "latency_boxes", "masking_panels", "staircase_panels"),
    "keyshift.analysis.plots.scaling": (
        "scaling_costs",
        "scaling_decisions",
        "scaling_figure",
        "scaling_sentences",
        "scaling_timeline",
    ),
    "keyshift.analysis.plots.simulated": (
        "simulated_lines",
        "simulated_pareto",
        "simulation_sentences",
        "validation_figure",
    ),
    "keyshift.checks": ("check_backend", "check_ordering", "check_strategy", "check_workload"),
    "keyshift.control.explorer": ("Explorer", "live_picture"),
    "keyshift.control.watched": ("WatchedJob", "play"),
    "keyshift.model.errors": ("KeyshiftError",),
    "keyshift.model.frames": ("EVENT_FIELDS",),
    "keyshift.model.keys": ("Assignment", "Step", "units_of"),
    "keyshift.forecast.calibration": ("calibrate", "require_costs", "usable"),
    "keyshift.lab.environment": ("open_lab", "start_job"),
    "keyshift.peers.engines": ("measure_beside_engines", "measure_rates_beside_engines"),
    "keyshift.peers.plain_run": ("measure_beside_plain",),
    "keyshift.experiment.commands": ("Cancel", "MoveBy", "Rate", "Scale"),
    "keyshift.experiment.live_spec": ("live_spec",),
    "keyshift.studies.notebook": ("publish",),
    "keyshift.lab.run": ("run_all",),
    "keyshift.forecast.simulation": ("questions", "simulate"),
    "keyshift.experiment.spec": ("make_spec",),
    "keyshift.studies.highest_rate": ("measure_highest_rates",),
    "keyshift.studies.stored_runs": ("comparable", "open_store", "over_rates"),
    "keyshift.studies.study": ("measure", "named", "on_backends", "require_free"),
    "keyshift.place.profile": ("load_profile",),
    "keyshift.planner": ("change", "in_units", "make_plan", "settings", "strategies", "strategy", "targets"),
    "keyshift.ordering": ("orderings",),
    "keyshift.state": ("backends",),
    "keyshift.workloads": ("KeyedStage", "Source", "workload", "workloads"),
    "keyshift.workloads.keyed": ("Grouped",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"keyshift.suite has no {name!r}; it has {', '.join(__all__)}")
    # As ``from module import name`` does it: some names are modules themselves.
    return getattr(__import__(_MODULE_OF[name], fromlist=[name]), name)


def __dir__() -> list[str]:
    return __all__
