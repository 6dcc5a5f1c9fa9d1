"""Everything around a system under test: events go in, results come out, and its slots say how far they are."""

import contextlib
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyshift.model.errors import InputLost, NotThere, ServiceUnavailable
from keyshift.model.frames import FIRST_EPOCH
from keyshift.model.markers import Marker, SlotMarker
from keyshift.model.records import Second
from keyshift.traffic.collector import CollectorConfig
from keyshift.traffic.copies import Standing, Superseded
from keyshift.traffic.feed import Feed
from keyshift.traffic.generator import GeneratorConfig
from keyshift.traffic.inputs import Inputs
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.messages import Arrived, Collected, Diverged, KeepingUp, Latencies, Report, SecondDone
from keyshift.traffic.process import JsonProcess
from keyshift.traffic.seconds import Seconds
from keyshift.traffic.topics import FOR_EVER_MS, RETENTION_MS, OfferedSoFar, Topic
from keyshift.waiting import wait_until
from keyshift.workloads import Workload, parcel_of

SAY_S = 300.0  # for slots to say what they have to, with nothing of them meanwhile: a full machine takes minutes
LOOK_S = 0.05  # between two looks at what they said
READ_ROWS = 1 << 19  # results at a time: some tens of MiB
MARKERS = 8  # of a kind and a slot: nobody asks for what was said so long before


@dataclass(frozen=True)
class Portions:
    """What was offered and what came out, some at a time. ``folder``: not there yet, for files of whoever reads it; it
    goes when the traffic ends.
    """

    inputs: Inputs
    output: Path

    @property
    def folder(self) -> Path:
        """Beside the results."""
        return self.output.with_suffix(".parts")

    def events(self, before: Mapping[int, int] | None = None) -> Iterator[tuple[pa.Table, pd.DataFrame]]:
        """Events and frames; see ``Traffic.offered``."""
        self.inputs.require_whole()
        yield from self.inputs.portions(before)

    def results(self) -> Iterator[pa.Table]:
        """All results, after ``Traffic.stop``, in the order of ``Traffic.results``; at least a table without rows."""
        with pq.ParquetFile(self.output) as file:
            yield file.schema_arrow.empty_table()
            for batch in file.iter_batches(READ_ROWS):
                yield pa.Table.from_batches([batch])


