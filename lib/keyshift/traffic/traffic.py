"""Everything around a system under test: events go in, results come out, and its slots say how far they are."""

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow.parquet as pq

from keyshift.clock import SECOND_US
from keyshift.model.errors import NotThere, ServiceUnavailable
from keyshift.model.frames import FIRST_EPOCH
from keyshift.model.markers import Marker, SlotMarker
from keyshift.model.records import Second
from keyshift.traffic import lines
from keyshift.traffic.collector import CollectorConfig
from keyshift.traffic.generator import GeneratorConfig
from keyshift.traffic.messages import (
    Begin,
    EndLoad,
    Latencies,
    LoadDone,
    Ready,
    Report,
    SecondDone,
    SetRate,
    SkipEvents,
    SoFar,
)
from keyshift.traffic.process import JsonProcess
from keyshift.traffic.seconds import Seconds
from keyshift.traffic.topics import FOR_EVER_MS, RETENTION_MS, OfferedSoFar, Topic
from keyshift.waiting import wait_until
from keyshift.workloads import Workload, parcel_of

SAY_S = 120.0  # for slots to say what they have to, without any result meanwhile
LOOK_S = 0.05  # between two looks at what they said
REMEMBERED = 60  # reports of a feed, one per second
MARKERS = 8  # of a kind and a slot: nobody asks for what was said so long before
ANSWER_S = 30.0  # for a generator to get ready, and to be done at the end of a load


class Before(NamedTuple):
    """What earlier processes have offered of a load: events, results that they must have, and since when."""

    events: int = 0
    due: int = 0
    took_s: float = 0.0


class Progress(NamedTuple):
    """What a feed had offered at a moment, in seconds since the epoch: events, and results that are due for them."""

    at: float
    events: int
    due: int


