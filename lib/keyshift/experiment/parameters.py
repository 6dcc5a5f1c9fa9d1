"""Every parameter by its name alone: which part it belongs to, and how it was declared."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from keyshift.experiment.parts import JobPart, RunPart
from keyshift.experiment.scenario import AutoscalerPart, ScenarioPart
from keyshift.model.errors import BadInput
from keyshift.planner import MEANINGS
from keyshift.registry import unknown
from keyshift.state import Backend, backends
from keyshift.workloads import Workload, parameters, workloads

DEFAULTS = {"workload": "keycount", "strategy": "fluid", "backend": "memory"}
MASTER = (
    "master is no parameter of a run: the profile says where Spark is (spark.master), for all runs of a session; for "
    "executors in processes of their own use `--profile local-cluster`, or KEYSHIFT_PROFILE=local-cluster"
)


def known_parameters() -> Iterator[tuple[str, str, FieldInfo]]:
    """Owner, name and declaration of every parameter there is. The owner is a part, and its kind if not all have it."""
    own: dict[str, dict[str, Mapping[str, FieldInfo]]] = {
        "workload": {name: parameters(workload) for name, workload in workloads.items()},
        "backend": {name: backend.settings.model_fields for name, backend in backends.items()},
    }
    for part, fields in declared(workloads.get(DEFAULTS["workload"]), backends.get(DEFAULTS["backend"])).items():
        kinds = own.get(part, {part: fields})
        for name in dict.fromkeys(name for kind in kinds for name in kinds[kind]):
            having = [kind for kind in kinds if name in kinds[kind]]
            owner = part if len(having) == len(kinds) else f"{part} {', '.join(having)}"
            yield owner, name, kinds[having[0]][name]


def declared(workload: type[Workload], backend: Backend) -> dict[str, Mapping[str, FieldInfo]]:
    """The parameters of each part of a run, by name."""
    coordinates: dict[str, Any] = {n: Field(default=None, description=text) for n, text in MEANINGS.items()}
    return {
        "run": RunPart.model_fields,
        "job": JobPart.model_fields,
        "workload": parameters(workload),
        "strategy": coordinates,
        "backend": backend.settings.model_fields,
        "scenario": ScenarioPart.model_fields,
        "autoscaler": AutoscalerPart.model_fields,
    }


def owner_of(given: str, parts: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> tuple[str, str]:
    """Owner and name of the parameter that ``given`` names. ``parts``: what is ``declared``; ``names``: of the
    workload, the strategy and the backend.

    Raises BadInput unless there is exactly one.
    """
    if given == "master":
        raise BadInput(MASTER)
    part, dot, name = given.rpartition(".")
    owners = [owner for owner, fields in parts.items() if name in fields and (not dot or owner == part)]
    if len(owners) == 1:
        return owners[0], name
    if owners:
        said = " and ".join(f"{owner}.{name}" for owner in owners)
        raise BadInput(f"parameter {name!r} has {len(owners)} owners: say which, {said}")
    for owner, other, _ in known_parameters():
        if other == name:
            part = owner.partition(" ")[0]
            hint = f"give {part}.{name}" if name in parts[part] else f"this run has {part} = {names[part]}"
            raise BadInput(f"unknown parameter {given!r}: {name} is a parameter of {owner}; {hint}")
    known = [f"{owner}.{name}" if dot else name for owner, fields in parts.items() for name in fields]
    raise unknown("parameter", given, [*names, *known])
