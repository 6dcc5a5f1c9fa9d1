"""What a pod has used, as its files say, and that a slot or a router tells it as long as it works."""

import threading

import psutil
import pytest

from keyshift.model.errors import ServiceUnavailable
from keyshift.services import limits
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.worker import used as used_module
from keyshift.worker.used import POD_ADDRESS, tells_used, used

NETWORK = """\
Inter-|   Receive                     |  Transmit
 face |bytes packets errs and so on   |bytes packets errs and so on
    lo: 99999999 800 0 0 0 0 0 0 99999999 800 0 0 0 0 0 0
  eth0: 5000     40  0 0 0 0 0 0 7000     50  0 0 0 0 0 0
  eth1:100 4 0 0 0 0 0 0 200 5 0 0 0 0 0 0
"""


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """What a pod finds in its files."""
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 300000\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(NETWORK)


def test_files_that_can_be_dropped_are_no_memory_in_use_and_the_loopback_is_no_network(pod):
    found = used("10.0.0.7")
    assert (found.host, found.cpu_s, found.memory_bytes) == ("10.0.0.7", 2.5, 700_000)
    assert (found.received_bytes, found.sent_bytes) == (5100, 7200) and found.at_us > 10**15


def test_it_is_told_until_a_batch_is_over_whatever_becomes_of_one_time(pod, monkeypatch):
    monkeypatch.setenv(POD_ADDRESS, "10.0.0.7")
    monkeypatch.setattr(used_module, "TOLD_S", 0.01)
    memory, away = Memory(), [True]
    coordination, plain = MemoryCoordination(memory, "/job"), MemoryCoordination.publish

    def publish(self, node, value):
        if away:
            away.pop()
            raise ServiceUnavailable("ZooKeeper is away")
        plain(self, node, value)

    coordination.begin()
    monkeypatch.setattr(MemoryCoordination, "publish", publish)
    closed = threading.Event()
    thread = threading.Thread(target=tells_used(coordination, "slot-3", closed), daemon=True)
    thread.start()
    assert wait_until(lambda: coordination.read_below(nodes.USED), 60)
    assert coordination.read_below(nodes.USED)["slot-3"].memory_bytes == 700_000 and not away
    closed.set()
    thread.join(60)
    assert not thread.is_alive()


def test_where_there_are_no_such_files_or_no_pod_nothing_is_told(tmp_path, monkeypatch):
    coordination = MemoryCoordination(Memory(), "/job")
    assert tells_used(coordination, "slot-3", threading.Event()) is None
    monkeypatch.setenv(POD_ADDRESS, "10.0.0.7")
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    tells_used(coordination, "slot-3", threading.Event())()
