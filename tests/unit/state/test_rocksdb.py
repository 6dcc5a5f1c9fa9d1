"""What only the store in RocksDB has: files that end with their process, memory with bounds, ranges."""

import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from small_state import filled

from keyshift.checks.backend import SCHEMA, exported
from keyshift.model.errors import BadInput, Damaged, ServiceUnavailable
from keyshift.state import backends
from keyshift.state.rocksdb import RocksSettings, open_store, served

HOLD = """
import sys, time
from keyshift.checks.backend import SCHEMA
from keyshift.state.rocksdb import RocksSettings, open_store
store = open_store("job/0/stage/0", SCHEMA, RocksSettings(state_folder=sys.argv[1]))
print("open", flush=True)
time.sleep(100)
"""


def opened(folder, **settings):
    return open_store("job/0/stage/0", SCHEMA, RocksSettings(state_folder=str(folder), **settings))


@pytest.fixture
def store(tmp_path):
    with closing(opened(tmp_path, block_cache_mib=1, state_cache_mib=1)) as store:
        yield store


def databases(folder):
    return list(folder.glob("*/*/db"))


def test_what_a_killed_process_left_goes_when_the_next_store_is_opened_and_what_a_living_one_has_stays(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "open\n"
        assert len(databases(tmp_path)) == 2
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].wait()
        store = opened(tmp_path)
        assert len(databases(tmp_path)) == 2
        store.close()
        assert len(databases(tmp_path)) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_large_arrival_comes_as_files_and_a_state_that_is_not_needed_leaves_no_key(store, tmp_path):
    state, other = filled(store, range(5000), 1000), filled(store, range(-5, 5), unit=1)
    assert list(tmp_path.glob("*/*/db/*.sst"))
    assert sorted(state.keys()) == list(range(5000)) and len(state) == 5000
    del state
    gc.collect()
    store.load([(other, {1})])
    assert len(list(store.table.db.keys())) == 10
    assert sorted(exported(other, 1000)) == list(range(-5, 5))


def test_a_copy_does_not_see_what_is_changed_or_dropped_later(store):
    state = filled(store, range(3000), 1000)
    copy = state.copy()
    state.values[5] = 5, b"new"
    state.delete(7)
    del state
    gc.collect()
    store.load([])
    with ThreadPoolExecutor(1) as pool:  # snapshots are written by other threads
        found = pool.submit(exported, copy, 1 << 20).result()
    assert found == {key: (key, bytes(1000)) for key in range(3000)}
    assert copy.take([7, 9999]) == [(7, (7, bytes(1000)))]


