"""Deliberate faults around a job, to see what becomes of it. Part of a scenario."""

import math
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keyshift.errors import BadInput
from keyshift.keys import Step

MOVING = ("prepare", "switch", "align", "transfer", "install", "drain")
BESIDE = ("snapshot", "batch")  # phases of no migration
AROUND = (*MOVING, *BESIDE)
SERVICES = ("zookeeper", "kafka", "minio")
# Who may be hit when. A source and a destination are those of the first step: of several the one with the least number.
PHASES = {
    "source": ("prepare", "align", "transfer"),
    "destination": ("prepare", "install", "drain"),
    "slot": BESIDE,  # the first one
    **dict.fromkeys(("coordinator", *SERVICES), AROUND),
}
AT_REST = ("slot", "coordinator", *SERVICES)  # who may be hit at a time, too
ACTIONS = {
    "kill": ("source", "destination", "slot", "coordinator"),
    "stop": ("source", "destination", "slot", "coordinator", *SERVICES),
    "restart": SERVICES,
}
DURATIONS = {  # what one means; of a restart there may be none
    "stop": "how long it is stopped, as in stop:source@align:3s",
    "restart": "how long it is away at least, as in restart:minio@snapshot:3s, or nothing",
}
FORMS = "kill:source@transfer, stop:destination@install:3s, restart:zookeeper@switch or kill:slot@12"
# The slot that tells of a phase when no slot is hit; of other phases the coordinator does.
TELLS = {
    **dict.fromkeys(("align", "transfer"), "source"),
    **dict.fromkeys(("install", "drain"), "destination"),
    **dict.fromkeys(BESIDE, "slot"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """``action`` hits ``who``, for ``seconds`` if it is one that lasts: in a ``phase``, or at a moment of measured
    time.
    """

    action: str
    who: str
    phase: str
    at_s: float | None
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.action}:{self.who}@{self.phase or f'{self.at_s:g}'}"

    @property
    def ends_query(self) -> bool:
        """Whether a query that it hits dies."""
        return self.action == "kill" and self.who != "coordinator"

    @property
    def of_migration(self) -> bool:
        """Whether it is in a phase that only a migration has."""
        return self.phase in MOVING

    @property
    def local(self) -> bool:
        """Whether the slot that comes to the phase is hit, by itself; all else is for the driver."""
        return self.who in ("source", "destination", "slot")

    def strike(self) -> None:
        """Hit the process that calls."""
        pid = os.getpid()
        if self.action == "stop":
            stop(pid, self.seconds)
        else:
            os.kill(pid, signal.SIGKILL)


def stop(pid: int, seconds: float) -> None:
    """Stop a process, our own perhaps, for so long."""
    wake = f"sleep {seconds:f}; kill -CONT {pid}"  # somebody else has to wake it up
    subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
    os.kill(pid, signal.SIGSTOP)


def parse(text: str) -> list[Fault]:
    """What ``text`` says, with commas between. Raises BadInput that names what is wrong and what there is."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Fault:
    action, _, rest = text.partition(":")
    who, _, when = rest.partition("@")
    phase, _, duration = when.partition(":")
    if action not in ACTIONS:
        raise BadInput(f"fault = {text!r}: {action!r} is none of {', '.join(ACTIONS)}; for example {FORMS}")
    if who not in PHASES:
        raise BadInput(f"fault = {text!r}: {who!r} is none of {', '.join(PHASES)}; for example {FORMS}")
    if who not in ACTIONS[action]:
        able = ", ".join(each for each, whom in ACTIONS.items() if who in whom)
        raise BadInput(f"fault = {text!r}: what can happen to {who} is {able}; for example {FORMS}")
    at_s = _seconds(phase)
    if phase not in PHASES[who] and (at_s is None or who not in AT_REST):
        also = ", or seconds of measured time" if who in AT_REST else ""
        raise BadInput(f"fault = {text!r}: {who} has the phases {', '.join(PHASES[who])}{also}; for example {FORMS}")
    seconds = _seconds(duration.removesuffix("s")) if duration else 0.0
    if seconds is None or (action not in DURATIONS and duration) or (action == "stop" and not seconds):
        raise BadInput(f"fault = {text!r}: {action} needs {DURATIONS.get(action, 'no duration')}")
    return Fault(action, who, "" if at_s is not None else phase, at_s, seconds)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


class FaultPoints:
    """Where a slot may be hit, or tells that others may: once for each fault in a process, in the first attempt of its
    job. ``tell(number)``: that of a fault whose phase is there.
    """

    def __init__(
        self, faults: Sequence[Fault], slot: int, attempt: int, tell: Callable[[int], None] = lambda number: None
    ) -> None:
        self._left = {n: fault for n, fault in enumerate(faults) if fault.phase and attempt == 0}
        self._slot, self._tell = slot, tell
        self._steps: dict[int, Step] = {}  # by version

    def published(self, steps: list[tuple[int, Step]]) -> None:
        """What is under way."""
        self._steps |= dict(steps)

    def reached(self, phase: str, version: int = 0) -> None:
        """The slot is in ``phase``, of the step of ``version`` if it belongs to one."""
        for number, fault in list(self._left.items()):
            role = fault.who if fault.local else TELLS.get(phase, "")
            if fault.phase == phase and role and self._meant(role, self._steps.get(version)):
                del self._left[number]
                self._tell(number)
                if fault.local:
                    fault.strike()

    def _meant(self, who: str, step: Step | None) -> bool:
        if who == "slot":
            return self._slot == 0
        if step is None or not step.moves:
            return False
        return self._slot == min(move.source if who == "source" else move.destination for move in step.moves)