class Feed(JsonProcess):
    """One generator: ticks from the beginning, a load when it is told to."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.sent = 0  # events so far, as it said last
        self.before = Before()
        self._ready = False
        self._done: LoadDone | None = None
        self.progress: deque[Progress] = deque(maxlen=REMEMBERED)
        super().__init__("keyshift.traffic.generator", config, Report, self._heard)

    def _heard(self, report: Ready | SoFar | LoadDone) -> None:
        match report:
            case Ready():
                self._ready = True
            case SoFar(events, due):
                self.sent = events
                self.progress.append(Progress(time.time(), events, due))
            case LoadDone():
                self._done = report

    def skip(self, events: Sequence[int]) -> None:
        """Leave out so many events of each router, which another process has offered; to be called before ``begin``."""
        self.tell(SkipEvents(tuple(events)))

    def begin(self, start: float, seconds: float | None) -> None:
        """Offer the load from ``start`` (seconds since the epoch), for ``seconds``; None: until ``end_load``."""
        self.tell(Begin(int(start * SECOND_US), seconds))

    def change_rate(self, rate: float) -> None:
        """Offer another rate from now on, in events per second, above 0. The load must be one without an end."""
        self.tell(SetRate(rate))

    def end_load(self) -> None:
        """End now a load that has no end."""
        self.tell(EndLoad())

    @property
    def offered(self) -> int | None:
        """Events of the load, None before its end."""
        return self._done.events + self.before.events if self._done else None

    @property
    def planned(self) -> int:
        """Events that the load was to have; to be asked after its end."""
        assert self._done is not None
        return self._done.planned + self.before.events

    @property
    def due(self) -> int | None:
        """Results that the events of the load must have, None before its end."""
        return self._done.due + self.before.due if self._done else None

    @property
    def took_s(self) -> float:
        """How long it took to offer the load; to be asked after its end."""
        assert self._done is not None
        return self._done.took_s + self.before.took_s

    def await_ready(self) -> None:
        """Wait until a first frame is in each partition. Raises ServiceUnavailable if it dies or is late."""
        self._await("ready", lambda: self._ready)

    def await_done(self) -> None:
        """Wait until all of the load is offered. Raises ServiceUnavailable if it dies or is late."""
        self._await("done", lambda: self._done is not None)

    def _await(self, state: str, reached: Callable[[], bool]) -> None:
        def said() -> bool:
            self.check()
            return reached()

        if not wait_until(said, ANSWER_S):
            raise ServiceUnavailable(f"the generator was not {state} within {ANSWER_S:g} s")


class Traffic:
    """Topics, feeds and a collector, from ``open`` to ``close``, which leaves nothing behind, or ``kill``, which leaves
    the topics.

    ``events`` has a partition per router, ``results`` one per slot. ``heard`` gets what came out in each second.
    ``as_lines``: records are lines, not frames; see ``traffic.lines``. All methods raise ServiceUnavailable if Kafka or
    a process of ours is not there any more.
    """

    def __init__(
        self,
        workload: Workload,
        events: Topic,
        results: Topic,
        output: Path,
        heard: Callable[[Second], None] = lambda second: None,
        trace: str = "",
        as_lines: bool = False,
    ) -> None:
        self._workload, self._events, self._results = workload, events, results
        self._output, self._heard_second = output, heard
        self._common: dict[str, Any] = {
            "workload": workload.name,
            "parameters": workload.model_dump(),
            "parcel": parcel_of(type(workload)),
            "trace": trace,
            "lines": as_lines,
        }
        self._as_lines = as_lines
        self._processes: list[JsonProcess] = []
        # The last that were said of each kind, by each slot of each stage; each once.
        self._markers: defaultdict[tuple[int, str, type[Marker]], deque[Marker]] = defaultdict(
            lambda: deque(maxlen=MARKERS)
        )
        self._by_version: Counter[int] = Counter()  # results so far
        self._revoked: set[int] = set()  # versions
        self.seconds = Seconds()  # as the collector has told of them
        self.latencies: dict[int, Latencies] = {}  # of each slot so far
        self.for_ever = False  # whether Kafka keeps what is in the topics until they are deleted

    def open(self, again: bool = False) -> None:
        """Make the topics, and start the collector. ``again``: the topics are there."""
        if not again:
            for topic in (self._events, self._results):
                topic.create(FOR_EVER_MS if self.for_ever else RETENTION_MS)
        config = CollectorConfig(topic=self._results, output=self._output, **self._common)
        self._processes.append(JsonProcess("keyshift.traffic.collector", config, Report, self._heard))

    def await_silence(self) -> None:
        """Wait until nobody writes events any more. Raises ServiceUnavailable if somebody goes on."""
        self._events.await_silence()

    def feed(
        self,
        rate: float,
        frame_ms: float,
        steps: Sequence[tuple[float, float]] = (),
        epoch: int = FIRST_EPOCH,
    ) -> Feed:
        """Start a generator of ``rate`` events per second, and of other rates later; see ``traffic.generator``.

        ``epoch``: of the driver that it is for; when the generator is ready, whatever those of others offer is stale.
        """
        load = GeneratorConfig(
            topic=self._events, rate=rate, frame_ms=frame_ms, rate_steps=list(steps), epoch=epoch, **self._common
        )
        feed = Feed(load)
        self._processes.append(feed)
        return feed

    def end(self, feed: Feed) -> None:
        """End a feed: no tick comes from it any more, and ``check`` does not miss it."""
        feed.kill()
        self._processes.remove(feed)

    @property
    def pids(self) -> dict[int, str]:
        """The processes of generators and the collector, with their names."""
        return {process.pid: process.name for process in self._processes}

    def check(self) -> None:
        """Raises ServiceUnavailable if a process has died."""
        for process in self._processes:
            process.check()

    def stop(self) -> None:
        """Stop the collector first, when all results are out, so that it writes them; then whatever feeds."""
        for process in self._processes:
            process.stop()

    def kill(self) -> None:
        """End all processes now; the topics stay. Safe to call twice."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._output.unlink, missing_ok=True)
            for process in self._processes:
                stack.callback(process.kill)

    def close(self) -> None:
        """Remove all of it; safe to call twice. What fails is raised when the rest is gone."""
        with contextlib.ExitStack() as stack:
            for topic in (self._events, self._results):
                stack.callback(topic.delete)
            stack.callback(self.kill)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _heard(self, report: SlotMarker | SecondDone) -> None:
        match report:
            case SlotMarker(slot, marker):
                said = self._markers[slot, marker.stage, type(marker)]
                if marker not in said:
                    said.append(marker)
            case SecondDone(second, by_version, by_slot):
                self.seconds.append(second)
                for slot, more in by_slot.items():
                    before = self.latencies.get(slot)
                    self.latencies = self.latencies | {slot: before.plus(more) if before else more}
                self._by_version.update(by_version)
                self._heard_second(second)

    @property
    def received(self) -> int:
        """Results so far, but for those that were revoked."""
        return sum(count for version, count in self._by_version.copy().items() if version not in self._revoked)

    def revoke(self, versions: Collection[int]) -> None:
        """Count for nothing what came out under ``versions``: it comes once more."""
        self._revoked |= set(versions)

    def require_input(self, offsets: Mapping[int, int]) -> None:
        """Raises NotThere unless events are still there from these offsets of each partition on; 0 if it has none."""
        for partition, begin in sorted(self._events.begins().items()):
            if begin > (needed := offsets.get(partition, 0)):
                raise NotThere(
                    f"topic {self._events.name!r} begins at offset {begin} of partition {partition} by now, and the "
                    f"job has to begin at {needed}: Kafka has removed what is before, see its retention"
                )

    def said(self, what: Marker) -> set[int]:
        """The slots of which this marker has come."""
        return {slot for (slot, *_), said in list(self._markers.items()) if what in list(said)}

    def await_slots(self, slots: Collection[int], said: Marker, check: Callable[[], None]) -> None:
        """Wait until this marker has come from each slot.

        Raises ServiceUnavailable, naming who is missing, if ``SAY_S`` pass without a marker or a result, and what
        ``check`` raises.
        """

        def missing() -> set[int]:
            return set(slots) - self.said(said)

        def all_said() -> bool:
            check()
            self.check()
            return not missing()

        if not wait_until(all_said, SAY_S, LOOK_S, lambda: (len(missing()), self.received)):
            what = f"{said.kind!r} within {SAY_S:g} s"
            raise ServiceUnavailable(f"slots {sorted(missing())} did not say {what}")

    def await_results(self, over: Callable[[], bool], quiet_s: float) -> None:
        """Wait until it is ``over``, or no result has come for ``quiet_s`` seconds."""
        wait_until(over, quiet_s, progress=lambda: self.received)

    # -- what it was --------------------------------------------------------------------------------------------------

    def offered(self, before: Mapping[int, int] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Read back events and frames; see ``Topic.read``."""
        [source], [stage, *_] = self._workload.sources, self._workload.stages
        if self._as_lines:
            return lines.read(self._events, source.schema)
        return self._events.read(source.schema, before, stage)

    def count_offered(self) -> OfferedSoFar:
        """Count what was offered, in little memory; see ``Topic.count``."""
        [source] = self._workload.sources
        return self._events.count(source.schema, self._workload.stages)

    def results(self) -> pd.DataFrame:
        """All results, after ``stop``; columns: see ``traffic.collector``."""
        return pq.read_table(self._output).to_pandas()
