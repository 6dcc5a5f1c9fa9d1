"""What stands in for Spark, Kafka and MinIO: the real tasks in threads, over lists and dictionaries.

A query runs batch after batch. In each, every router and slot is a thread that runs the task of ``worker.tasks``,
and every slot is in a *process*: what a Python worker keeps from batch to batch, its ``SlotHost``. Which slot is in
which process may change from batch to batch, and a process without a task may end.
"""

import ctypes
import io
import math
import queue
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from minio.error import MinioException

from keyshift.driver.snapshotter import SNAPSHOT_PREFIX
from keyshift.model import frames
from keyshift.model.markers import SlotMarker
from keyshift.traffic.topics import positions
from keyshift.wire.config import JobConfig, result_schema
from keyshift.worker import daemon, tasks
from keyshift.worker.slot.host import SlotHost
from keyshift.workloads import Workload
from memory_bucket import MemoryBucket

ROWS_ON_THE_WAY = 64  # between routers and a slot: Spark's shuffle holds a few MiB
ENDS_S = 30.0  # for tasks of a batch to end
GRACE_S, KILLED_S = 0.5, 10.0  # until tasks of a query that is over are killed, and until they must have gone
HERE = threading.local()  # ``process`` and ``context`` of the thread's task

_END = None
Shuffle = list["queue.Queue[bytes | None]"]  # to each slot of a stage


class Killed(BaseException):
    """What happens to a task whose query has ended."""