READS = {
    "export": lambda state: exported(state, 1 << 20),
    "keys": lambda state: state.keys(),
    "a copy": lambda state: exported(state.copy(), 1 << 20),
    "keys of a copy": lambda state: [state.copy().take([key]) for key in range(0, 6000, 10)],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_cannot_be_read_from_disk_is_not_taken_for_the_end_of_a_state(store, tmp_path, read):
    state = filled(store, range(6000), 1000)
    file = min(tmp_path.glob("*/*/db/*.sst"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = b"x" * 64
    file.write_bytes(data)
    with pytest.raises(Damaged, match=f"the database in {file.parent.parent} cannot be read: Corruption: "):
        read(state)


def test_values_in_python_have_a_bound(store):
    state = filled(store, range(20_000), 1000)
    for begin in range(0, 20_000, 50):
        store.load([(state, range(begin, begin + 50))])
        for key in range(begin, begin + 50):
            state.values[key] = key + 1, state.values[key][1]
    assert (len(state.values) + len(state.values.old)) * 1000 < 1.2 * 2**20
    assert state.take([0, 19_999]) == [(0, (1, bytes(1000))), (19_999, (20_000, bytes(1000)))]


def test_what_workers_leave_in_a_folder_of_the_users_goes_with_the_run_and_nothing_else_in_it(tmp_path):
    """Workers end without closing, some while the run tidies up."""
    (tmp_path / "other").write_text("data")
    with served(RocksSettings(state_folder=str(tmp_path)), "job", Path("/work")) as settings:
        store, beside = opened(settings.state_folder), opened(tmp_path)
        state = filled(store, range(10))
        store.load([(state, {1})])
        assert len(list(tmp_path.rglob("db"))) == 2
        opened(tmp_path).close()
        assert len(list(tmp_path.rglob("db"))) == 2, "another run removes nothing of one that is under way"
    assert len(databases(tmp_path)) == len(list(tmp_path.rglob("db"))) == 1, "that of the other run"
    store.close()
    beside.close()
    assert (tmp_path / "other").read_text() == "data"
    assert not list(tmp_path.rglob("db"))


def test_what_a_run_leaves_whose_driver_is_killed_goes_with_the_next_one(tmp_path):
    hold = f"""
import os
from pathlib import Path
from keyshift.state.rocksdb import RocksSettings, open_store, served
from keyshift.checks.backend import SCHEMA
with served(RocksSettings(state_folder={str(tmp_path)!r}), "job", Path("/work")) as settings:
    store = open_store("job/0/stage/0", SCHEMA, settings)
    os._exit(1)
"""
    subprocess.run([sys.executable, "-c", hold], check=False)
    assert len(list(tmp_path.rglob("db"))) == 1
    with served(RocksSettings(state_folder=str(tmp_path)), "job", Path("/work")):
        assert not list(tmp_path.rglob("db"))


def test_the_folder_is_as_it_was_given_or_that_of_the_run_and_one_that_cannot_be_written_to_is_named(tmp_path):
    for given, folder, used in (("", tmp_path, str(tmp_path)), ("there", None, "there"), ("", None, "")):
        with served(RocksSettings(state_folder=given), "job", folder) as settings:
            assert settings.state_folder == used
    with pytest.raises(ServiceUnavailable, match=r"state_folder = '/proc/nowhere': .*; name a folder that can be"):
        opened("/proc/nowhere")


def test_a_folder_that_cannot_be_used_is_refused_before_a_run_if_slots_are_here(tmp_path, monkeypatch):
    check = backends.get("rocksdb").require
    (tmp_path / "file").write_text("")
    for bad in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "/proc/nowhere"):
        with pytest.raises(BadInput, match=rf"^state_folder = '{bad}': .*; name a folder that can be written to$"):
            check(RocksSettings(state_folder=bad), True)
        check(RocksSettings(state_folder=bad), False)
    good = RocksSettings(state_folder=str(tmp_path / "made"))
    check(good, True)
    check(RocksSettings(), True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(BadInput, match=r"made': Permission denied; name a folder that can be written to$"):
        check(good, True)


@pytest.mark.parametrize("made", ["by everybody", "by a group", "as a link", "as a file", "by another user"])
def test_in_a_shared_folder_nothing_is_used_that_somebody_else_could_have_made(tmp_path, made, monkeypatch):
    parent = tmp_path / f"keyshift-state-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if made == "as a link":
        parent.symlink_to(elsewhere)
    elif made == "as a file":
        parent.write_text("")
    else:
        parent.mkdir()
        parent.chmod({"by everybody": 0o777, "by a group": 0o770}.get(made, 0o700))
    if made == "by another user":
        other = os.getuid() + 1
        parent.rename(tmp_path / f"keyshift-state-{other}")
        monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(ServiceUnavailable, match=r"state_folder = '.*': .*(remove it|File exists)") as error:
        opened(tmp_path)
    assert "\n" not in str(error.value)
    assert not list(elsewhere.iterdir())


def test_a_lock_is_never_taken_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("data")
    parent = tmp_path / f"keyshift-state-{os.getuid()}"
    parent.mkdir(mode=0o700)
    (parent / "in-use").symlink_to(precious)
    with pytest.raises(ServiceUnavailable, match="state_folder = "):
        opened(tmp_path)
    (parent / "in-use").unlink()
    left = parent / "left"
    left.mkdir()
    (left / "in-use").symlink_to(precious)
    opened(tmp_path).close()
    assert precious.read_text() == "data"
    assert not left.exists(), "what is no folder of a store is in nobody's use"
