import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from statistics import median

import psutil
import pytest

from keyshift.lab.machine import sampler as module
from keyshift.lab.machine.sampler import CpuWatch, Sampler, Spending, Spent, spent_s
from keyshift.model.records import Instance, PodUsed
from keyshift.services import limits, processes
from keyshift.waiting import wait_until


@pytest.fixture
def busy():
    """A process that does nothing but compute."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def stranger():
    """Likewise, and of nobody below this process: its parent has ended."""
    code = f"{sys.executable} -c 'while True: pass' >/dev/null & echo $!"
    pid = int(subprocess.run(["sh", "-c", code], stdout=subprocess.PIPE, check=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def often(monkeypatch):
    """Samples are short."""
    monkeypatch.setattr(module, "SAMPLED_S", 0.2)


def values(rows, metric, instance):
    return [value for _, name, of, value in rows if (name, str(of)) == (metric, instance)]


def each_look(rows):
    """What was seen at each look, by metric and instance, and how many processors were at work for us."""
    found = {}
    for at, metric, instance, value in rows:
        found.setdefault(at, {}).setdefault(metric, {})[str(instance)] = value
    for sample in found.values():
        yield sample, sum(sum(sample.get(metric, {}).values()) for metric in ("cpu_cores", "harness_cores"))


def await_look(sampler):
    """Wait until a whole look has been taken."""
    seen = len(values(sampler.rows, "machine_cores", "all"))
    assert wait_until(lambda: len(values(sampler.rows, "machine_cores", "all")) > seen + 1, 60.0)


def test_processes_of_the_job_what_is_around_it_and_the_machine_are_told_apart(busy):
    around = {os.getpid(): "driver", 2**22 + 1: "gone"}
    with Sampler(lambda: around) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "cpu_cores", "python_workers")) > 0, 60.0)
        around[busy] = "generator"
        assert wait_until(lambda: sum(values(sampler.rows, "harness_cores", "generator")) > 0, 60.0)
    rows = sampler.rows
    assert max(values(rows, "rss_mib", "python_workers")) > 1
    assert values(rows, "harness_cores", "driver")
    assert not values(rows, "rss_mib", "generator"), "memory is that of the job"
    assert not values(rows, "harness_cores", "gone")
    for there, at_work, stolen in zip(
        *(values(rows, "machine_cores", kind) for kind in ("all", "busy", "stolen")), strict=True
    ):
        assert 0 < at_work + stolen <= there * 1.01
    # The median: a full machine may stop a process between its look at the clock and that at the processors.
    assert median(values(rows, "machine_cores", "all")) <= 1.2 * psutil.cpu_count()
    assert min(values(rows, "run_queue", "machine")) >= 1


@pytest.mark.usefixtures("often")
def test_a_server_for_state_that_the_run_has_started_is_none_of_its_workers(tmp_path):
    program = tmp_path / "redis-server"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "while True: pass"]) as server:
        try:
            with Sampler(dict) as sampler:
                assert wait_until(lambda: sum(values(sampler.rows, "harness_cores", "Redis")) > 0, 60.0)
        finally:
            server.kill()
    assert not values(sampler.rows, "rss_mib", "Redis") and not values(sampler.rows, "cpu_cores", "Redis")


@pytest.mark.usefixtures("often")
def test_what_is_not_ours_is_others_and_seconds_in_which_they_have_much_are_marked(busy, stranger, monkeypatch):
    monkeypatch.setattr(limits, "allowed", limits.visible)  # the tests may run in a container
    with Sampler(lambda: {busy: "generator"}) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "disturbed", "machine")) > 0, 60.0)
    assert stranger not in {process.pid for process in psutil.Process().children(recursive=True)}
    for sample, ours in each_look(sampler.rows):
        machine = sample["machine_cores"]
        assert machine["others"] == pytest.approx(max(0.0, machine["busy"] - ours))
        much = machine["others"] + machine["stolen"] >= 0.1 * machine["all"]
        assert sample["disturbed"] == {"machine": float(much)}


def test_in_a_container_with_a_quota_processors_are_of_that_and_nobody_knows_of_others(stranger, monkeypatch):
    monkeypatch.setattr(limits, "allowed", lambda: 0.1)
    monkeypatch.setattr(module, "SAMPLED_S", 0.05)
    watch, around = CpuWatch(dict), {}
    with Sampler(lambda: around) as sampler:
        assert wait_until(lambda: values(sampler.rows, "machine_cores", "busy"), 60.0)
        around[stranger] = "generator"
        assert wait_until(lambda: 0.1 in values(sampler.rows, "machine_cores", "busy"), 60.0)
    for sample, ours in each_look(sampler.rows):
        assert sample["machine_cores"] == pytest.approx({"all": 0.1, "busy": min(ours, 0.1)})
        assert "disturbed" not in sample
    assert watch.part().others_s == 0.0


def test_with_executors_in_pods_nobody_knows_of_others_as_some_may_be_on_this_machine(monkeypatch):
    monkeypatch.setattr(limits, "allowed", limits.visible)
    monkeypatch.setattr(module, "SAMPLED_S", 0.05)
    with Sampler(dict, tuple) as sampler:  # none of them has told anything yet
        assert wait_until(lambda: values(sampler.rows, "run_queue", "machine"), 60.0)
    for sample, _ in each_look(sampler.rows):
        assert sample["machine_cores"].keys() == {"all", "busy", "stolen"}
        assert "disturbed" not in sample


@pytest.mark.usefixtures("often")
def test_a_process_that_has_just_begun_is_the_jobs_from_its_first_moment():
    code = "import time\nwhile time.process_time() < 0.3: pass\ntime.sleep(1000)"
    with Sampler(dict) as sampler:
        assert wait_until(lambda: bool(sampler.rows), 60.0)
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            try:
                assert wait_until(lambda: spent_s([]).get(process.pid, 0.0) > 0.2, 60.0)
                await_look(sampler)
                spent = spent_s([])[process.pid]
            finally:
                process.kill()
    assert of_the_job(sampler.rows) == pytest.approx(spent, abs=0.05)


def burning(seconds):
    return f"import time\nwhile time.process_time() < {seconds}: pass"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("seconds", "children"), [(0.05, 12), (0.6, 1)])
def test_a_process_that_ends_between_two_looks_is_its_parents_and_none_counts_twice(seconds, children):
    """As the commands that Spark starts for its checkpoints."""
    start = "import subprocess, sys, time\n"
    each = f"subprocess.run([sys.executable, '-c', {burning(seconds)!r}])\n"
    code = start + f"for _ in range({children}): {each}" + "print('over', flush=True)\ntime.sleep(1000)"
    with Sampler(dict) as sampler:
        assert wait_until(lambda: bool(sampler.rows), 60.0)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout.readline() == b"over\n"
                times = psutil.Process(process.pid).cpu_times()
                spent = sum(times[:4])
                await_look(sampler)
            finally:
                process.kill()
    assert spent > 0.9 * seconds * children
    assert of_the_job(sampler.rows) == pytest.approx(spent, abs=0.1)


@pytest.mark.usefixtures("often")
def test_a_clock_that_is_set_makes_no_negative_cpu_and_is_noted(busy, monkeypatch):
    with Sampler(dict) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "cpu_cores", "python_workers")) > 0, 60.0)
        assert sampler.notes == []
        set_by, right = -2.0, time.time
        monkeypatch.setattr(time, "time", lambda: right() + set_by)
        seen = len(sampler.rows)
        assert wait_until(lambda: len(sampler.rows) > seen + 20, 60.0)
        monkeypatch.setattr(time, "time", right)
        assert wait_until(lambda: len(values(sampler.rows, "cpu_cores", "python_workers")) > 4, 60.0)
    rows = sampler.rows
    assert min(value for _, metric, _, value in rows if metric == "cpu_cores") >= 0
    assert 0 < max(values(rows, "cpu_cores", "python_workers")) < 2 * psutil.cpu_count()
    [note] = sampler.notes
    told = re.fullmatch(r"the clock was set by (\S+), (\S+) s \(or .*", note)
    assert told and [*map(float, told.groups())] == pytest.approx([-2.0, 2.0], abs=0.02)


def test_what_was_known_of_a_child_is_not_told_again_whenever_its_parent_hears_of_its_end():
    looks = Spending({1: Spent(1.0, 0.0, 0), 2: Spent(5.0, 0.5, 1)})
    assert dict(looks.since({1: Spent(1.5, 0.0, 0)}, [1])) == {1: 0.5}, "the child has ended behind the parent's look"
    assert dict(looks.since({1: Spent(1.5, 6.0, 0)}, [1])) == {1: 0.5}, "0.5 s that nobody had seen"
    assert dict(looks.since({1: Spent(1.5, 6.0, 0), 3: Spent(2.0, 1.0, 1)}, [1, 3])) == {1: 0.0, 3: 3.0}
    assert dict(looks.since({4: Spent(9.0, 9.0, 0)}, [])) == {4: 0.0}, "it is old, and was not looked at"


def test_what_was_known_of_a_child_that_ends_with_its_parent_is_not_told_again_either():
    first = {1: Spent(0.0, 0.0, 0), 2: Spent(5.0, 0.0, 1), 3: Spent(100.0, 0.0, 2)}
    assert dict(Spending(first).since({1: Spent(0.0, 105.0, 0)}, [])) == {1: 0.0}
    looks = Spending(first)
    two = Spent(5.0, 0.0, 1)
    assert dict(looks.since({1: first[1], 2: two}, [])) == {1: 0.0, 2: 0.0}, "behind the look at its parent"
    assert dict(looks.since({1: Spent(0.0, 106.0, 0)}, [])) == {1: 1.0}, "1 s that nobody had seen"


def of_the_job(rows):
    """Seconds of CPU of all Python processes. Other tests may have left a Spark below this process, which is idle."""
    return seconds_of(rows, "cpu_cores", Instance("python_workers"))


def seconds_of(rows, *what):
    times = sorted({at for at, *_ in rows})
    passed = {after: after - before for before, after in pairwise(times)}
    return sum(value * passed.get(at, 0.0) for at, *of, value in rows if (*of,) == what)


def test_of_pods_what_they_used_since_they_told_last_is_sampled_once_whoever_of_their_slots_tells_it(monkeypatch):
    monkeypatch.setattr(module, "SAMPLED_S", 0.01)
    other = None, PodUsed("10.0.0.1", 1_000_000, 1.0, 9 << 20, 0, 0)
    first = None, PodUsed("10.0.0.2", 1_000_000, 5.0, 3 << 20, 1 << 20, 0)  # since when is not known
    second = None, PodUsed("10.0.0.2", 3_000_000, 6.0, 4 << 20, 3 << 20, 6 << 20)
    late = None, PodUsed("10.0.0.2", 2_000_000, 5.5, 4 << 20, 0, 0)  # as another slot of it has told
    third = None, PodUsed("10.0.0.2", 5_000_000, 6.0, 4 << 20, 4 << 20, 6 << 20)
    of_replica = 1, PodUsed("10.0.0.1", 3_000_000, 2.0, 9 << 20, 0, 0)
    told = iter([[first, other], *[[second, other, late]] * 2, [third], [of_replica]])
    with Sampler(dict, lambda: next(told, ())) as sampler:
        assert wait_until(lambda: values(sampler.rows, "received_mib", "replica 1, pod 2"), 60.0, 0.01)
    pods, metrics = ("pod 1", "pod 2", "replica 1, pod 2"), ("cpu_cores", "rss_mib", "sent_mib", "received_mib")
    assert [[values(sampler.rows, metric, pod) for metric in metrics] for pod in pods] == [
        [[0.5, 0.0], [4.0, 4.0], [2.0, 3.0], [6.0, 6.0]],
        [[], [], [], []],
        [[0.5], [9.0], [0.0], [0.0]],
    ], "what was sent counts since a pod was seen first"


@pytest.fixture
def with_child():
    """A process and one that it has started, which sends and receives nothing."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert wait_until(lambda: psutil.Process(process.pid).children(), 60.0)
    yield process.pid
    for each in (*psutil.Process(process.pid).children(), psutil.Process(process.pid)):
        each.kill()
    process.wait()