class Topic:
    """Frames by partition, and what ``traffic.topics.Topic.read`` gives of them."""

    def __init__(self, partitions: int) -> None:
        self.partitions: list[list[bytes]] = [[] for _ in range(partitions)]

    def read(self, workload: Workload) -> tuple[pd.DataFrame, pd.DataFrame]:
        """All events as routers make them of the sources', with router, offset and position; all frames, with their
        watermark and how many events of the source. Each source has as many partitions.
        """
        stage = workload.stages[0]
        batches, seen = [], []
        for router, values in enumerate(self.partitions):
            source = workload.sources[router * len(workload.sources) // len(self.partitions)]
            for offset, value in enumerate(values):
                events, facts = frames.decode(value, source.schema)
                batches.append(source.mapped(events).replace_schema_metadata(None))
                seen.append((router, offset, facts.watermark, events.num_rows))
        columns = ["router", "offset", "watermark", "events"]
        all_frames = pd.DataFrame(np.array(seen, np.int64).reshape(-1, 4), columns=columns)
        rows = np.array([batch.num_rows for batch in batches], np.int64)
        table = pa.Table.from_batches(batches, stage.events.remove_metadata()).to_pandas()
        table["router"] = np.repeat(all_frames["router"].to_numpy(np.int32), rows)
        table["offset"] = np.repeat(all_frames["offset"].to_numpy(), rows)
        table["position"] = positions(rows)
        return table, all_frames


class Bucket(MemoryBucket):
    """That of a run.

    A segment takes up to ``slow_s`` (seconds) to be written, and is not written with probability ``fails``: the rest of
    what a job writes has to be there, or the run has no verdict.
    """

    def __init__(self, seed: int = 0, slow_s: float = 0.0, fails: float = 0.0) -> None:
        super().__init__()
        self.ever: dict[str, bytes] = {}  # what was removed, too
        self._rng, self._slow_s, self._fails = random.Random(f"bucket {seed}"), slow_s, fails

    def put_object(self, bucket: str, name: str, data: io.BytesIO, length: int, part_size: int) -> None:
        if SNAPSHOT_PREFIX in name:
            time.sleep(self._rng.random() ** 3 * self._slow_s)  # seldom long
            if self._rng.random() < self._fails:
                raise MinioException(f"{name}: there is no room")
        self.ever[name] = content = data.read(length)
        super().put_object(bucket, name, io.BytesIO(content), length, part_size)

    def with_all(self) -> MemoryBucket:
        """One that has what was removed, too."""
        other = MemoryBucket()
        other.objects = self.ever
        return other


class Process:
    """A Python worker; ``slot_host.host_for`` is a method here, as there are many in this process."""

    def __init__(self) -> None:
        self.left = self.stays = False  # Spark has no more use for it; it does not end all the same
        self._hosts: dict[str, SlotHost] = {}
        self._lock = threading.Lock()

    def values(self) -> list[SlotHost]:
        """As of ``slot_host._hosts``."""
        return [*self._hosts.values()]

    def leave(self) -> None:
        """Spark says goodbye to it; ``daemon.worker`` has returned then. It ends when it likes to."""
        self.left = self.stays = True

        def end() -> None:
            HERE.process = self
            daemon.prompt_worker(SimpleNamespace(family=socket.AF_UNIX), True)
            self.end()
            self.stays = False

        threading.Thread(target=end, name="harness-goodbye", daemon=True).start()

    def host_for(self, config: JobConfig) -> SlotHost:
        with self._lock:
            if any(host.key != (config.job, config.attempt) for host in self._hosts.values()):
                self.end()
            if config.stage not in self._hosts:
                host = self._hosts[config.stage] = SlotHost(config)
                host.warm = True  # calls to ourselves would fail by chance, as in truth they do not
            return self._hosts[config.stage]

    def end(self) -> None:
        """Nobody reaches it any more."""
        for host in self.values():
            threading.Thread(target=host.close, name="harness-shutdown", daemon=True).start()
        self._hosts = {}


@dataclass
class Engine:
    """All that outlives a query. Stands in for the Spark session of a ``Job``."""

    seed: int
    topic: Topic
    workload: Workload
    batch_s: float | None  # None: a query has one batch
    moves: float  # probability that a slot finds itself in another process after a batch
    slow_s: tuple[float, ...]  # by router, of any stage: how long its rows are on their way
    leaves: float = 0.0  # probability that Spark says goodbye to a process as soon as its slots are at their end
    held_s: float = 0.0  # so long after the routers one process of slots comes to its rows, in the second batch
    results: list[pd.DataFrame] = field(default_factory=list)
    answered: dict[int, set[tuple[int, int, int]]] = field(default_factory=dict)  # version -> router, offset, position
    by_turn: list[tuple[int, int, int]] = field(default_factory=list)  # slot, turn, how many results of events
    markers: list[SlotMarker] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    left: list[Process] = field(default_factory=list)  # all from which Spark has gone
    batches: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        self.rng, self._collecting = random.Random(f"engine {self.seed}"), threading.Lock()
        self._log_ends: dict[int, int] = {}

    def start_query(
        self, config: JobConfig, checkpoint: Any, batch_s: float, offsets: dict[int, int] | None = None
    ) -> "Query":
        """See ``pipeline.start_query``."""
        self.query = Query(self, config, [(offsets or {}).get(router, 0) for router in range(config.routers)])
        return self.query

    def collect(self, slot: int, values: Iterable[pa.Scalar], schema: pa.Schema) -> None:
        """Results and markers of a slot."""
        for value in values:
            batch, facts = frames.decode(value.as_buffer(), schema)
            if batch.num_rows:
                end = self._log_ends[slot] = self._log_ends.get(slot, -1) + 1
                where = {"slot": slot, "log_offset": end, "arrived_us": time.time_ns() // 1000}
                of_events = sum(router >= 0 for router in batch["router"].to_pylist())
                rows = batch.to_pandas().assign(**where)
                with self._collecting:  # slots give theirs at the same time, and both lists have one order
                    self.results.append(rows)
                    if facts.turn:
                        self.by_turn.append((slot, facts.turn.number, of_events))
                names = ("version", "router", "offset", "position")
                for version, *event in zip(*(batch[name].to_pylist() for name in names), strict=True):
                    if event[0] >= 0:  # not of a timer
                        self.answered.setdefault(version, set()).add(tuple(event))
            else:
                self.markers += [facts.said] if facts.said else []

    def end(self) -> None:
        """End all processes; those that Spark has left stay for nobody any more."""
        for process in self.processes + self.left:
            for host in process.values():
                host.left.clear()
                host.lent.clear()
            process.end()


class Query:
    """One query; ``isActive``, ``exception`` and ``stop`` as of Spark's."""

    def __init__(self, engine: Engine, config: JobConfig, offsets: list[int]) -> None:
        self._engine, self._config, self.offsets = engine, config, offsets
        self._schema = result_schema(engine.workload.stages[-1])
        self._chain = config.chain()
        self._error: BaseException | None = None
        self._over = threading.Event()  # tasks are killed then
        self.isActive = True
        self._driver = threading.Thread(target=self._run, name="harness-query", daemon=True)
        self._driver.start()

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._over.set()
        self._driver.join(ENDS_S + KILLED_S)
        if self._driver.is_alive():
            raise AssertionError("a query does not end")

    def die(self, error: BaseException) -> None:
        """A task has failed: Spark does not try it again."""
        if self._error is None and not self._over.is_set():
            self._error = error
        self._over.set()

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._batch()
        except BaseException as error:
            self.die(error)
        self.isActive = False

    def _batch(self) -> None:
        engine, config, rng = self._engine, self._config, self._engine.rng
        number, engine.batches = engine.batches, engine.batches + 1
        homes = self._homes()
        ending = threading.Event()
        held = rng.choice(homes) if engine.held_s and number == 1 else None
        homes_left = iter(homes)
        shuffles: list[Shuffle] = [
            [queue.Queue(0 if next(homes_left) is held else ROWS_ON_THE_WAY) for _ in range(each.processes)]
            for each in self._chain
        ]
        routers = [
            self._task(f"router {n}", homes[0], n, number, lambda n=n: self._route(n, ending, shuffles[0]))
            for n in range(config.routers)
        ]
        stages: list[list[threading.Thread]] = []
        homes_left = iter(homes)
        for stage, each in enumerate(self._chain):
            serve = partial(self._serve, each, shuffles[stage], shuffles[stage + 1] if each.next else None)
            stages.append([])
            for n in range(each.processes):
                home, name = next(homes_left), f"slots {[*each.slots_of(n)]} of {each.stage}"
                act = partial(serve, n, ending if home is held else None)
                leaves = engine.leaves and rng.random() < engine.leaves
                stages[-1].append(self._task(name, home, n, number, partial(self._leaving, act) if leaves else act))
        self._over.wait(None if engine.batch_s is None else engine.batch_s * (0.5 + rng.random()))
        ending.set()
        self._await(routers)
        for shuffle, threads in zip(shuffles, stages, strict=True):
            for rows in shuffle:
                self._put(rows, _END)
            self._await(threads)

    def _homes(self) -> list[Process]:
        """The process of each task of slots. Some that had none before have ended, as Spark ends idle ones."""
        engine, tasks = self._engine, sum(each.processes for each in self._chain)
        known = engine.processes
        known[:] = [Process() if each.left else each for each in known]
        for process in known[tasks:]:
            if engine.rng.random() < 0.3:
                process.end()
        while len(known) < tasks + 1:
            known.append(Process())
        if engine.rng.random() < engine.moves:
            engine.moved += 1
            engine.rng.shuffle(known)
        return known[:tasks]

    def _task(self, name: str, process: Process, number: int, batch: int, act: Any) -> threading.Thread:
        def run() -> None:
            HERE.process, HERE.context = process, _Context(number, batch)
            try:
                act()
            except Killed:
                pass
            except BaseException as error:
                self.die(error)

        thread = threading.Thread(target=run, name=f"harness {name}", daemon=True)
        thread.start()
        return thread

    def _leaving(self, act: Any) -> None:
        """It has no other task."""
        act()
        self._engine.left.append(HERE.process)
        HERE.process.leave()

    def _await(self, threads: list[threading.Thread]) -> None:
        """Until all have ended: by themselves, or because the query is over and they were killed."""
        late_at, kill_at, give_up_at = time.monotonic() + ENDS_S, 0.0, 0.0
        while alive := [thread for thread in threads if thread.is_alive()]:
            now = time.monotonic()
            if not self._over.is_set():
                if now > late_at:
                    self.die(AssertionError(f"{', '.join(thread.name for thread in alive)}: does not end"))
            elif not kill_at:
                kill_at, give_up_at = now + GRACE_S, now + KILLED_S
            elif now > give_up_at:
                return
            elif now > kill_at:
                kill_at = now + 1.0
                for thread in alive:
                    _kill(thread)
            alive[0].join(0.05)

    # -- what tasks get and give ---------------------------------------------------------------------------------------

    def _route(self, number: int, ending: threading.Event, shuffle: Shuffle) -> None:
        rng = random.Random(f"router {number} {self._engine.seed} {self.offsets[number]}")
        slow_s = self._engine.slow_s[number % len(self._engine.slow_s)]
        partition = self._engine.topic.partitions[number]
        batch_s = self._engine.batch_s or math.inf
        for routed in tasks.router(self._config, batch_s)(self._frames(number, ending)):
            if self.offsets[number] + 1 >= len(partition):  # else it would fall behind more and more
                time.sleep(rng.random() * slow_s)
            for task, value in zip(*routed.columns, strict=True):
                self._put(shuffle[task.as_py()], value.as_py())

    def _frames(self, router: int, ending: threading.Event) -> Iterator[pa.RecordBatch]:
        """As Kafka's source: partition, offset, value, until the batch ends."""
        partition = self._engine.topic.partitions[router]
        while not ending.is_set():
            self._check()
            if self.offsets[router] == len(partition):
                time.sleep(0.002)
                continue
            offset = self.offsets[router]
            columns = [pa.array([router], pa.int32()), pa.array([offset]), pa.array([partition[offset]], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "offset", "value"])
            self.offsets[router] += 1

    def _serve(
        self,
        config: JobConfig,
        shuffle: Shuffle,
        following: Shuffle | None,
        number: int,
        held: threading.Event | None,
    ) -> None:
        """``held``: behind which it is, for a while, until it comes to its rows."""
        results = tasks.slot(config, self._engine.batch_s or math.inf)(self._rows(shuffle[number], held))
        if following is None:
            for given in results:
                of = given["partition"].to_pylist() if "partition" in given.schema.names else [number] * given.num_rows
                for slot, value in zip(of, given["value"], strict=True):
                    self._engine.collect(slot, [value], self._schema)
            return
        rng = random.Random(f"{config.stage} {number} {self._engine.seed}")
        slow_s = self._engine.slow_s[number % len(self._engine.slow_s)]
        sent: queue.Queue[tuple[float, pa.RecordBatch] | None] = queue.Queue()
        way = threading.Thread(target=self._deliver, args=(sent, following), name=f"harness way {number}", daemon=True)
        way.start()
        try:
            for given in results:
                sent.put((time.monotonic() + rng.random() * slow_s, given))
        finally:
            sent.put(None)
            way.join()

    def _deliver(self, sent: "queue.Queue[tuple[float, pa.RecordBatch] | None]", following: Shuffle) -> None:
        """Rows to the next stage, each when it is there."""
        while (each := sent.get()) is not None:
            at, given = each
            time.sleep(max(0.0, at - time.monotonic()))
            for task, value in zip(*given.columns, strict=True):
                self._put(following[task.as_py()], value.as_py())

    def _rows(self, rows: "queue.Queue[bytes | None]", held: threading.Event | None) -> Iterator[pa.RecordBatch]:
        """As Spark's shuffle: a few rows at a time, until the routers have ended."""
        if held:
            held.wait()
            self._over.wait(self._engine.held_s)
        value: bytes | None = b""
        while value is not _END:
            values = []
            while value is not _END and not (values and (rows.empty() or len(values) > 2)):
                try:
                    value = rows.get(timeout=0.05)
                except queue.Empty:
                    self._check()
                    continue
                if value is not _END:
                    values.append(value)
            if values:
                yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])

    def _put(self, rows: "queue.Queue[bytes | None]", value: bytes | None) -> None:
        while not self._over.is_set():
            try:
                rows.put(value, timeout=0.05)
                return
            except queue.Full:
                pass

    def _check(self) -> None:
        if self._over.is_set():
            raise Killed


@dataclass
class _Context:
    """As much of Spark's ``TaskContext`` as a task may look at."""

    partition: int
    batch: int

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 1000 * self.batch + self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return {"streaming.sql.batchId": str(self.batch)}.get(name)


def _kill(thread: threading.Thread) -> None:
    """As Spark kills a Python worker: wherever it is. Only a thread that runs Python can be reached."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
