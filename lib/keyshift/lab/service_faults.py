"""Faults of what a run uses: of executors that are processes, of embedded services that nobody else uses.

``lab.pod_faults`` has those of pods.
"""

import contextlib
import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Sequence

from keyshift.lab.replicas.relays import Relays
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.profile import CLUSTER, SparkProfile
from keyshift.progress import Say
from keyshift.services.stack import Stack
from keyshift.wire import faults
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import EXECUTOR, REPLICA, SERVICES, Fault


def require_possible(faults: Sequence[Fault], stack: Stack | None, spark: SparkProfile) -> None:
    """Raise BadInput if one of ``faults`` cannot happen here. ``stack``: the services, None if they are not ours."""
    killed = [fault.who for fault in faults if fault.action == "kill" and fault.who in SERVICES]
    cut = {fault.who for fault in faults if fault.cuts_off}
    for fault in faults:
        if fault.who in cut and not fault.cuts_off:
            raise BadInput(f"fault = {fault}: not possible with cut:{fault.who} in the same run; use one of both")
        if killed.count(fault.who) > 1:
            raise BadInput(f"fault = {fault}: only one of three nodes of {fault.who} may be killed; use it once")
        if spark.on_kubernetes:
            _require_in_pods(fault)
            continue
        if fault.who == EXECUTOR and spark.master != CLUSTER:
            raise BadInput(
                f"fault = {fault}: Spark at {spark.master} has no executor that is a process of this machine beside "
                "the driver's; use `--profile local-cluster`, if there are no replicas, or one of Kubernetes"
            )
        if fault.who in SERVICES and fault.action == "kill" and stack is not None and stack.nodes == 1:
            raise BadInput(
                f"fault = {fault}: {fault.who} has one node, and nobody could go on without it; use "
                f"restart:{fault.who}, or a profile with nodes: 3"
            )
        if fault.who in SERVICES:
            what = f"fault = {fault}: {fault.who} may only be hit if keyshift has started it for this run alone"
            if stack is None:
                raise BadInput(f"{what}; use a profile with services: embedded, as `--profile local`")
            if others := stack.used_by_others():
                raise BadInput(
                    f"{what}, and other commands use it (processes {', '.join(map(str, others))}); wait for their "
                    "end, or name another folder with KEYSHIFT_HOME"
                )


def _require_in_pods(fault: Fault) -> None:
    """Require a fault that can hit pods: they can be deleted, and whoever has made them makes others."""
    if fault.who in SERVICES and (fault.action != "restart" or fault.seconds):
        raise BadInput(
            f"fault = {fault}: a pod of {fault.who} is deleted, and its StatefulSet makes another one at once; use "
            f"restart:{fault.who}"
        )
    if fault.who == REPLICA and fault.action == "stop":
        raise BadInput(f"fault = {fault}: executors in pods cannot be stopped from here; use kill:{REPLICA}")


class BesideRun:
    """Faults that are carried out beside the run, in threads. ``note(line)``: what has become of them."""

    executors: bool  # see ``ServicesToHit``

    def __init__(self, note: Say) -> None:
        self._note = note
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()  # nobody wants the rest of a fault any more

    @abstractmethod
    def require(self, fault: Fault) -> None:
        """Raise BadInput if a fault cannot happen here, or not any more, ServiceUnavailable if that cannot be asked."""

    def allows(self, fault: Fault) -> bool:
        """See ``ServicesToHit``."""
        try:
            self.require(fault)
        except (BadInput, ServiceUnavailable) as error:
            self._note(f"`{fault}` was refused: {error}")
            return False
        return True

    def seen_by(self, config: JobConfig) -> JobConfig:
        """Give what the Spark of a job is to have instead of its ``config``, so that it can be cut off."""
        return config

    def hit(self, fault: Fault, host: str = "") -> None:
        """Begin a fault; for any thread. ``host``: see ``ServicesToHit``."""
        thread = threading.Thread(target=self._noted, args=(fault, host), name="keyshift-fault", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _noted(self, fault: Fault, host: str) -> None:
        try:
            self._carry_out(fault, host)
        except KeyshiftError as error:
            self._note(f"{fault.action} of {fault.who}: {error}")

    @abstractmethod
    def _carry_out(self, fault: Fault, host: str) -> None:
        """Carry out a fault until what was hit is there again, if it comes again. Raises KeyshiftError."""

    @property
    def away(self) -> bool:
        """Whether something that was hit is not there again yet."""
        return any(thread.is_alive() for thread in self._threads)

    def cut_short(self) -> None:
        """End a fault that lasts now, and one that comes later as soon as it has begun; does not wait."""
        self._closing.set()

    def close(self) -> None:
        """Wait until all of it is there again, but not for the end of a fault that lasts."""
        self.cut_short()
        for thread in self._threads:
            thread.join()


class ServiceFaults(BesideRun):
    """Faults of embedded services, from which a replica may be cut off if ``faults`` say so.

    ``note(line)``: which of several nodes is hit, or that a service did not come back.
    """

    executors = False

    def __init__(self, stack: Stack | None, spark: SparkProfile, note: Say, faults: Sequence[Fault] = ()) -> None:
        super().__init__(note)
        self._stack, self._spark = stack, spark
        self._cut_off = {fault.who for fault in faults if fault.cuts_off}
        self._relays: Relays | None = None

    def seen_by(self, config: JobConfig) -> JobConfig:
        """See ``BesideRun``. Raises ServiceUnavailable if it would need a relay, and none starts."""
        if self._cut_off and self._relays is None:
            assert self._stack is not None
            self._relays = Relays(self._stack, self._cut_off)
        return self._relays.seen_by(config) if self._relays else config

    def close(self) -> None:
        """See ``BesideRun``."""
        super().close()
        if self._relays:
            self._relays.end()

    def require(self, fault: Fault) -> None:
        """Raise BadInput if a fault cannot happen here, or not any more: a node is away, or others use the services."""
        require_possible([fault], self._stack, self._spark)
        if fault.action == "kill" and fault.who in SERVICES:
            assert self._stack is not None
            alive = sum(service.kind == fault.who for service in self._stack.alive())
            if alive < self._stack.nodes:
                raise BadInput(
                    f"fault = {fault}: {alive} of {self._stack.nodes} nodes of {fault.who} live, and one more may not "
                    "be killed; `keyshift up` starts the others"
                )

    def _carry_out(self, fault: Fault, host: str) -> None:
        if fault.cuts_off:
            assert self._relays is not None
            self._relays.cut(fault)
            self._closing.wait(fault.seconds)
            return
        assert self._stack is not None
        node = self._stack.node(fault.who).name
        if node != fault.who:
            self._note(f"{fault.action} of {fault.who} hits {node}")
        if fault.action == "stop":
            # Else a command that begins meanwhile finds it unhealthy, and starts it anew. Several may stand at once.
            with self._stack.locked(shared=True):
                self._stop(self._stack.pid(node), fault.seconds)
        elif fault.action == "kill":
            os.kill(self._stack.pid(node), signal.SIGKILL)
        else:
            self._stack.restart(node, fault.seconds, at_once=self._closing)

    def _stop(self, pid: int, seconds: float) -> None:
        waker = faults.stop(pid, seconds)
        if self._closing.wait(seconds):
            with contextlib.suppress(ProcessLookupError):  # somebody has killed it meanwhile
                os.kill(pid, signal.SIGCONT)
            os.killpg(waker.pid, signal.SIGKILL)
        waker.wait()
