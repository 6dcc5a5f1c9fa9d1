"""How protocol logs travel: to the job when it asks, through ZooKeeper, and unasked when a task fails."""

import contextlib
import secrets
import sys
from collections.abc import Iterable

from keyshift.clock import now_us
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.records import StepRecord
from keyshift.runtime.protocol_log import EVENTS, LogEvent, ProtocolLog, in_order, to_lines
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination

ANSWER_S = 2.0  # for all slots and routers, which have it in memory
SHOWN = 100  # events, in the log of a worker


def answer(coordination: Coordination, request: str, log: ProtocolLog) -> None:
    """Give the job what ``log`` remembers. One that is empty has no place yet."""
    if log.events:
        coordination.acknowledge(nodes.logs(request)[log.place], tuple(log.events))


def keep(coordination: Coordination, log: ProtocolLog) -> None:
    """Keep the log of a task that ends without a handover: the job finds it, behind those of batches before."""
    if log.events:
        with contextlib.suppress(ServiceUnavailable):
            node = nodes.ENDED_LOGS[log.place]
            before = coordination.read(node) or ()
            coordination.publish(node, (*before, *log.events)[-EVENTS:])


def report(coordination: Coordination, log: ProtocolLog) -> None:
    """Put what led to the failure of the task into the log of its worker, and tell the job. Does not wait."""
    log.stamp(now_us())
    sys.stderr.write(f"{log.place} fails; its last protocol events:\n{to_lines(list(log.events)[-SHOWN:])}")
    if log.events:
        with contextlib.suppress(ServiceUnavailable):
            coordination.acknowledge(nodes.ENDED_LOGS[f"{log.place}-failed"], tuple(log.events))


def gather(coordination: Coordination, tasks: int, steps: Iterable[StepRecord], alive: bool) -> list[LogEvent]:
    """The events of all slots and routers (``tasks`` of them), as far as they answer, and of the coordinator.

    If the query is not ``alive``, only those are known of tasks that have ended. Raises ServiceUnavailable.
    """
    request = secrets.token_hex(3)
    if alive:
        coordination.publish(nodes.LOG, request)
        wait_until(lambda: len(coordination.children(nodes.logs(request))) >= tasks, ANSWER_S)
    ended = sorted(coordination.read_below(nodes.ENDED_LOGS).items())
    logs: dict[str, list[LogEvent]] = {"coordinator": _of_coordinator(steps)}
    for _, events in [*ended, *coordination.read_below(nodes.logs(request)).items()]:
        logs.setdefault(events[0].place, []).extend(events)
    return in_order(map(dict.fromkeys, logs.values()))  # a router that fails ends, too, and has told both times


def _of_coordinator(steps: Iterable[StepRecord]) -> list[LogEvent]:
    events = []
    for step in steps:
        moments = ("publish", step.published_us), ("switched", step.switched_us), (step.outcome, step.completed_us)
        units = tuple(move.unit for move in step.step.moves)
        events += [LogEvent(us, "coordinator", event, units, step.version) for event, us in moments if us is not None]
    return sorted(events)
