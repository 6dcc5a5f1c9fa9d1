"""The daemon that forks Python workers: imports once what every worker needs, so that a forked one starts at once.

Without it each worker imports numpy, pyarrow and Flight by itself, all at the same time; a slot whose first result
comes in the middle of a migration would stall it for seconds. No thread and no gRPC may be started before the fork.
"""

import gc
import os
import socket
import sys

import kazoo.client
import minio
import numpy
import pandas
import pyarrow.flight
import pyspark.worker
from pyspark import daemon
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

import keyshift.worker.tasks
from keyshift.wire import nodes
from keyshift.worker.flight import messages
from keyshift.worker.slot.host import await_takers

PRELOADED = (kazoo.client, minio, numpy, pandas, pyarrow.flight, keyshift.worker.tasks)
STAYS_S = 600.0  # behind Spark's goodbye, at the most: what nobody has fetched by then is of a job whose driver is gone


worker = daemon.worker


def prompt_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker whose small writes do not wait for the other side's acknowledgement, if its connection is TCP.

    When Spark has no more use for it, it stays until others have what slots left here, or its attempt is over. Spark
    closes the connections of idle workers if no task of their executor has ended for a minute, which may be before the
    slowest slot comes to the end of the batch. The worker then ends with a status, or with an error, as it has
    something to say to nobody.
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    status = 1
    try:
        status = worker(sock, authenticated)
    finally:
        if status:
            await_takers(STAYS_S)
    return status


def require_folder() -> None:
    """Ends the process, with a line for Spark's log, if Unix domain sockets are wanted where none can be made."""
    folder = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR", "")
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED") == "true" and not os.access(folder, os.W_OK | os.X_OK):
        sys.exit(f"no socket can be made in {folder!r}: name another, or none, with spark.sockets in the profile")


class PromptSerializer(ArrowStreamSerializer):
    """Hands each batch over as soon as it is made."""

    def __init__(self, write_start_stream: bool = False) -> None:
        super().__init__(write_start_stream, flush_per_batch=True)


def read_in_the_main_thread() -> None:
    """Let workers of a pipelined query work like others, and give away each batch of results at once.

    They would have a thread that reads ahead: one more to wake for each row. What makes such a query pipelined is the
    JVM's side, where one thread writes and another reads.
    """
    os.environ["SPARK_PIPELINED_UDF"] = "0"
    pyspark.worker.ArrowStreamSerializer = PromptSerializer  # type: ignore[assignment,misc]


def main() -> None:
    """Fork workers until Spark has no more use for them."""
    # A waiting transfer thread must not hold the interpreter for the default 5 ms while a frame waits.
    sys.setswitchinterval(0.001)
    nodes.make_codecs()
    messages.make_codecs()
    # What is imported lives for ever. Were it looked through for garbage, each worker would copy the pages it shares
    # with the others, and stall for a tenth of a second at some moment of its own.
    gc.collect()
    gc.freeze()
    # spark.buffer.size is for the JVM's side, which writes only what fills it. Here it would only make more calls.
    os.environ["SPARK_BUFFER_SIZE"] = str(1 << 16)
    read_in_the_main_thread()
    require_folder()
    os.umask(0o077)  # for its socket, on which it asks for no secret: who may open that has code run as us
    daemon.worker = prompt_worker
    daemon.manager()


if __name__ == "__main__":
    main()
