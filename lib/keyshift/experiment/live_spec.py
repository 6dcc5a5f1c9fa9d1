"""What a job that runs until it is stopped is: a run's parameters without a scenario, and defaults of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keyshift.experiment.parameters import DEFAULTS as CHOSEN
from keyshift.experiment.parts import AUTO, OF_AUTO, JobPart
from keyshift.experiment.scenario import ScenarioPart
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.model.errors import BadInput
from keyshift.ordering import orderings
from keyshift.refusals import made
from keyshift.workloads import parameters as of_workload

DEFAULTS: dict[str, Any] = {"job.snapshot_s": 10.0, "run.recoveries": 5}  # of a live job, where those of a run differ
# Likewise, of one with replicas, which is not started anew.
OF_REPLICAS = {"job.snapshot_s": DEFAULTS["job.snapshot_s"], "scenario.trigger": "scale"}
RESTART_SLOTS = 16  # slots that a restart may lead to, where more than the provisioned are wanted
NOT_LIVE = {*ScenarioPart.model_fields, "seconds", "repetitions", "rate_steps", "events"} - {"to_slots", "trigger"}


def live_spec(values: Mapping[str, Any]) -> RunSpec:
    """As ``make_spec``, with the defaults of a job that lasts. Raises BadInput, also for what only a run has."""
    names = {_of_run(name) for name in values}
    if not_live := sorted(names & NOT_LIVE):
        raise BadInput(
            f"{not_live[0]} is of a run with a scenario and an end: a job lasts until it is stopped, and is scaled "
            "while it runs"
        )
    trigger = values.get("trigger", values.get("scenario.trigger", "scale"))
    if trigger not in ("auto", "scale"):
        raise BadInput(
            f"trigger = {trigger}: a job that lasts is scaled when it is asked, or by itself: trigger = auto"
        )
    replicas, most = _of_job(values, "replicas"), _of_job(values, "slots_max")
    several = replicas > 1
    defaults = OF_REPLICAS if several else DEFAULTS
    own = {name: default for name, default in defaults.items() if _of_run(name) not in names}
    if "to_slots" not in names and most:
        own["scenario.to_slots"] = most
    if several and trigger == "auto":
        raise BadInput(
            f"replicas = {replicas} with trigger = auto: replicas do not scale themselves yet; leave trigger out"
        )
    ordering = ordering_of(values)
    leads = orderings.get(ordering).leads
    known = ", ".join(name for name, each in orderings.items() if not each.leads and (each.agrees or not several))
    if leads and not several:
        raise BadInput(
            f"ordering = {ordering}: a job that lasts goes on from what it has written down, and one with leaders does "
            f"only with replicas yet; set replicas = 2, or ordering to one of: {known}"
        )
    spec = make_spec({**own, **values}, lasts=True)
    _, *later = spec.slots_of
    if leads and later:
        raise BadInput(
            f"ordering = {ordering} with workload = {spec.workload.name}: another process would order anew what comes "
            f"to {', '.join(later)}, and state there has some of it already; set ordering to one of: {known}"
        )
    if trigger == "auto":
        return spec
    stages = ",".join(spec.slots_of)  # each of them may be scaled, and has tasks for that
    return replace(spec, scenario=spec.scenario.model_copy(update={"stage": stages}))


def ordering_of(values: Mapping[str, Any]) -> str:
    """The name of the order protocol that they ask for."""
    return str(values.get("ordering", values.get("job.ordering", "none")))


def frame_ms_of(values: Mapping[str, Any]) -> float:
    """The length of frames that they ask for; 0 if it is left open."""
    found = values.get("frame_ms", values.get("run.frame_ms"))
    return float(found) if isinstance(found, int | float) else 0.0


def wanted_slots(spec: RunSpec) -> int:
    """For how many slots of a stage there are partitions and cores: a restart may use them; replicas do not restart."""
    most = max(spec.tasks.values())
    return most if spec.job.replicas > 1 else max(most, min(RESTART_SLOTS, spec.workload.key_groups))


def partitions(spec: RunSpec) -> int:
    """Partitions of a topic of results: with replicas one for each slot of the last stage, else ``wanted_slots``."""
    return [*spec.tasks.values()][-1] if spec.job.replicas > 1 else wanted_slots(spec)


def parameters(spec: RunSpec) -> dict[str, Any]:
    """The parameters of a live job."""
    return {name: value for name, value in spec.parameters().items() if _of_run(name) not in NOT_LIVE}


def _of_job(values: Mapping[str, Any], name: str) -> int:
    """A parameter of ``JobPart``, checked; its default if it is not among the ``values``."""
    keys = [key for key in (name, f"job.{name}") if key in values]
    return int(getattr(made(JobPart, {name: values[keys[0]]} if keys else {}), name))


def _of_run(name: str) -> str:
    """The name of a parameter without its owner; empty if the owner is none of a run's own parts: a workload of one's
    own may have a parameter of any name.
    """
    owner, _, alone = name.rpartition(".")
    return alone if owner in ("", "run", "job", "scenario") else ""


def anywhere(values: Mapping[str, Any], spec: RunSpec) -> dict[str, Any]:
    """``values``, of which ``spec`` was made, for a process with another working directory, or of a keyshift with other
    defaults: files by whole paths, and every parameter of the workload, as state and events are made by them.
    """
    known = spec.workload.model_dump()
    given = {
        name: value if name in CHOSEN else known.get(name.removeprefix("workload."), value)
        for name, value in values.items()
    }
    own = [name for name in of_workload(type(spec.workload)) if name in CHOSEN or name not in values]
    return {f"workload.{name}": known[name] for name in own} | given


def chosen_values(values: Mapping[str, Any], spec: RunSpec) -> dict[str, Any]:
    """``values``, of which ``spec`` was made, with the load that was chosen for it: another process has the same."""
    kept = {name: value for name, value in values.items() if value != AUTO or name.rpartition(".")[2] not in OF_AUTO}
    if not spec.run.auto:
        return kept
    return kept | {name: getattr(spec.run, name) for name in ("auto", *spec.run.auto.split(", "))}
