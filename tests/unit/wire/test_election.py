"""Whether ZooKeeper has sessions as short as somebody wants; elections are tried with the real one."""

import contextlib
import socket
import threading

import pytest
from kazoo.protocol.serialization import Connect, int_struct

from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.wire.election import require_session


@contextlib.contextmanager
def answering(least_ms):
    """A server with this shortest session; None: it hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            link, _ = server.accept()
            with link:
                size = int_struct.unpack(link.recv(4))[0]
                asked, _ = Connect.deserialize(_without_zxid(link.recv(size)), 0)
                if least_ms is not None:
                    answer = int_struct.pack(0) + int_struct.pack(max(least_ms, asked.time_out)) + bytes(8)
                    answer += int_struct.pack(16) + bytes(16) + b"\0"
                    link.sendall(int_struct.pack(len(answer)) + answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def _without_zxid(asked):
    """A request has eight bytes more than an answer."""
    return asked[:4] + asked[12:]


def test_one_that_is_too_short_is_refused_and_the_shortest_is_named():
    words = r"^session_ms = 100: ZooKeeper at \S+ has no session below 200 ms.*session_ms to 200"
    with answering(200) as hosts, pytest.raises(BadInput, match=words):
        require_session(hosts, 100)


def test_a_server_that_does_not_answer_is_told_in_a_line():
    with answering(None) as hosts, pytest.raises(ServiceUnavailable, match="has closed the connection"):
        require_session(hosts, 100)
    with pytest.raises(ServiceUnavailable, match=r"ZooKeeper at 127.0.0.1:1: .*refused"):
        require_session("127.0.0.1:1", 100)


def test_of_several_servers_the_first_that_is_there_is_asked():
    with answering(200) as hosts:
        require_session(f"127.0.0.1:1,{hosts}", 200)
    with pytest.raises(ServiceUnavailable, match=r"ZooKeeper at 127.0.0.1:1,127.0.0.1:2: .*refused"):
        require_session("127.0.0.1:1,127.0.0.1:2", 200)
