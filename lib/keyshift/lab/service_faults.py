"""Faults of what a run uses: of executors that are processes, of embedded services that nobody else uses."""

import threading
import time
from collections.abc import Callable, Iterable

from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.place.profile import CLUSTER, SparkProfile
from keyshift.services.stack import Stack
from keyshift.wire import faults
from keyshift.wire.faults import SERVICES, Fault

Say = Callable[[str], None]


def require_possible(faults: Iterable[Fault], stack: Stack | None, spark: SparkProfile) -> None:
    """Raises BadInput if one of ``faults`` cannot happen here. ``stack``: the services, None if they are not ours."""
    for fault in faults:
        if fault.who == "executor" and spark.master != CLUSTER:
            raise BadInput(
                f"fault = {fault}: Spark at {spark.master} has no executor that is a process of this machine beside "
                "the driver's; use `--profile local-cluster`"
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


class ServiceFaults:
    """Carried out beside the run, in threads. ``failed(line)``: a service did not come back."""

    def __init__(self, stack: Stack | None, spark: SparkProfile, failed: Say) -> None:
        self._stack, self._spark, self._failed = stack, spark, failed
        self._threads: list[threading.Thread] = []

    def require(self, fault: Fault) -> None:
        """Raises BadInput if it cannot happen here."""
        require_possible([fault], self._stack, self._spark)

    def hit(self, fault: Fault) -> None:
        """Begin; for any thread."""
        thread = threading.Thread(target=self._carry_out, args=(fault,), name="keyshift-fault", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry_out(self, fault: Fault) -> None:
        assert self._stack is not None
        try:
            if fault.action == "stop":
                faults.stop(self._stack.pid(fault.who), fault.seconds)
                time.sleep(fault.seconds)
            else:
                self._stack.restart(fault.who, fault.seconds)
        except KeyshiftError as error:
            self._failed(f"{fault.action} of {fault.who}: {error}")

    @property
    def away(self) -> bool:
        """Whether a service is not there again yet."""
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Until all services are there again."""
        for thread in self._threads:
            thread.join()
