"""CPU, memory and network of the job's processes, of what is around it, and of the machine, once a second."""

import contextlib
import os
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import psutil

from keyshift.analysis.machine import ALL, BUSY, DISTURBED, DISTURBED_FROM, MACHINE, OTHERS, SAMPLED_S, STOLEN
from keyshift.clock import SECOND_US
from keyshift.lab.machine.network import Bytes, Connections
from keyshift.model.records import Instance, PodUsed, Sample
from keyshift.services import limits, processes

AROUND = "harness_cores"  # metric: processors at work for what is measured with, and not for the job
SENT, RECEIVED = "sent_mib", "received_mib"  # metrics: over the network, since the first sample
NETWORK_EVERY = 2  # samples: a look at all connections takes 10 ms
CLOCK_SET_S = 0.05  # more than a clock is adjusted by in a second while it runs
WAITING = "run_queue"  # metric: processes that run or could
SHOWN = 5  # times that the clock was set, which a note names
MOST_OTHERS = 0.25  # share of the processors: what is measured while others have more is not kept
SERVERS = {"redis-server": "Redis"}  # a run may start one for its state: below its process, and not of the job
T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds of CPU: what a process itself has taken, and what its children had when they had ended."""

    cpu_s: float
    ended: float
    parent: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Spent":
        """Measure what a process has spent by now. Raises psutil.Error if it is gone."""
        times = process.cpu_times()
        ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return cls(times.user + times.system, ended, process.ppid())


class Spending:
    """What processes spend between two looks at them, each second of it once. Of one that has ended in between, the
    last of it is its parent's. ``first``: the look before all.
    """

    def __init__(self, first: Mapping[int, Spent]) -> None:
        self._last = first
        self._ahead: dict[int, float] = {}  # by parent, what was known already of children that have ended

    def since(self, now: Mapping[int, Spent], begun: Container[int]) -> Iterator[tuple[int, float]]:
        """Give what was spent since the last look, by process. ``begun``: those whose whole life counts if they were
        not there at the last look; others may be old.
        """
        gone = self._last.keys() - now.keys()
        for pid in gone:
            known, parent = self._last[pid], self._last[pid].parent
            while parent in gone:  # whose own parent hears of both
                parent = self._last[parent].parent
            known_s = known.cpu_s + known.ended + self._ahead.pop(pid, 0.0)
            self._ahead[parent] = self._ahead.get(parent, 0.0) + known_s
        ahead, self._ahead = self._ahead, {}
        for pid, spent in now.items():
            before = self._last.get(pid, Spent(0.0, 0.0, 0) if pid in begun else spent)
            ended = spent.ended - before.ended - ahead.get(pid, 0.0)
            if ended < 0:  # the parent was looked at before they had ended
                self._ahead[pid] = -ended
            yield pid, max(0.0, spent.cpu_s - before.cpu_s) + max(0.0, ended)
        self._last = now


class Sampler:
    """Watches the processes below this one: Spark's JVMs and Python workers. A context manager.

    ``around``: the processes that are not the job's, here or elsewhere, with their names; what is below one of them
    goes with it, but for this process. Of them only CPU is sampled. What else is ``processes.apart`` counts as others.
    Memory is resident memory: pages that forked workers share are counted in each of them. ``pods``: what executors
    that are pods have used, by now, behind their replica; several may speak of one. None: there are no such executors.
    ``parts``: of a job that has some, such as replicas, by the process below which all processes of the part are.
    """

    def __init__(
        self,
        around: Callable[[], Mapping[int, str]],
        pods: Callable[[], Iterable[tuple[int | None, PodUsed]]] | None = None,
        parts: Callable[[], Mapping[int, Instance]] = dict,
    ) -> None:
        self._around, self._pods, self._parts = around, pods, parts
        self._connections, self._looks = Connections(), 0
        self._first: dict[str, PodUsed] = {}  # by pod, in the order in which they were seen first
        self._used: dict[str, PodUsed] = {}  # likewise, what they told last
        self._stop = threading.Event()
        self._clock_set: list[float] = []  # seconds by which somebody has set the clock, each time
        self._cpu = Spending({})
        # When the machine was looked at last, and seconds of its processors by then, by what they did.
        self._machine: tuple[float, dict[str, float]] = (0.0, {})
        # Times and values, by metric and instance: eight bytes each, as a job may last for days.
        self._series: dict[tuple[str, Instance], tuple[array[float], array[float]]] = {}
        self._thread = threading.Thread(target=self._run, name="keyshift-sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rows(self) -> list[Sample]:
        """All samples, in the order of their times; while samples are taken, those that are complete."""
        rows = [
            Sample(at, metric, instance, value)
            for (metric, instance), (times, values) in [*self._series.items()]
            for at, value in zip(times, values, strict=False)
        ]
        return sorted(rows, key=lambda row: row.at_s)

    @property
    def notes(self) -> list[str]:
        """What has made measurements wrong."""
        if not self._clock_set:
            return []
        by = ", ".join(f"{each:+.2f}" for each in self._clock_set[:SHOWN]) + (", …" * (len(self._clock_set) > SHOWN))
        return [f"the clock was set by {by} s (or the machine slept): times measured across that are wrong by as much"]

    def _run(self) -> None:
        before, last = clocks()
        self._machine = (time.monotonic(), processors_s())
        self._cpu = Spending(dict(_spent(self._around())))
        while not self._stop.wait(SAMPLED_S):
            now, moment = clocks()
            if abs(set_by := (now - before) - (moment - last)) > CLOCK_SET_S:
                self._clock_set.append(set_by)
            ours = list(self._processes(moment - last))
            at_work = sum(value for metric, _, value in ours if metric in ("cpu_cores", AROUND))
            for metric, instance, value in (*ours, *self._of_machine(at_work), *self._of_pods()):
                moments, values = self._series.setdefault((metric, instance), (array("d"), array("d")))
                moments.append(now)
                values.append(value)
            before, last = now, moment

    def _processes(self, passed_s: float) -> Iterator[tuple[str, Instance, float]]:
        around, parts, of_job = dict(self._around()), dict(self._parts()), dict[int, Instance]()
        memory: dict[Instance, float] = defaultdict(float)
        cpu: dict[tuple[str, Instance], float] = defaultdict(float)
        below = {process.pid: process for process in processes.all_below()}
        apart = _apart(around)
        seen, spent = dict[int, tuple[str, float]](), dict[int, Spent]()
        for pid in sorted({*below, *around}):  # parents first: a child that ends meanwhile is in the next look's
            with contextlib.suppress(psutil.Error):
                process = below.get(pid) or psutil.Process(pid)
                with process.oneshot():  # what the system says of it is read once
                    seen[pid] = process.name(), process.memory_info().rss / 2**20
                    spent[pid] = Spent.of(process)
        kinds, others = dict[int, tuple[str, Instance]](), {pid: around[pid] for pid in around.keys() - {os.getpid()}}
        for pid in (pid for pid in spent if pid not in apart):
            program, mib = seen[pid]
            beside = around.get(pid) or SERVERS.get(program) or _part(pid, spent, others)
            if beside:
                kinds[pid] = AROUND, Instance(beside)
                continue
            kind = Instance("spark_jvm" if program == "java" else "python_workers")
            of_job[pid] = instance = _part(pid, spent, parts) or kind
            memory[instance] += mib
            kinds[pid] = "cpu_cores", instance
        for pid, seconds in self._cpu.since(spent, below):
            if pid in kinds:  # else it is apart: when it ends, this process hears of all that it has spent
                cpu[kinds[pid]] += seconds
        for instance, mib in memory.items():
            yield "rss_mib", instance, mib
        for (metric, instance), seconds in cpu.items():
            yield metric, instance, seconds / passed_s
        self._looks += 1
        if self._looks % NETWORK_EVERY == 1:
            self._connections.look(of_job)
            for instance, total in self._connections.total.items():
                yield from _over_network(instance, total)

    def _of_pods(self) -> Iterator[tuple[str, Instance, float]]:
        newest, replicas = dict[str, PodUsed](), dict[str, int | None]()
        for replica, told in self._pods() if self._pods else ():
            replicas[told.host] = replica
            newest[told.host] = max(newest.get(told.host, told), told, key=lambda each: each.at_us)
        for host, now in newest.items():
            before, first = self._used.setdefault(host, now), self._first.setdefault(host, now)
            if (passed_s := (now.at_us - before.at_us) / SECOND_US) <= 0:
                continue
            self._used[host], pod = now, Instance(f"pod {[*self._first].index(host) + 1}", replicas[host])
            yield "cpu_cores", pod, (now.cpu_s - before.cpu_s) / passed_s
            yield "rss_mib", pod, now.memory_bytes / 2**20
            total = Bytes(now.sent_bytes - first.sent_bytes, now.received_bytes - first.received_bytes)
            yield from _over_network(pod, total)

    def _of_machine(self, ours: float) -> Iterator[tuple[str, Instance, float]]:
        """Sample the machine, by a clock of its own: when it is full, the look at all processes may take long."""
        (last, before), self._machine = self._machine, (time.monotonic(), processors_s())
        now, spent = self._machine
        cores = {kind: (seconds - before[kind]) / (now - last) for kind, seconds in spent.items()}
        if not sees_others():
            allowed = limits.allowed()
            cores = {ALL: allowed, BUSY: min(ours, allowed)}
        elif self._pods is None:  # else some of them may be on this machine, and nobody knows which
            cores[OTHERS] = max(0.0, cores[BUSY] - ours)
            much = cores[STOLEN] + cores[OTHERS] >= DISTURBED_FROM * cores[ALL]
            yield DISTURBED, Instance("machine"), float(much)
        for kind, value in cores.items():
            yield MACHINE, Instance(kind), value
        with contextlib.suppress(OSError, StopIteration), open("/proc/stat") as file:  # Linux alone tells
            running = next(line.split()[1] for line in file if line.startswith("procs_running"))
            yield WAITING, Instance("machine"), float(running)


def sees_others() -> bool:
    """Whether what the processors do tells who else takes of our time. In a container with a quota it does not: it sees
    what all processors of its machine do, whose time is not its own.
    """
    return limits.allowed() >= limits.visible()


def clocks() -> tuple[float, float]:
    """Seconds since the epoch, and by a clock that nobody sets, of one moment: nothing else has run between them."""
    while True:
        moment = time.monotonic()
        now = time.time()
        if time.monotonic() - moment < CLOCK_SET_S / 10:
            return now, moment


def _part(pid: int, spent: Mapping[int, Spent], parts: Mapping[int, T]) -> T | None:
    """The part that the process belongs to."""
    while pid not in parts and pid in spent:
        pid = spent[pid].parent
    return parts.get(pid)


def _over_network(instance: Instance, total: Bytes) -> Iterator[tuple[str, Instance, float]]:
    yield SENT, instance, total.sent / 2**20
    yield RECEIVED, instance, total.received / 2**20


def spent_s(around: Collection[int]) -> dict[int, float]:
    """Seconds of CPU so far of the processes below this one and of those ``around`` that are not gone, or apart."""
    spent, apart = dict(_spent(around)), _apart(around)
    return {pid: each.cpu_s for pid, each in spent.items() if pid not in apart}


def _apart(around: Collection[int]) -> set[int]:
    """Processes below this one that are others', but not the services that a background job has started for all."""
    return {process.pid for process in processes.apart()} - {*around}


