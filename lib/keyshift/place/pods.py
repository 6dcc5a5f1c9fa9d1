"""Executors in a Kubernetes cluster: whether the driver may create them, and why they do not start."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, NamedTuple

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from keyshift.model.errors import BadInput, Refused, ServiceUnavailable, service_errors
from keyshift.place.profile import KUBERNETES, SparkProfile
from keyshift.progress import Say
from keyshift.waiting import wait_until

ANSWER_S = 5.0
GRACE_S = 1  # of a pod that is deleted; 0 would take it off the list while its processes still run
GONE_S = 30.0  # in which one that was deleted must be gone
START_S = 300.0  # until all executors are there: nodes may have to be added, and a large image pulled
HOPELESS_S = 10.0  # a pod that says so for as long will not start without somebody's help
POLL_S, TELL_S = 1.0, 10.0
HOPELESS = {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}
INACTIVE = "spark-exec-inactive"  # Spark's label of a pod that it has seen end, and keeps
# Without these on pods the driver cannot have executors; what else the chart grants lets Spark tidy up behind them.
NEEDED = ("create", "get", "list", "watch", "delete")


class ServicePod(NamedTuple):
    """The pod of a service. ``identity``: another pod of its name has another one; ``keeps``: data outlives it."""

    name: str
    identity: str
    ready: bool
    keeps: bool


class Pods:
    """The executors of a Spark application. Every method may raise ServiceUnavailable, in one line, within seconds."""

    def __init__(self, spark: SparkProfile) -> None:
        self._spark = spark
        try:
            config.load_incluster_config()
        except config.ConfigException:
            try:
                config.load_kube_config()
            except config.ConfigException as error:
                raise BadInput(
                    f"{spark.master}: this is no pod of a cluster, and no kubeconfig gives credentials ({error}); "
                    "set KUBECONFIG"
                ) from error
        settings = client.Configuration.get_default_copy()
        renew, host = settings.refresh_api_key_hook, spark.master.removeprefix(KUBERNETES)

        def renewed(changed: client.Configuration) -> None:
            """Renew the token. The client then sets the address of its own cluster: not necessarily the profile's."""
            if renew is not None:
                renew(changed)
            changed.host = host

        settings.host, settings.refresh_api_key_hook = host, renewed  # type: ignore[assignment]  # a stub says None
        settings.retries = 1
        self._api = client.ApiClient(settings)
        self._core = client.CoreV1Api(self._api)

    def _asking(self) -> AbstractContextManager[None]:
        return service_errors((ApiException, HTTPError), self._explained)

    def _explained(self, error: ApiException | HTTPError) -> str | Refused:
        server = f"the Kubernetes API server {self._api.configuration.host}"
        if isinstance(error, ApiException):
            said = f"{server} said {error.status} {error.reason} (namespace {self._spark.namespace})"
            return Refused(said) if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else said
        reason = getattr(error, "reason", None) or error
        return f"{server} cannot be reached: {reason}; is spark.master of the profile right?"

    def require_rights(self) -> None:
        """Raise ServiceUnavailable naming each verb on pods that is refused to us."""
        reviews = client.AuthorizationV1Api(self._api)
        refused = []
        with self._asking():
            for verb in NEEDED:
                wish = client.V1ResourceAttributes(namespace=self._spark.namespace, verb=verb, resource="pods")
                review = client.V1SelfSubjectAccessReview(
                    spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=wish)
                )
                answer = reviews.create_self_subject_access_review(review, _request_timeout=ANSWER_S)
                if not (answer.status and answer.status.allowed):
                    refused.append(verb)
        if refused:
            raise ServiceUnavailable(
                f"the driver may not {', '.join(refused)} pods in namespace {self._spark.namespace}; grant it a Role "
                "as the chart `lab` does"
            )

    def await_executors(self, application: str, registered: Callable[[], int], say: Say) -> None:
        """Wait until as many executors as the profile says have ``registered`` with the driver.

        Raises ServiceUnavailable with the pod's own words if one cannot start, if others come in its place and end as
        well, or after ``START_S`` seconds; at once if the API server refuses us, but not if it does not answer.
        """
        wanted, begin = self._spark.executors, time.monotonic()
        hopeless_since: dict[str, float] = {}
        failed: set[str] = set()
        here, there, told, last = 0, 0, begin, ""

        def all_here() -> bool:
            nonlocal here, there, told, last, hopeless_since
            if (here := registered()) >= wanted:
                return True
            now = time.monotonic()
            troubles: dict[str, tuple[str, bool]] = {}
            try:
                pods = self.executors(application)
                there, troubles = len(pods), {pod: trouble for pod, of in pods.items() if (trouble := _words(of))}
                # What one said that runs by now counts no more.
                last = next((words for words, _ in troubles.values()), last if failed else "")
            except Refused:
                raise
            except ServiceUnavailable as error:  # it may answer at the next look
                last = str(error)
            hopeless = {pod: words for pod, (words, final) in troubles.items() if final}
            hopeless_since = {pod: hopeless_since.get(pod, now) for pod in hopeless}
            for pod, since in hopeless_since.items():
                if now - since >= HOPELESS_S:
                    raise ServiceUnavailable(f"executor pod {pod} does not start: {hopeless[pod]}")
            failed.update(hopeless)
            if len(failed) > max(3, 2 * wanted):  # as many as Spark takes by itself; ours counts to MOST_FAILED
                pod, words = next(reversed(hopeless.items()))
                raise ServiceUnavailable(f"{len(failed)} executor pods did not start; {pod}: {words}")
            if now - told >= TELL_S:
                told = now
                say(f"executors: {here} of {wanted} after {now - begin:.0f} s" + (f"; {last}" if last else ""))
            return False

        if not wait_until(all_here, START_S, POLL_S):
            if not last:
                last = f"{there} of {wanted} pods were made"
                if there < wanted:
                    last += f"; a quota or admission rule of namespace {self._spark.namespace} may refuse more"
            raise ServiceUnavailable(f"{here} of {wanted} executors came within {START_S:g} s: {last}")

    def executors(self, application: str) -> dict[str, Any]:
        """The pods of an application by their names, the one that was asked for first in front; none that Spark keeps
        after its end (spark.kubernetes.executor.deleteOnTermination=false): another one is there in its place.
        """
        with self._asking():
            pods = self._core.list_namespaced_pod(
                self._spark.namespace,
                label_selector=f"spark-app-selector={application},spark-role=executor,{INACTIVE}!=true",
                _request_timeout=ANSWER_S,
            )
        return {str(pod.metadata and pod.metadata.name): pod for pod in sorted(pods.items, key=_number)}

    def of_service(self, name: str) -> ServicePod | None:
        """The pod of this name; None if there is none now."""
        with self._asking():
            try:
                pod = self._core.read_namespaced_pod(name, self._spark.namespace, _request_timeout=ANSWER_S)
            except ApiException as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return None
                raise
        told: Any = pod  # stubs leave everything open
        going = told.metadata.deletion_timestamp is not None
        ready = any(each.type == "Ready" and each.status == "True" for each in told.status.conditions or ())
        keeps = any(volume.persistent_volume_claim for volume in told.spec.volumes or ())
        return ServicePod(name, told.metadata.uid, ready and not going, keeps)

    def delete(self, pod: str) -> None:
        """Delete the pod of this name, without waiting; its processes have a second. One that is gone stays so."""
        with self._asking():
            try:
                self._core.delete_namespaced_pod(
                    pod, self._spark.namespace, grace_period_seconds=GRACE_S, _request_timeout=ANSWER_S
                )
            except ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise


