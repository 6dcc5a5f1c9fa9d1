"""One service in the foreground, for others to use: ``python -m keyshift.services.serve kafka|zookeeper|minio|bucket``.

What a container of the image runs. The configuration is that of the embedded stack; only addresses, the data folder and
(MinIO) the credentials differ. In the end this process is the service: signals reach it, and its output is our output.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import urllib3
from minio import Minio
from minio.error import MinioException, S3Error
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError

from keyshift.errors import BadInput, ServiceUnavailable
from keyshift.folders import require_room, state_folder
from keyshift.program import run_program
from keyshift.services.kafka import Kafka
from keyshift.services.minio import MinIO, make_bucket
from keyshift.services.service import ANSWER_S, EVERYWHERE, Binding, Service
from keyshift.services.zookeeper import ZooKeeper

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)  # what no format of a configuration has to escape, nor splits
REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"}  # S3 error codes that waiting does not mend

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Data = Annotated[Path, typer.Option(help="A folder to keep data in; the service makes one of its own there.")]
# The last port is left out, because Kafka's controller has the one after the broker's.
Port = Annotated[int, typer.Option(min=1, max=65534, help="The port to listen on.")]
Listen = Annotated[str, typer.Option(help="The address to listen on.")]


@app.command()
def kafka(
    data: Data,
    advertise: Annotated[str, typer.Option(metavar="HOST", help="The name under which clients reach this broker.")],
    port: Port = 9092,
    listen: Listen = EVERYWHERE,
) -> None:
    """A single broker; its controller has the next port, on loopback."""
    if not HOST_NAME.fullmatch(advertise) or advertise == EVERYWHERE:
        raise BadInput(
            f"--advertise {advertise!r} is not a host: expected the name or IPv4 address under which every client "
            "reaches this broker, without a port"
        )
    binding = _binding(data, "kafka", listen, advertise)
    become(Kafka(state_folder(), binding), {"kafka": port, "kafka_controller": port + 1})


@app.command()
def zookeeper(data: Data, port: Port = 2181, listen: Listen = EVERYWHERE) -> None:
    """A single server."""
    become(ZooKeeper(state_folder(), _binding(data, "zookeeper", listen)), {"zookeeper": port})


@app.command()
def minio(data: Data, port: Port = 9000, listen: Listen = EVERYWHERE) -> None:
    """A single server with the credentials of $MINIO_ROOT_USER and $MINIO_ROOT_PASSWORD."""
    credentials = _given("MINIO_ROOT_USER"), _given("MINIO_ROOT_PASSWORD")
    for name, value, least in zip(("USER", "PASSWORD"), credentials, (3, 8), strict=True):
        if len(value) < least:
            raise BadInput(f"MINIO_ROOT_{name} has {len(value)} characters; MinIO wants at least {least}")
    become(MinIO(state_folder(), _binding(data, "minio", listen), credentials), {"minio": port})


@app.command()
def bucket(
    deadline_s: Annotated[float, typer.Option(min=0, help="How long to wait for MinIO, in seconds.")] = 300.0,
    secure: Annotated[bool, typer.Option(help="Speak TLS with it.")] = False,
) -> None:
    """Wait for the MinIO of $KEYSHIFT_MINIO (host:port) and make $KEYSHIFT_BUCKET there unless it exists."""
    address, name = _given("KEYSHIFT_MINIO"), _given("KEYSHIFT_BUCKET")
    keys = _given("KEYSHIFT_ACCESS_KEY"), _given("KEYSHIFT_SECRET_KEY")
    pool = urllib3.PoolManager(timeout=ANSWER_S, retries=False)
    try:
        client = Minio(address, *keys, secure=secure, http_client=pool)
    except ValueError as error:
        raise BadInput(f"KEYSHIFT_MINIO={address!r}: {error}; expected host:port") from None
    made = wait_for_bucket(client, name, address, deadline_s)
    _tell(f"bucket {name!r} at {address}: {'made' if made else 'is there already'}")


def wait_for_bucket(client: Minio, name: str, address: str, deadline_s: float) -> bool:
    """Make the bucket once the server at ``address`` answers; says whether it had to.

    Raises BadInput for a name S3 does not allow, ServiceUnavailable if the server refuses the credentials (at once) or
    does not do it within ``deadline_s`` seconds.
    """

    def once() -> bool:
        try:
            return make_bucket(client, name)
        except ValueError as error:
            raise BadInput(f"bucket {name!r}: {error}; 3 to 63 small letters, digits, dots and dashes") from None
        except S3Error as error:
            if error.code == "BucketAlreadyOwnedByYou":  # somebody else was faster
                return False
            if error.code in REFUSED:
                raise ServiceUnavailable(
                    f"MinIO at {address} refuses to show or make bucket {name!r} ({error.code}): check "
                    "KEYSHIFT_ACCESS_KEY and KEYSHIFT_SECRET_KEY, and what they may do"
                ) from None
            raise

    trouble = retry_if_exception_type((MinioException, HTTPError, OSError))
    try:
        return Retrying(retry=trouble, wait=wait_fixed(1.0), stop=stop_after_delay(deadline_s))(once)
    except RetryError as late:
        problem = str(late.last_attempt.exception()).splitlines()[0]
        raise ServiceUnavailable(
            f"MinIO at {address} has not made bucket {name!r} within {deadline_s:.0f} s ({problem}); is the address "
            "right, does the server run, may we reach it?"
        ) from None


def become(service: Service, ports: dict[str, int], exec_: Callable[..., NoReturn] = os.execvpe) -> NoReturn:
    """Configure the service and replace this process with it. ``ports`` as in the service's ``default_ports``.

    Raises ServiceUnavailable if the state folder or the data folder cannot be written to.
    """
    require_room(service.home, 0, "set KEYSHIFT_HOME to a folder that can be written to")
    require_room(service.data, 0, "give a folder with --data that this user can write to")
    program = service.fetch(_tell, threading.Event())
    command, env = service.configure(program, ports, threading.Event())
    os.chdir(service.home)  # paths in the command are relative to it
    sys.stderr.flush()
    # The container's own settings of the service (MINIO_PROMETHEUS_AUTH_TYPE) stay.
    exec_(command[0], command, os.environ | env)


def _binding(data: Path, name: str, listen: str, advertise: str = "") -> Binding:
    """Raises BadInput for a path or an address that no configuration can hold."""
    if not data.is_absolute() or not PLAIN_PATH.fullmatch(str(data)):
        raise BadInput(f"--data {str(data)!r}: expected an absolute path of letters, digits and . _ - /")
    if not HOST_NAME.fullmatch(listen):
        raise BadInput(f"--listen {listen!r}: expected an IPv4 address, {EVERYWHERE} for all of this machine")
    # A folder in it: at the root of a fresh volume is lost+found, which Kafka takes for a broken topic.
    return Binding(listen, advertise or listen, data / name)


def _given(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise BadInput(f"{name} is not set in the environment; set it (in a cluster: from the Secret of the chart)")
    return value


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    run_program(app)