class Traffic:
    """Topics, feeds and a collector, from ``open`` to ``close``, which leaves nothing behind, or ``kill``, which leaves
    the topics.

    ``events`` are the topics of the sources, in their order, with a partition for each router; ``results`` has one for
    each slot. ``heard`` gets what came out in each second.
    ``as_lines``: records are lines, not frames; see ``traffic.lines``. ``others``: results of replicas 1, 2, … of the
    job; those that are counted here are first copies. ``near_us`` and ``apart``: see ``copies.Chains``. ``order``: of
    the job's order log, if it has one.
    All methods raise ServiceUnavailable if Kafka or a process of ours is not there any more.
    """

    def __init__(
        self,
        workload: Workload,
        events: Sequence[Topic],
        results: Topic,
        output: Path,
        heard: Callable[[Second], None] = lambda second: None,
        trace: str = "",
        as_lines: bool = False,
        others: Sequence[Topic] = (),
        near_us: int = 0,
        apart: bool = False,
        order: Topic | None = None,
    ) -> None:
        self._inputs = Inputs(workload, events)
        self._topics = [*events, results, *others, *([order] if order else [])]
        self._results, self._others, self.order = results, tuple(others), order
        self.result_logs = (results, *others)  # of each replica
        self._near_us, self._apart = near_us, apart
        self.replicas = len(self.result_logs)
        self._output, self._heard_second = output, heard
        # None: lines, which are as many records as events, and first copies of replicas are read as a whole.
        self.portions = None if as_lines or others else Portions(self._inputs, output)
        self._common: dict[str, Any] = {
            "workload": workload.name,
            "parameters": workload.model_dump(),
            "parcel": parcel_of(type(workload)),
            "trace": trace,
            "lines": as_lines,
        }
        self._as_lines = as_lines
        self._processes: list[JsonProcess] = []
        # The last that were said of each kind, by each slot of each stage of each replica; each once.
        self._markers: defaultdict[tuple[int, int, str, type[Marker]], deque[Marker]] = defaultdict(
            lambda: deque(maxlen=MARKERS)
        )
        self._by_version: Counter[int] = Counter()  # results so far
        self.early = 0  # of them, those of which no second was told yet
        self._revoked: Collection[int] = ()  # versions
        self.seconds = Seconds()  # as the collector has told of them
        self.latencies: dict[int, Latencies] = {}  # of each slot so far
        self.differences: list[Diverged] = []  # of replicas, so far
        self.standings: Mapping[int, Standing] = {}  # of replicas that keep up, as was told last
        self.behind: Mapping[int, int] = {}  # of each replica likewise: epochs of the order
        self.compared = 0  # turns in which two replicas were; known after ``stop``
        self.require_wanted: Callable[[], None] = lambda: None  # raises if nobody waits any more for what comes
        self.for_ever = False  # whether Kafka keeps what is in the topics until they are deleted
        self.lasts_s = 0.0  # otherwise a load that lasts so long, at the most, is kept ``RETENTION_MS`` longer

    def open(self, again: bool = False, superseded: Sequence[Superseded] = ()) -> None:
        """Make the topics, and start the collector. ``again``: the topics are there, and of the results of replicas
        these are superseded. Raises NotThere if something of them is gone: all of it is counted, and judged.
        """
        for topic in self._topics:
            if again:
                topic.require_whole()
            else:
                topic.create(FOR_EVER_MS if self.for_ever else RETENTION_MS + round(self.lasts_s * 1000))
        config = CollectorConfig(
            topic=self._results,
            others=self._others,
            near_us=self._near_us,
            apart=self._apart,
            superseded=tuple(superseded),
            output=self._output,
            **self._common,
        )
        self._processes.append(JsonProcess("keyshift.traffic.collector", config, Report, self._heard))

    def await_silence(self, frame_ms: float) -> None:
        """Wait until nobody writes events any more, with a frame every ``frame_ms``, nor results of replicas. Raises
        ServiceUnavailable if somebody goes on.
        """
        topics = [*(each.topic for each in self._inputs.all), *(self.result_logs if self.replicas > 1 else ())]
        with ThreadPoolExecutor(len(topics)) as pool:  # each takes seconds
            list(pool.map(lambda topic: topic.await_silence(frame_ms), topics))

    def feed(self, loads: Sequence[SourceLoad], frame_ms: float, epoch: int = FIRST_EPOCH) -> Feed:
        """Start the generators that offer the ``loads``, one for each source, with a frame per partition every
        ``frame_ms``.

        ``epoch``: of the driver that it is for; when the feed is ready, whatever those of others offer is stale.
        """
        common = self._common | {"frame_ms": frame_ms, "epoch": epoch}
        configs = (
            (
                GeneratorConfig(
                    topic=each.topic,
                    source=each.source.name,
                    partitions=partitions,
                    rate=load.rate,
                    rate_steps=list(load.steps),
                    events=load.file,
                    **common,
                ),
                [each.first + partition for partition in partitions],
            )
            for each, load, partitions in self._inputs.shares(loads)
        )
        feed = Feed(configs, lambda: self.require_wanted())  # whatever that is by then
        self._processes += feed.injectors
        return feed

    def end(self, feed: Feed) -> None:
        """End a feed: no tick comes from it any more, and ``check`` does not miss it."""
        for injector in feed.injectors:
            injector.kill()
            self._processes.remove(injector)

    @property
    def pids(self) -> dict[int, str]:
        """The processes of generators and the collector, with their names."""
        return {process.pid: process.name for process in self._processes}

    def check(self) -> None:
        """Raises ServiceUnavailable if a process has died, and what ``require_wanted`` raises."""
        self.require_wanted()
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
            if self.portions:
                stack.callback(shutil.rmtree, self.portions.folder, ignore_errors=True)
            for process in self._processes:
                stack.callback(process.kill)

    def close(self) -> None:
        """Remove all of it; safe to call twice. What fails is raised when the rest is gone."""
        with contextlib.ExitStack() as stack:
            for topic in self._topics:
                stack.callback(topic.delete)
            stack.callback(self.kill)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _heard(self, report: SlotMarker | Arrived | SecondDone | Diverged | KeepingUp | Collected) -> None:
        match report:
            case SlotMarker(slot, marker, replica):
                said = self._markers[replica, slot, marker.stage, type(marker)]
                if marker not in said:
                    said.append(marker)
            case Arrived(by_version):
                self.early += sum(by_version.values())  # first: for whoever looks meanwhile, no second is over sooner
                self._by_version.update(by_version)
            case SecondDone(second, by_version, by_slot):
                self.seconds.append(second)
                for slot, more in by_slot.items():
                    before = self.latencies.get(slot)
                    self.latencies = self.latencies | {slot: before.plus(more) if before else more}
                if self._others:
                    self._by_version.update(by_version)
                else:
                    self.early -= sum(by_version.values())
                self._heard_second(second)
            case Diverged():
                self.differences.append(report)
            case KeepingUp(standings, behind):
                self.standings, self.behind = standings, behind
            case Collected():
                self.compared = report.compared

    @property
    def received(self) -> int:
        """Results so far, but for those that were revoked."""
        return sum(count for version, count in self._by_version.copy().items() if version not in self._revoked)

    def revoke(self, versions: Collection[int]) -> None:
        """Count for nothing what came out under ``versions``, which are all so far: it comes once more."""
        self._revoked = versions

    def require_input(self, offsets: Mapping[int, int]) -> None:
        """Make sure that events are there up to these offsets of each router, and still from them on; 0 if it has none.
        Raises NotThere; InputLost if they end before.
        """
        for router, (topic, partition, begin, end) in self._inputs.extents().items():
            needed = offsets.get(router, 0)
            if begin > needed:
                raise NotThere(
                    f"topic {topic.name!r} begins at offset {begin} of partition {partition} by now, and the "
                    f"job has to begin at {needed}: Kafka has removed what is before, see its retention"
                )
            if end < needed:
                raise InputLost(
                    f"topic {topic.name!r} ends at offset {end} of partition {partition}, and the job has read up to "
                    f"{needed}: Kafka has lost what it had confirmed, as it may when its machine goes down"
                )

    def slots_that_said(self, what: Marker, replica: int = 0) -> set[int]:
        """The slots of ``replica`` of which this marker has come."""
        return {
            slot for (number, slot, *_), said in list(self._markers.items()) if number == replica and what in list(said)
        }

    def await_slots(self, slots: Collection[int], said: Marker, check: Callable[[], None], replica: int = 0) -> None:
        """Wait until this marker has come from each slot of ``replica``.

        Raises ServiceUnavailable, naming who is missing, if ``SAY_S`` pass without a marker or a result, and what
        ``check`` raises. Results may be those of any replica: if there are several only markers count.
        """

        def missing() -> set[int]:
            return set(slots) - self.slots_that_said(said, replica)

        def all_said() -> bool:
            check()
            self.check()
            return not missing()

        if not wait_until(all_said, SAY_S, LOOK_S, lambda: (len(missing()), 0 if self._others else self.received)):
            what = f"{said.kind!r} within {SAY_S:g} s"
            whose = f" of replica {replica}" if self._others else ""
            raise ServiceUnavailable(f"slots {sorted(missing())}{whose} did not say {what}")

    def await_results(self, over: Callable[[], bool], quiet_s: float) -> None:
        """Wait until it is ``over``, or no result has come for ``quiet_s`` seconds."""
        wait_until(over, quiet_s, progress=lambda: self.received)

    # -- what it was --------------------------------------------------------------------------------------------------

    def offered(self, before: Mapping[int, int] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Read back events and frames; see ``Inputs.read``. Raises NotThere if some are gone."""
        self._inputs.require_whole()
        return self._inputs.read_lines() if self._as_lines else self._inputs.read(before)

    def count_offered(self) -> OfferedSoFar:
        """Count what was offered; see ``Inputs.count``."""
        return self._inputs.count()

    def results(self, replica: int | None = None) -> pd.DataFrame:
        """All results, after ``stop``; columns: see ``traffic.collector``. Of replicas the first copies, as one log of
        each slot: ``log_offset`` is the place among them. Or all that came out of one ``replica``, first or not.
        """
        if replica is not None:
            return _read(self._output, [("replica", "==", replica)])
        if not self._others:
            return _read(self._output)
        found = _read(self._output, [("first", "==", True)])
        return found.assign(log_offset=np.arange(len(found)))


def _read(output: Path, filters: list[tuple[str, str, Any]] | None = None) -> pd.DataFrame:
    """Read results, of which no more than a column is there twice meanwhile."""
    return pq.read_table(output, filters=filters).to_pandas(split_blocks=True, self_destruct=True)
