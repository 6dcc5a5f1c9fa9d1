"""Whether there is room for the replicas of a job on this machine."""

import psutil

from keyshift.experiment.spec import RunSpec
from keyshift.model.errors import BadInput
from keyshift.place.profile import SparkProfile
from keyshift.results.manifest import describe_machine

LOCAL = "local"  # the only place where replicas run yet
MIB_PER_REPLICA = 700  # of a driver and its JVM
MIB_PER_TASK = 150  # of a router or a slot, without its state


def require_room(spec: RunSpec, place: SparkProfile) -> None:
    """Raises BadInput, with what is needed, if the replicas of ``spec`` cannot run in ``place``, or here.

    Each needs a processor at the least, and its memory beside that of the others.
    """
    replicas = spec.job.replicas
    if replicas == 1:
        return
    if place.master != LOCAL:
        raise BadInput(f"replicas = {replicas}: only Spark on this machine has replicas yet; use `--profile local`")
    if (cpus := describe_machine().cpus) < replicas:
        raise BadInput(
            f"replicas = {replicas}: each needs a processor at the least, so {replicas}, and this machine has {cpus}; "
            "lower replicas"
        )
    needed = replicas * (MIB_PER_REPLICA + MIB_PER_TASK * spec.cores)
    if (free := psutil.virtual_memory().available >> 20) < needed:
        raise BadInput(
            f"replicas = {replicas}: they need {needed} MiB of memory without state, and {free} MiB are free; lower "
            "replicas, routers or slots"
        )