def test_processes_below_that_of_a_part_are_of_the_part(with_child, busy):
    with Sampler(dict, parts=lambda: {with_child: Instance(replica=1)}) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "cpu_cores", "replica 1")) > 0, 60.0)
    rows = sampler.rows
    assert max(values(rows, "rss_mib", "replica 1")) > 1
    assert sum(values(rows, "cpu_cores", "python_workers")) > 0, "those of no part are told as before"


def test_what_is_below_a_process_around_the_job_is_not_the_jobs_either(with_child, busy):
    with Sampler(lambda: {os.getpid(): "driver", with_child: "idle Spark"}) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "harness_cores", "idle Spark")) > 0.2, 60.0)
    assert sum(values(sampler.rows, "cpu_cores", "python_workers")) > 0, "what is below the driver alone is the job's"


@pytest.mark.usefixtures("often")
def test_what_is_apart_is_of_others_also_when_it_ends_and_this_process_hears_how_much_it_has_spent():
    """As a job in the background that a notebook's kernel has started before its runs."""
    with Sampler(lambda: {os.getpid(): "driver"}) as sampler:
        assert wait_until(lambda: bool(sampler.rows), 60.0)
        with subprocess.Popen([sys.executable, "-c", burning(2.0)]) as process:
            processes.keep_apart(process.pid)
        await_look(sampler)
    assert of_the_job(sampler.rows) < 1.0
    assert seconds_of(sampler.rows, "harness_cores", Instance("driver")) < 1.5, "but what came behind the last look"


@pytest.mark.usefixtures("often")
def test_a_service_that_was_started_by_what_is_apart_is_around_the_job_all_the_same(with_child):
    processes.keep_apart(with_child)
    [service] = psutil.Process(with_child).children()
    assert service.pid in spent_s([service.pid]) and not spent_s([]).keys() & {service.pid, with_child}
    with Sampler(lambda: {service.pid: "kafka"}) as sampler:
        assert wait_until(lambda: sum(values(sampler.rows, "harness_cores", "kafka")) > 0, 60.0)


def test_cpu_is_that_of_children_and_of_those_around_and_what_is_gone_is_left_out(busy, stranger):
    assert wait_until(lambda: min(spent_s([stranger, 2**22 + 1]).get(pid, 0.0) for pid in (busy, stranger)) > 0, 60.0)
    assert stranger not in spent_s([])
