"""What the driver tells the generator and the collector, and what they report; see ``model.messages``.

Both are told their configuration first, and say that they are ``Ready``; ``Stop`` ends them.

The generator is ready behind its first frame in each partition. It is told ``SkipEvents`` at most once, sends and hears
nothing until it has left those events out, and says then that it is ready again. It is told ``Begin`` once, then, if
the load has no end, ``SetRate`` any number of times, and ``EndLoad``. It says ``SoFar`` every second, and ``LoadDone``
when Kafka has acknowledged the last event of the load; ticks go on behind that. A stop before the end of the load says
it, too.

The collector says what has ``Arrived`` and ``SecondDone`` every second, passes on what slots say, and says which
replicas are ``KeepingUp`` and that some have ``Diverged``. When it is told to stop, it reads what is there by then, and
says ``Collected`` when the file is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from keyshift.model.markers import SlotMarker
from keyshift.model.records import Second
from keyshift.traffic.copies import Difference, Standing

# -- to the generator --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SkipEvents:
    """Leave out so many events of each of its partitions: another process has offered them."""

    events: tuple[int, ...]
    kind: Literal["skip"] = "skip"


@dataclass(frozen=True, slots=True)
class Begin:
    """Offer the load from ``at_us`` (microseconds since the epoch), for ``seconds``; None: until ``EndLoad``."""

    at_us: int
    seconds: float | None
    kind: Literal["begin"] = "begin"


@dataclass(frozen=True, slots=True)
class SetRate:
    """Offer ``rate`` events per second from the moment when this is heard."""

    rate: float
    kind: Literal["rate"] = "rate"


@dataclass(frozen=True, slots=True)
class EndLoad:
    """End a load that has no end."""

    kind: Literal["end load"] = "end load"


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""

    kind: Literal["stop"] = "stop"


OfLoad = SkipEvents | Begin | SetRate | EndLoad
TrafficCommand = Annotated[OfLoad | Stop, Field(discriminator="kind")]


# -- from the generator ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The process does what it is for."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class SoFar:
    """All events so far, and the results that they must have."""

    events: int
    due: int
    kind: Literal["so far"] = "so far"


@dataclass(frozen=True, slots=True)
class LoadDone:
    """``events`` were offered of those that were ``planned``, and must have ``due`` results; ``took_s`` since the start
    of the load.
    """

    events: int
    planned: int
    due: int
    took_s: float
    kind: Literal["load done"] = "load done"


# -- from the collector ------------------------------------------------------------------------------------------------


BUCKETS_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)


class Latencies(NamedTuple):
    """Latencies of results of a slot: their sum in ms, and how many are within each of ``BUCKETS_MS`` and not within
    the one before, or beyond all.
    """

    sum_ms: float
    within: tuple[int, ...]

    def plus(self, more: "Latencies") -> "Latencies":
        """The latencies of the results of both."""
        within = tuple(sum(pair) for pair in zip(self.within, more.within, strict=True))
        return Latencies(self.sum_ms + more.sum_ms, within)


@dataclass(frozen=True, slots=True)
class Arrived:
    """How many results have been read since this was said last, by version, without those of timers: sooner than their
    second is told. Not of replicas: which copies are the first ones is known with the second.
    """

    by_version: Mapping[int, int]
    kind: Literal["arrived"] = "arrived"


@dataclass(frozen=True, slots=True)
class SecondDone:
    """What has arrived in a second, without results of timers: no event waits for them. How many by version, and how
    late by slot. Of replicas, first copies.
    """

    second: Second
    by_version: Mapping[int, int] = field(default_factory=dict)
    by_slot: Mapping[int, Latencies] = field(default_factory=dict)
    kind: Literal["second"] = "second"


@dataclass(frozen=True, slots=True)
class Diverged:
    """Two replicas have not done the same in a slot of ``stage``."""

    stage: str
    difference: Difference
    kind: Literal["diverged"] = "diverged"

    def __str__(self) -> str:
        found = self.difference
        first, second = found.replicas
        return (
            f"replicas {first} and {second} differ in slot {found.slot} of stage {self.stage} at epoch {found.epoch} "
            f"(turn {found.turn}; the same until turn {found.same})"
        )


@dataclass(frozen=True, slots=True)
class KeepingUp:
    """Each second: how the replicas stand that keep up with the others, see ``traffic.copies.Standing``, and how many
    epochs of the order each is behind, see ``traffic.copies.Chains.behind``.
    """

    replicas: Mapping[int, Standing]
    behind: Mapping[int, int]
    kind: Literal["keeping up"] = "keeping up"


@dataclass(frozen=True, slots=True)
class Collected:
    """So many results are in the file, those of timers and of all replicas as well. ``compared``: turns in which two
    replicas were.
    """

    results: int
    compared: int = 0
    kind: Literal["collected"] = "collected"


Report = Annotated[
    Ready | SoFar | LoadDone | Arrived | SecondDone | SlotMarker | Diverged | KeepingUp | Collected,
    Field(discriminator="kind"),
]
