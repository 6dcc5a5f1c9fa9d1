"""Errors a caller can act on. A message says what happened, the value, what was expected, and what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class KeyshiftError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line."""


class BadInput(KeyshiftError):
    """A name, number or combination the user gave cannot be used; nothing was started."""


class ServiceUnavailable(KeyshiftError):
    """A service (Kafka, ZooKeeper, MinIO, Java, Spark) is missing, refused us, or did not answer in time."""


class Refused(ServiceUnavailable):
    """A service does not take our credentials: to ask again is of no use."""


class NotThere(ServiceUnavailable):
    """A service answers, and does not have what it was asked for."""


class InputLost(NotThere):
    """Kafka has lost events that were read already: who goes on behind them would miss what comes in their place."""


class JobOver(NotThere):
    """Nobody can go on with the job any more: its driver has ended it. What it has left may be deleted."""


class Damaged(ServiceUnavailable):
    """What a service has is not what was written there."""


class Undelivered(ServiceUnavailable):
    """A store did not deliver an object: it is away, or has found by itself that the object is damaged."""


class RunsElsewhere(ServiceUnavailable):
    """Another process, which need not be on this machine, is at work for the job."""


class QueryDied(ServiceUnavailable):
    """The Spark query has ended by itself; the message has its last words. The job may start another attempt."""


class Deposed(KeyshiftError):
    """Another process drives the job now: this one ends, and leaves everything to it."""


class PointsDied(KeyshiftError):
    """Runs of some points have died: what shows the others lacks these."""


class PlanRejected(KeyshiftError):
    """A strategy proposed a step that breaks an invariant of the plan; the message names which."""


class ContractBroken(KeyshiftError):
    """A strategy, a workload, a state backend or an order protocol does not do what its kind promises; the message says
    what.
    """


class ProtocolViolation(KeyshiftError):
    """A protocol machine met an event that its state does not allow; it names role, state and event."""


class MigrationFailed(KeyshiftError):
    """A migration phase passed its deadline; the message names the phase and who was missing."""


@contextmanager
def service_errors(
    errors: type[Exception] | tuple[type[Exception], ...], explain: Callable[[Any], str | KeyshiftError]
) -> Iterator[None]:
    """Turn ``errors`` of a service's client inside into what ``explain`` makes of them; a line: ServiceUnavailable."""
    try:
        yield
    except errors as error:
        found = explain(error)
        raise (ServiceUnavailable(found) if isinstance(found, str) else found) from error


def require(kept: bool, otherwise: str) -> None:
    """Raises ContractBroken, with the words of ``otherwise``, unless ``kept``."""
    if not kept:
        raise ContractBroken(otherwise)