class ExecutorPods:
    """The executors of one ``application``, to be deleted; for any thread. Raises as ``Pods`` does."""

    def __init__(self, spark: SparkProfile, application: str) -> None:
        self._pods, self._application = Pods(spark), application

    def delete(self) -> None:
        """Delete all of them, and wait until none is left. Raises ServiceUnavailable if one does not go."""

        def gone() -> bool:
            return not self._pods.executors(self._application)

        for pod in self._pods.executors(self._application):
            self._pods.delete(pod)
        if not wait_until(gone, GONE_S, POLL_S / 5):
            raise ServiceUnavailable(f"executors of {self._application} were deleted, and are there after {GONE_S:g} s")

    def delete_one(self, host: str) -> None:
        """Delete, of those that run, the one at ``host``, or else the one that was asked for first. Raises
        ServiceUnavailable if none runs.
        """
        running = {pod: told for pod, told in self._pods.executors(self._application).items() if _words(told) is None}
        if not running:
            raise ServiceUnavailable(f"{self._application} has no executor that runs")
        there = (pod for pod, told in running.items() if told.status.pod_ip == host)
        self._pods.delete(next(there, next(iter(running))))


def _number(pod: Any) -> int:
    """The number of an executor: Spark numbers them."""
    return int((pod.metadata.labels or {}).get("spark-exec-id", 0))


def _words(pod: Any) -> tuple[str, bool] | None:
    """What is said of a pod that does not run, and whether it will stay so; None if it runs."""
    for container in pod.status.container_statuses or ():
        if waiting := container.state.waiting:
            return f"{waiting.reason}: {waiting.message or 'no message'}", waiting.reason in HOPELESS
        if ended := container.state.terminated:
            return f"it ended with exit code {ended.exit_code} ({ended.reason}): {ended.message or 'no message'}", True
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}", False
    return None
