"""A container has what its control groups allow, of either version, where that is less than its machine has."""

from types import SimpleNamespace

import pytest

from keyshift.place.needs import Resources
from keyshift.results.manifest import describe_machine
from keyshift.services import limits
from keyshift.services.limits import UsableMemory, allowed, memory, processors

MIB, NO_LIMIT = 1 << 20, 9223372036854771712
VERSION_2 = {
    "memory.max": 400 * MIB,
    "memory.current": 300 * MIB,
    "memory.stat": f"anon 1\ninactive_file {30 * MIB}\nactive_file {20 * MIB}",
}
VERSION_1 = {
    "memory/memory.limit_in_bytes": 400 * MIB,
    "memory/memory.usage_in_bytes": 300 * MIB,
    "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}\ntotal_active_file {20 * MIB}",
}
SHARE_1 = {"cpu/cpu.cfs_quota_us": 350_000, "cpu/cpu.cfs_period_us": 100_000}


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Makes a folder of control groups on a machine of 8 processors and 1000 MiB, of which 200 are free."""
    machine = SimpleNamespace(total=1000 * MIB, available=200 * MIB)
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)

    def make(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"{content}\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "found", "exactly"),
    [
        ({}, 8, 8.0),
        ({"cpu.max": "max 100000"}, 8, 8.0),
        ({"cpu.max": "350000 100000"}, 3, 3.5),
        ({"cpu.max": "50000 100000"}, 1, 0.5),
        ({"cpu.max": "6400000 100000"}, 8, 8.0),
        (SHARE_1, 3, 3.5),
        (SHARE_1 | {"cpu/cpu.cfs_quota_us": -1}, 8, 8.0),
    ],
)
def test_processors_are_whole_ones_that_it_may_have_and_at_least_one_and_their_time_is_exact(
    groups, files, found, exactly
):
    assert (processors(groups(files)), allowed(groups(files))) == (found, exactly)


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 1000, 200),
        (VERSION_2, 400, 150),
        (VERSION_2 | {"memory.max": "max"}, 1000, 200),
        (VERSION_2 | {"memory.max": 2000 * MIB}, 1000, 200),
        (VERSION_2 | {"memory.max": 240 * MIB}, 240, 0),
        (VERSION_1, 400, 150),
        (VERSION_1 | {"memory/memory.limit_in_bytes": NO_LIMIT}, 1000, 200),
    ],
)
def test_memory_is_what_it_may_have_and_files_that_can_be_dropped_are_free(groups, files, total, free):
    assert memory(groups(files)) == UsableMemory(total * MIB, free * MIB)


def test_manifests_and_whoever_asks_whether_a_run_fits_go_by_it(monkeypatch):
    monkeypatch.setattr(limits, "processors", lambda: 3)
    monkeypatch.setattr(limits, "memory", lambda: UsableMemory(400 * MIB, 150 * MIB))
    assert (describe_machine().cpus, describe_machine().memory_mib) == (3, 400)
    assert Resources.here() == (3, 400 * MIB, 150 * MIB)
