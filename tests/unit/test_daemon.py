import socket

import pytest

from keyshift.executor import daemon


@pytest.fixture
def served(monkeypatch):
    """The sockets that a worker was begun with."""
    begun: list[socket.socket] = []
    monkeypatch.setattr(daemon, "worker", lambda sock, authenticated: begun.append(sock) or 7)
    return begun


def test_small_writes_of_a_worker_on_tcp_do_not_wait(served):
    with socket.socket() as tcp:
        assert daemon.prompt_worker(tcp, True) == 7
        assert served == [tcp]
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_worker_on_a_unix_socket_begins_as_it_would(served):
    with socket.socket(socket.AF_UNIX) as unix:
        assert daemon.prompt_worker(unix, False) == 7
        assert served == [unix]


def test_a_folder_in_which_no_socket_can_be_made_is_named_in_the_log(monkeypatch):
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", "/no/such/folder")
    with pytest.raises(SystemExit, match="/no/such/folder"):
        daemon.require_folder()
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "false")
    daemon.require_folder()
