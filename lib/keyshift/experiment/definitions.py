"""What a notebook's cells have defined, for another process that is to find it by its name."""

from collections.abc import Mapping

from keyshift.experiment.spec import RunSpec
from keyshift.model.errors import BadInput
from keyshift.parcel import packed, unpacked
from keyshift.planner import Strategy, strategies
from keyshift.progress import Say, silent
from keyshift.workloads import parcel_of, workloads

Parcels = dict[str, dict[str, str]]  # by kind and name


def parcels_of(spec: RunSpec, say: Say = silent) -> Parcels:
    """All strategies, as a job may be asked for another one, and the workload of ``spec``.

    Raises BadInput if what ``spec`` names cannot be sent. Of another strategy that is told, and it is left out.
    """
    workload, model = spec.workload.name, type(spec.workload)
    found = dict[str, str]()
    for name, strategy in strategies.defined().items():
        try:
            found[name] = packed(strategy, (strategy.propose or Strategy).__module__, name)
        except BadInput as error:
            if name == spec.strategy.name:
                raise
            say(f"the job will not know strategy {name}: {error}")
    return {"strategy": found, "workload": {workload: parcel_of(model)} if workload in workloads.defined() else {}}


def define(parcels: Mapping[str, Mapping[str, str]]) -> None:
    """Define what ``parcels_of`` gave, but for names that are taken. Raises BadInput for what cannot be used here."""
    for name, parcel in parcels.get("strategy", {}).items():
        if name not in strategies.defined():
            strategies.define(name, unpacked(parcel))
    for name, parcel in parcels.get("workload", {}).items():
        if name not in workloads.defined():
            workloads.define(name, unpacked(parcel))