def _spent(around: Iterable[int]) -> Iterator[tuple[int, Spent]]:
    below = {process.pid: process for process in processes.all_below()}
    for pid in {*below, *around}:
        with contextlib.suppress(psutil.Error):
            yield pid, Spent.of(below.get(pid) or psutil.Process(pid))


def processors_s() -> dict[str, float]:
    """Seconds of the processors that this process may use, since the machine began."""
    usable = set(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else None
    times = [each for number, each in enumerate(psutil.cpu_times(percpu=True)) if usable is None or number in usable]
    whole = sum(sum(each) - getattr(each, "guest", 0.0) - getattr(each, "guest_nice", 0.0) for each in times)
    stolen = sum(getattr(each, "steal", 0.0) for each in times)
    idle = sum(each.idle + getattr(each, "iowait", 0.0) for each in times)
    return {ALL: whole, BUSY: whole - idle - stolen, STOLEN: stolen}


class Stretch(NamedTuple):
    """Some time: from and to in seconds since the epoch, and CPU seconds, of ours and of others."""

    begin: float
    end: float
    ours_s: float
    others_s: float


class CpuWatch:
    """Measures CPU from its beginning to ``part``. ``around``: see ``Sampler``."""

    def __init__(self, around: Callable[[], Mapping[int, str]]) -> None:
        self._around, self._begin = around, time.time()
        self._ours, self._all = spent_s(around()), processors_s()

    def part(self) -> Stretch:
        """The CPU of all processes of ours that have been there all the time."""
        after, machine = spent_s(self._around()), processors_s()
        ours = sum(max(0.0, seconds - self._ours[pid]) for pid, seconds in after.items() if pid in self._ours)
        busy = sum(machine[kind] - self._all[kind] for kind in ("busy", "stolen"))
        return Stretch(self._begin, time.time(), ours, max(0.0, busy - ours) if sees_others() else 0.0)
