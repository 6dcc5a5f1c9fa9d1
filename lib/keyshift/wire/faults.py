"""Deliberate faults around a job, to see what becomes of it. Part of a scenario."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import psutil

from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.model.keys import NO_VERSION, SlotId, Step, Version
from keyshift.runtime.protocol_log import LogEvent

MOVING = ("prepare", "switch", "align", "transfer", "install", "drain")
BESIDE = ("snapshot", "batch")  # phases of no migration
AROUND = (*MOVING, *BESIDE)
ENSEMBLES = ("zookeeper", "kafka")  # what may have several nodes, of which the first that lives is hit
SERVICES = (*ENSEMBLES, "minio")
EXECUTOR = "executor"
PROCESSES = ("daemon", EXECUTOR)  # those in which the first slot runs
# All processes of one: of the one that leads most slots, where these have leaders, else of the one that has lived for
# longest. In a phase of a migration it is the first one.
REPLICA = "replica"
FOLLOWER = "follower"  # where slots have leaders, one that leads none: of several the one that came last
STEADY = "steady"  # the phase in which nothing moves: at ``trigger_s``, where a migration would begin
# Who may be hit when. A source and a destination are those of the first step: of several the one with the least number.
PHASES = {
    "source": ("prepare", "align", "transfer"),
    "destination": ("prepare", "install", "drain"),
    "slot": BESIDE,  # the first one of the first stage
    "flight": ("transfer",),  # the connections of a source
    REPLICA: (STEADY, *MOVING),
    FOLLOWER: (STEADY,),
    **dict.fromkeys(("coordinator", *PROCESSES, *SERVICES), AROUND),
}
AT_A_TIME = ("slot", "coordinator", *PROCESSES, *SERVICES, REPLICA, FOLLOWER)  # who may be hit now, and at a time
ACTIONS = {
    "kill": ("source", "destination", "slot", "coordinator", REPLICA, FOLLOWER, *PROCESSES, *ENSEMBLES),
    "stop": ("source", "destination", "slot", "coordinator", REPLICA, *SERVICES),
    "restart": SERVICES,
    "cut": ("flight", *ENSEMBLES),
    "slow": ("flight",),
}
DURATIONS = {  # what one means; of a restart there may be none
    "stop": "how long it is stopped, as in stop:source@align:3s",
    "slow": "how much longer a unit takes, as in slow:flight@transfer:0.2s",
    "restart": "how long it is away at least, as in restart:minio@snapshot:3s, or nothing",
    "cut": "how long the first replica is cut off, as in cut:kafka@4:3s",  # of flight none
}
LONGEST_S = 3600.0  # of what lasts
FORMS = "kill:source@transfer, stop:destination@install:3s, restart:zookeeper@switch or kill:slot@12"
FORMS_NOW = "kill:slot, kill:replica, stop:coordinator:3s or restart:kafka"
# The slot that tells of a phase when no slot is hit; of other phases the coordinator does.
TELLS = {
    **dict.fromkeys(("align", "transfer"), "source"),
    **dict.fromkeys(("install", "drain"), "destination"),
    **dict.fromkeys(BESIDE, "slot"),
}

OF_EVENTS = {  # the phases in which a slot is at an event of its protocol log; of a batch there is none
    "prepared": ("prepare",),
    "barrier": ("align",),
    **dict.fromkeys(("send", "lend", "return"), ("transfer",)),
    "arrived": ("install", "drain"),
    "capture": ("snapshot",),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """``action`` hits ``who``, for ``seconds`` if it is one that lasts: in a ``phase``, or at a moment of measured
    time. One without either happens when it is asked for.
    """

    action: str
    who: str
    phase: str
    at_s: float | None
    seconds: float = 0.0

    def __str__(self) -> str:
        when = self.phase if self.at_s is None else f"{self.at_s:g}"
        lasts = f":{self.seconds:g}s" if self.seconds else ""
        return f"{self.action}:{self.who}{when and f'@{when}'}{lasts}"

    @property
    def what(self) -> str:
        """Its name among those that have happened."""
        return f"{self.action} {self.who}"

    @property
    def ends_query(self) -> bool:
        """Whether a query that it hits dies."""
        return self.action == "kill" and self.who not in ("coordinator", "daemon", REPLICA, FOLLOWER, *SERVICES)

    @property
    def of_migration(self) -> bool:
        """Whether it is in a phase that only a migration has."""
        return self.phase in MOVING

    @property
    def cuts_off(self) -> bool:
        """Whether the first replica is cut off from a service, on which others go on."""
        return self.action == "cut" and self.who in ENSEMBLES

    @property
    def local(self) -> bool:
        """Whether the slot that comes to the phase is hit, by itself; all else is for the driver."""
        return self.who in ("source", "destination", "slot", "flight")

    def strike(self) -> None:
        """Hit the process that calls, or one above it. A daemon that was killed before is left at that.

        Raises KeyshiftError if there is no executor above it.
        """
        pid = _process_of(self.who)
        if pid is None:
            if self.who != "daemon":
                raise KeyshiftError(f"process {os.getpid()} has no {self.who} above it")
        elif self.action == "stop":
            stop(pid, self.seconds)
        else:
            os.kill(pid, signal.SIGKILL)


def _process_of(who: str) -> int | None:
    """The process of ``who``: ours, that of the daemon that has forked it, or that of the executor that has started the
    daemon; None if there is no such process any more.
    """
    process: psutil.Process | None = psutil.Process()
    if who in PROCESSES:
        for sign in ("daemon", "ExecutorBackend")[: PROCESSES.index(who) + 1]:
            process = process.parent() if process else None
            if process and not any(sign in part for part in process.cmdline()):
                return None  # it has died before; then somebody else is above us
    return process.pid if process else None


def stop(pid: int, seconds: float) -> subprocess.Popen[bytes]:
    """Stop a process, our own perhaps, for so long. Returns the process that wakes it up, in a session of its own."""
    wake = f"sleep {seconds:f}; kill -CONT {pid}"  # somebody else has to wake it up
    waker = subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
    os.kill(pid, signal.SIGSTOP)
    return waker


def parse(text: str) -> list[Fault]:
    """Read the faults in ``text``, with commas between. Raises BadInput that names what is wrong and what there is."""
    found = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    for fault in found:
        if fault.phase not in ("", STEADY) and found.count(fault) > 1:
            raise BadInput(
                f"fault = {text!r}: {fault} happens once in its phase; use it once, or also in another phase"
            )
    return found


def parse_now(text: str) -> Fault:
    """Read one fault, as ``parse`` but without a phase or a time: it is to happen now. Raises BadInput as ``parse``."""
    if "@" in text:
        raise BadInput(f"fault = {text!r}: one that is asked for happens now, without @; for example {FORMS_NOW}")
    return _parse(text, now=True)


def _parse(text: str, now: bool = False) -> Fault:
    forms = FORMS_NOW if now else FORMS
    action, _, rest = text.partition(":")
    whom, _, duration = rest.partition(":")
    who, _, when = whom.partition("@")
    if action not in ACTIONS:
        raise BadInput(f"fault = {text!r}: {action!r} is none of {', '.join(ACTIONS)}; for example {forms}")
    if who not in PHASES:
        raise BadInput(f"fault = {text!r}: {who!r} is none of {', '.join(PHASES)}; for example {forms}")
    if who not in ACTIONS[action]:
        able = ", ".join(each for each, whom in ACTIONS.items() if who in whom)
        raise BadInput(f"fault = {text!r}: what can happen to {who} is {able}; for example {forms}")
    seconds = _seconds(duration.removesuffix("s")) if duration else 0.0
    lasts = action in DURATIONS and (action, who) != ("cut", "flight")
    if seconds is None or (not lasts and duration) or (lasts and action != "restart" and not seconds):
        needed = DURATIONS[action] if lasts else "no duration"
        raise BadInput(f"fault = {text!r}: {action} needs {needed}")
    if seconds > LONGEST_S:
        raise BadInput(f"fault = {text!r}: a duration is at most {LONGEST_S:g} s; for example {forms}")
    if now and who not in AT_A_TIME:
        able = f"now can be hit {', '.join(AT_A_TIME)}"
        raise BadInput(f"fault = {text!r}: {who} is hit in a phase only; {able}; for example {forms}")
    if now and action == "cut":
        raise BadInput(f"fault = {text!r}: nobody is cut off unless a run begins with that; for example {forms}")
    at_s = _seconds(when)
    if not (now or when in PHASES[who] or (at_s is not None and who in AT_A_TIME)):
        also = ", or seconds of measured time" if who in AT_A_TIME else ""
        raise BadInput(f"fault = {text!r}: {who} has the phases {', '.join(PHASES[who])}{also}; for example {forms}")
    return Fault(action, who, when if at_s is None else "", at_s, seconds)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


class FaultPoints:
    """Where a slot may be hit, or tells that others may: once for each fault, in the first attempt of its job.

    ``tell(number)``: that of a fault whose phase is there; whether the slot is to be hit, as nobody has told it before.
    ``told``: numbers that were told in batches before. ``first``: the slot is one of the first stage.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        slot: SlotId,
        attempt: int,
        tell: Callable[[int], bool] = lambda number: True,
        told: Collection[int] = (),
        first: bool = True,
    ) -> None:
        left = {n: fault for n, fault in enumerate(faults) if fault.phase and attempt == 0}
        # What makes units slow goes on in the next batch, if it was this slot that has told.
        self._left = {n: fault for n, fault in left.items() if n not in told or fault.action == "slow"}
        self._slot, self._tell, self._first = slot, tell, first
        self._steps: dict[Version, Step] = {}
        self._of_flight: list[Fault] = []  # that wait for state on its way

    def published(self, steps: Sequence[tuple[Version, Step]]) -> None:
        """Hear which ``steps`` are under way."""
        if self._left:
            self._steps |= dict(steps)

    def heard(self, events: Iterable[LogEvent]) -> None:
        """Hear which events the slot's protocol log has; what follows from them has not been carried out."""
        for event in events:
            for phase in OF_EVENTS.get(event.event, ()):
                self.reached(phase, event.version)

    def reached(self, phase: str, version: Version = NO_VERSION) -> None:
        """Hit or tell what is due as the slot is in ``phase``, of the step of ``version`` if it belongs to one."""
        for number, fault in list(self._left.items()):
            role = fault.who if fault.who in ("source", "destination", "slot") else TELLS.get(phase, "")
            if fault.phase == phase and role and self._meant(role, self._steps.get(version)):
                del self._left[number]
                if not self._tell(number):
                    continue
                if fault.who == "flight":
                    self._of_flight.append(fault)
                elif fault.local:
                    fault.strike()

    def sending(self, cut: Callable[[], None]) -> None:
        """Be slow, or ``cut()`` all connections, as faults of Flight say that are due: a unit is on its way, but for
        its end.
        """
        for fault in list(self._of_flight):
            if fault.action == "slow":
                time.sleep(fault.seconds)
            else:
                self._of_flight.remove(fault)
                cut()

    def _meant(self, who: str, step: Step | None) -> bool:
        if who == "slot":
            return self._first and self._slot == 0
        if step is None or not step.moves:
            return False
        return self._slot == min(move.source if who == "source" else move.destination for move in step.moves)
