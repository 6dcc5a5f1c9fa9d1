"""Faults of what is in pods: one is deleted, and whoever has made it makes another, Spark or a StatefulSet."""

from keyshift.endpoints import Endpoints
from keyshift.lab.service_faults import BesideRun, Say, require_possible
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.place.pods import ExecutorPods, Pods, ServicePod
from keyshift.place.profile import SparkProfile
from keyshift.waiting import wait_until
from keyshift.wire.faults import ENSEMBLES, EXECUTOR, SERVICES, Fault

BACK_S = 300.0  # in which a service must be ready again: its node may have to get the image
LOOK_S = 0.5


class PodFaults(BesideRun):
    """Faults of services in the namespace of ``spark``, and of the executors of a job without replicas: ``pods``."""

    executors = True

    def __init__(self, endpoints: Endpoints, spark: SparkProfile, pods: ExecutorPods | None, note: Say) -> None:
        super().__init__(note)
        self._endpoints, self._spark, self._executor_pods = endpoints, spark, pods
        self._pods = Pods(spark)

    def require(self, fault: Fault) -> None:
        """Require that a fault can happen here, else raise BadInput; ServiceUnavailable if the cluster does not say."""
        require_possible([fault], None, self._spark)
        if fault.who not in SERVICES:
            return
        pods, addresses = self._pods_of(fault.who), getattr(self._endpoints, fault.who)
        if not pods:
            raise BadInput(
                f"fault = {fault}: {fault.who} at {addresses} has no pod in namespace {self._spark.namespace}, and "
                "others are left alone"
            )
        if len(pods) == 1 and not pods[0].keeps:
            several = ", or with global.nodes=3" if fault.who in ENSEMBLES else ""
            raise BadInput(
                f"fault = {fault}: the data of {fault.who} is in its pod and would go with it, and there is no other "
                f"node; install with {fault.who}.persistence.enabled=true{several}"
            )

    def _pods_of(self, service: str) -> list[ServicePod]:
        """The pods of a service: for each address that of a node, or else the first one behind a Service."""
        found = []
        for address in getattr(self._endpoints, service).split(","):
            name, _, where = address.rpartition(":")[0].partition(".")
            if not where or f".{self._spark.namespace}.svc" in f".{where}":
                pods = (self._pods.of_service(pod) for pod in (name, f"{name}-0"))
                found += [pod for pod in pods if pod is not None][:1]
        return found

    def _carry_out(self, fault: Fault, host: str) -> None:
        if fault.who == EXECUTOR:
            assert self._executor_pods is not None
            self._executor_pods.delete_one(host)
            return
        struck = next((pod for pod in self._pods_of(fault.who) if pod.ready), None)
        if struck is None:
            raise ServiceUnavailable("none of its pods is ready, so none was deleted")
        self._note(f"{fault.action} of {fault.who} deletes pod {struck.name}")
        self._pods.delete(struck.name)

        def back() -> bool:
            now = self._pods.of_service(struck.name)
            return now is not None and now.identity != struck.identity and now.ready

        if not wait_until(back, BACK_S, LOOK_S):
            raise ServiceUnavailable(f"pod {struck.name} is not ready again within {BACK_S:g} s")
