"""What a notebook's cells have defined, for another process that is to find it by its name."""

from collections.abc import Mapping

from keyshift.experiment.spec import RunSpec
from keyshift.parcel import packed, unpacked
from keyshift.planner import Strategy, strategies
from keyshift.workloads import parcel_of, workloads

Parcels = dict[str, dict[str, str]]  # by kind and name


def own_parcels(spec: RunSpec) -> Parcels:
    """All strategies, as a job may be asked for another one, and the workload of ``spec``.

    Raises BadInput if one of them cannot be sent.
    """
    name, model = spec.workload.name, type(spec.workload)
    return {
        "strategy": {name: _strategy(strategy) for name, strategy in strategies.own().items()},
        "workload": {name: parcel_of(model)} if name in workloads.own() else {},
    }


def _strategy(strategy: Strategy) -> str:
    return packed(strategy, (strategy.propose or Strategy).__module__)


def define_own(parcels: Mapping[str, Mapping[str, str]]) -> None:
    """Define what ``own_parcels`` gave. What has been defined here under one of the names stays."""
    for name, parcel in parcels.get("strategy", {}).items():
        if name not in strategies.own():
            strategies.define(name, unpacked(parcel))
    for name, parcel in parcels.get("workload", {}).items():
        if name not in workloads.own():
            workloads.define(name, unpacked(parcel))
