"""Bytes over TCP are counted at the processes that send and receive them."""

import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest

from keyshift.lab.machine.network import Connections
from keyshift.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes by connection")
MIB = 1 << 20
RECEIVES = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while connection.recv(65536):
    pass
"""


@pytest.fixture
def other():
    """A process that receives, and the connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = subprocess.Popen([sys.executable, "-c", RECEIVES, str(server.getsockname()[1])])
        with server.accept()[0] as connection:
            yield process, connection
        process.wait(60)


def test_what_a_process_sends_and_another_one_receives_is_counted_from_the_first_look_on(other):
    process, connection = other
    earlier, connections, names = Connections(), Connections(), {process.pid: "receives", 2**22 + 1: "gone"}
    earlier.look(names)
    connection.sendall(bytes(3 * MIB))
    assert wait_until(lambda: _looked(earlier, names)["receives"] == (0, 3 * MIB), 60, 0.01)
    connections.look(names)
    assert connections.total["receives"] == (0, 0), "it was before"
    connection.sendall(bytes(MIB))
    assert wait_until(lambda: _looked(connections, names)["receives"] == (0, MIB), 60, 0.01)
    assert "gone" not in connections.total


def test_a_connection_that_is_new_counts_whole_and_one_of_nobody_that_was_named_does_not(other):
    _, connection = other
    connections, names = Connections(), {}
    connections.look(names)
    with socket.create_server(("127.0.0.1", 0)) as server:
        later = subprocess.Popen([sys.executable, "-c", RECEIVES, str(server.getsockname()[1])])
        with server.accept()[0] as new:
            new.sendall(bytes(MIB))
            connection.sendall(bytes(MIB))
            assert wait_until(lambda: _looked(connections, {later.pid: "new"}).get("new") == (0, MIB), 60, 0.01)
            assert [*connections.total] == ["new"]
        later.wait(60)
    connections.look({later.pid: "new"})
    assert connections.total == {"new": (0, MIB)}, "it is kept when the connection has ended"


def test_where_the_kernel_does_not_tell_nothing_is_known(monkeypatch):
    monkeypatch.setattr("pyroute2.netlink.diag.DiagSocket", Mock(side_effect=PermissionError("not here")))
    connections = Connections()
    connections.look({1: "init"})
    assert connections.total == {}


def _looked(connections, names):
    connections.look(names)
    return connections.total
