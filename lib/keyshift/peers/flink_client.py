"""What is asked of a Flink cluster: SQL by its gateway, jobs and savepoints by its job manager, both over REST."""

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.waiting import wait_until

ANSWER_S = 30.0  # for one answer: to plan the first statement takes seconds on a busy machine
STATEMENT_S = 60.0
SAVEPOINT_S = 120.0
LOOK_S = 0.02
ENDED = ("FAILED", "CANCELED", "FINISHED", "SUSPENDED")


class Rescaled(NamedTuple):
    """How a running job went on with other tasks: when those before had ended, and when the checkpoint that it went on
    from began (seconds since the epoch); its number, and the bytes of its state.
    """

    ended: float
    begun: float
    checkpoint: int
    state_bytes: int


class FlinkClient:
    """Asks a Flink cluster. Statements are carried out in one session of the gateway at a time.

    ``savepoints``: the folder for them. All methods raise ServiceUnavailable, one line, with Flink's own words.
    """

    def __init__(self, rest: str, gateway: str, savepoints: Path, transport: httpx.BaseTransport | None = None) -> None:
        self._rest, self._gateway, self._savepoints = rest, f"{gateway}/v3", savepoints
        self._http = httpx.Client(timeout=ANSWER_S, transport=transport, trust_env=False)
        self._session = ""  # of the gateway: settings and tables are its own

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with service_errors(httpx.HTTPError, lambda error: f"Flink at {url}: {type(error).__name__}: {error}"):
            answer = self._http.request(method, url, json=body)
        if not answer.is_success:
            raise ServiceUnavailable(f"Flink answered {answer.status_code}: {cause(answer.text)}")
        return dict(answer.json())

    def version(self) -> str:
        """The version of Flink."""
        return str(self._ask("GET", f"{self._rest}/overview")["flink-version"])

    def ready(self, slots: int) -> bool:
        """Whether both answer, and that many slots are free."""
        try:
            self._ask("GET", f"{self._gateway}/info")
            return int(self._ask("GET", f"{self._rest}/overview")["slots-available"]) >= slots
        except ServiceUnavailable:
            return False

    def open_session(self) -> None:
        """Open another session, which has no tables."""
        self._session = self._ask("POST", f"{self._gateway}/sessions", {})["sessionHandle"]

    def execute(self, statement: str, **settings: str) -> str:
        """Have ``statement`` carried out under ``settings``, by Flink's names; returns the job's id, or ""."""
        place = f"{self._gateway}/sessions/{self._session}"
        body = {"statement": statement, "executionConfig": settings}
        asked = f"{place}/operations/{self._ask('POST', f'{place}/statements', body)['operationHandle']}/result/0"

        def answered() -> dict[str, Any] | None:
            found = self._ask("GET", f"{asked}?rowFormat=JSON")
            return None if found["resultType"] == "NOT_READY" else found

        found = wait_until(answered, STATEMENT_S, LOOK_S)
        if found is None:
            raise ServiceUnavailable(f"Flink's gateway did not carry out {statement[:40]!r} within {STATEMENT_S:g} s")
        return str(found.get("jobID") or "")

    def state(self, job: str) -> str:
        """The state of a job: RUNNING, FINISHED, FAILED, and others of Flink."""
        return str(self._ask("GET", f"{self._rest}/jobs/{job}/status")["status"])

    def require_alive(self, job: str) -> None:
        """Raise ServiceUnavailable with the cause if the job has ended."""
        if (state := self.state(job)) in ENDED:
            told = self._ask("GET", f"{self._rest}/jobs/{job}/exceptions").get("exceptionHistory", {})
            words = "".join(str(entry.get("stacktrace", "")) for entry in told.get("entries", [])[:1])
            raise ServiceUnavailable(f"Flink's job is {state}: {cause(words) if words else 'it gives no reason'}")

    def await_running(self, job: str, within_s: float, slots: int | None = None) -> dict[str, Any]:
        """Wait until each task runs and has its state, ``slots`` of each vertex; gives what Flink has of the job."""

        def runs() -> dict[str, Any] | None:
            self.require_alive(job)
            found = self._ask("GET", f"{self._rest}/jobs/{job}")
            tasks = [(vertex["tasks"]["RUNNING"], vertex["parallelism"]) for vertex in found["vertices"]]
            return found if all(running == most == (slots or most) for running, most in tasks) else None

        if (found := wait_until(runs, within_s, LOOK_S)) is None:
            so_many = f" with {slots} tasks" if slots else ""
            raise ServiceUnavailable(f"Flink's job did not run{so_many} within {within_s:g} s")
        return found

    def stop(self, job: str) -> tuple[str, float]:
        """End the job with a savepoint; returns its address, and when it was complete (seconds since the epoch)."""
        place = f"{self._rest}/jobs/{job}"
        wanted = {"drain": False, "targetDirectory": self._savepoints.as_uri()}
        trigger = self._ask("POST", f"{place}/stop", wanted)["request-id"]

        def complete() -> dict[str, Any] | None:
            found = self._ask("GET", f"{place}/savepoints/{trigger}")
            return found["operation"] if found["status"]["id"] == "COMPLETED" else None

        made = wait_until(complete, SAVEPOINT_S, LOOK_S)
        if made is None or "location" not in made:
            why = cause(made["failure-cause"]["stack-trace"]) if made else f"not within {SAVEPOINT_S:g} s"
            raise ServiceUnavailable(f"Flink's job could not be stopped with a savepoint: {why}")
        return str(made["location"]), time.time()

    def rescale(self, job: str, slots: int, within_s: float) -> Rescaled:
        """Have a running job go on with ``slots`` tasks of each vertex, from its next checkpoint, and wait until all of
        them run. Only Flink's adaptive scheduler does that.
        """
        place = f"{self._rest}/jobs/{job}"
        needed = f"{place}/resource-requirements"  # by vertex
        bounds = {"parallelism": {"lowerBound": 1, "upperBound": slots}}
        self._ask("PUT", needed, dict.fromkeys(self._ask("GET", needed), bounds))
        found = self.await_running(job, within_s, slots)
        told = self._ask("GET", f"{place}/checkpoints")
        number = int((told["latest"]["restored"] or {}).get("id", 0))  # the first one is 1
        from_it = [each for each in told["history"] if each["id"] == number]
        if not from_it:
            raise ServiceUnavailable("Flink's job has begun anew, as it had no complete checkpoint to go on from")
        [checkpoint] = from_it
        ended_ms, begun_ms = found["timestamps"]["CREATED"], checkpoint["trigger_timestamp"]
        return Rescaled(ended_ms / 1000, begun_ms / 1000, number, checkpoint["state_size"])

    def cancel(self, job: str) -> None:
        """End a job, whatever state it is in; nothing is waited for."""
        with suppress(ServiceUnavailable):
            self._ask("PATCH", f"{self._rest}/jobs/{job}?mode=cancel")

    def size(self, savepoint: str) -> int:
        """The size of a savepoint in bytes."""
        folder = self._savepoints / savepoint.rstrip("/").rpartition("/")[2]
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def remove_savepoints(self) -> None:
        """Delete the savepoints of all jobs so far, also those that were not complete."""
        shutil.rmtree(self._savepoints, ignore_errors=True)


def cause(text: str) -> str:
    """The last cause that a stack trace of Java names, in one line; the beginning of any other text."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or ["nothing"])[-1 if causes else 0][:300]
