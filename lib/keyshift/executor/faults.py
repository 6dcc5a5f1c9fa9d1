"""Deliberate faults of a job's processes, to see what becomes of the job. Part of a scenario."""

import math
import os
import signal
import subprocess
from dataclasses import dataclass

from keyshift.errors import BadInput
from keyshift.keys import Step

# Who may be hit when. A source and a destination are those of the first step: of several the one with the least number.
PHASES = {
    "source": ("prepare", "align", "transfer"),
    "destination": ("prepare", "install", "drain"),
    "slot": ("snapshot", "batch"),  # the first one
}
FORMS = "kill:source@transfer, stop:destination@install:3s or kill:slot@12"


@dataclass(frozen=True, slots=True)
class Fault:
    """``kill`` or ``stop`` the process of a slot, for ``seconds`` then: in a ``phase``, or at a moment of measured
    time.
    """

    action: str
    who: str
    phase: str
    at_s: float | None
    seconds: float = 0.0

    def strike(self) -> None:
        """Hit the process that calls."""
        pid = os.getpid()
        if self.action == "stop":  # somebody else has to wake it up
            wake = f"sleep {self.seconds:f}; kill -CONT {pid}"
            subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
        os.kill(pid, signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


def parse(text: str) -> list[Fault]:
    """What ``text`` says, with commas between. Raises BadInput that names what is wrong and what there is."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Fault:
    action, _, rest = text.partition(":")
    who, _, when = rest.partition("@")
    phase, _, duration = when.partition(":")
    if action not in ("kill", "stop"):
        raise BadInput(f"fault = {text!r}: {action!r} is none of kill, stop; for example {FORMS}")
    if who not in PHASES:
        raise BadInput(f"fault = {text!r}: {who!r} is none of {', '.join(PHASES)}; for example {FORMS}")
    at_s = _seconds(phase)
    if (at_s is None and phase not in PHASES[who]) or (at_s is not None and who != "slot"):
        also = ", or seconds of measured time" if who == "slot" else ""
        raise BadInput(f"fault = {text!r}: a {who} has the phases {', '.join(PHASES[who])}{also}; for example {FORMS}")
    seconds = _seconds(duration.removesuffix("s")) if duration else 0.0
    if seconds is None or (action == "stop") != (seconds > 0):
        needs = "how long it is stopped, as in stop:source@align:3s" if action == "stop" else "no duration"
        raise BadInput(f"fault = {text!r}: {action} needs {needs}")
    return Fault(action, who, "" if at_s is not None else phase, at_s, seconds)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


class FaultPoints:
    """Where a slot may be hit: once in a process, in the first attempt of its job."""

    def __init__(self, fault: Fault | None, slot: int, attempt: int) -> None:
        self._fault = fault if attempt == 0 else None
        self._slot = slot
        self._steps: dict[int, Step] = {}  # by version

    def published(self, steps: list[tuple[int, Step]]) -> None:
        """What is under way."""
        self._steps |= dict(steps)

    def reached(self, phase: str, version: int = 0) -> None:
        """The slot is in ``phase``, of the step of ``version`` if it belongs to one."""
        fault = self._fault
        if fault is None or fault.phase != phase or not self._meant(fault.who, self._steps.get(version)):
            return
        self._fault = None
        fault.strike()

    def _meant(self, who: str, step: Step | None) -> bool:
        if who == "slot":
            return self._slot == 0
        if step is None or not step.moves:
            return False
        return self._slot == min(move.source if who == "source" else move.destination for move in step.moves)
