import contextlib
import io
import socket
import subprocess
import sys

import pyarrow as pa
import pyspark.worker
import pytest

from keyshift.worker import daemon


@pytest.fixture
def served(monkeypatch):
    """The sockets that a worker was begun with."""
    begun: list[socket.socket] = []
    monkeypatch.setattr(daemon, "worker", lambda sock, authenticated: begun.append(sock) or 7)
    monkeypatch.setattr(daemon, "await_takers", lambda within_s: True)
    return begun


def test_a_worker_begins_on_any_socket_and_on_tcp_its_small_writes_do_not_wait(served):
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        assert daemon.prompt_worker(unix, False) == daemon.prompt_worker(tcp, True) == 7
        assert served == [unix, tcp]
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def speaks_to_nobody(sock, authenticated):
    raise BrokenPipeError


@pytest.mark.parametrize(("worker", "stays"), [(lambda *_: 0, 0), (lambda *_: -1, 1), (speaks_to_nobody, 1)])
def test_a_worker_that_spark_has_left_stays_for_whoever_fetches_state_from_it(monkeypatch, worker, stays):
    """Spark does so when it was idle for a minute; the status is 0 when a task has ended."""
    stayed = []
    monkeypatch.setattr(daemon, "worker", worker)
    monkeypatch.setattr(daemon, "await_takers", stayed.append)
    with socket.socket(socket.AF_UNIX) as unix, contextlib.suppress(BrokenPipeError):
        daemon.prompt_worker(unix, True)
    assert stayed == [daemon.STAYS_S] * stays


def test_a_folder_in_which_no_socket_can_be_made_is_named_in_the_log(monkeypatch):
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", "/no/such/folder")
    with pytest.raises(SystemExit, match="/no/such/folder"):
        daemon.require_folder()
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "false")
    daemon.require_folder()


UMASK = "import os; from keyshift.worker import daemon as d; d.daemon.manager = lambda: print(os.umask(0)); d.main()"


def test_nobody_else_may_open_the_socket_of_a_daemon():
    done = subprocess.run([sys.executable, "-c", UMASK], umask=0o002, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) == 0o077


def test_workers_give_away_each_batch_at_once_without_a_thread_that_reads_ahead(monkeypatch):
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")  # as Spark sets it
    monkeypatch.setattr(pyspark.worker, "ArrowStreamSerializer", pyspark.worker.ArrowStreamSerializer)
    daemon.read_in_the_main_thread()
    assert daemon.os.environ["SPARK_PIPELINED_UDF"] == "0"

    class Stream(io.BytesIO):
        gone = 0

        def flush(self) -> None:
            self.gone = self.tell()

    stream = Stream()
    batch = pa.record_batch({"value": [1, 2]})

    def batches():
        for _ in range(3):
            before = stream.gone
            yield batch
            assert stream.gone > before

    serializer = pyspark.worker.ArrowStreamSerializer(write_start_stream=True)
    serializer.dump_stream(batches(), stream)
    assert stream.gone > 3 * batch.nbytes
