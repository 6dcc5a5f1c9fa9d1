"""One service in the foreground, for others to use: ``python -m keyshift.services.serve NAME``.

What a container of the image runs. The configuration is that of the embedded stack, or of the Redis server that a run
starts; only addresses, the data folder and credentials differ. This process then becomes the service: signals reach it,
and its output is our output.
"""

import os
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from keyshift.endpoints import Endpoints
from keyshift.folders import require_disk_space, state_folder, write_whole
from keyshift.model.errors import BadInput
from keyshift.objects import Bucket, await_answer
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.redis_program import PASSWORD, redis_configuration, redis_program
from keyshift.services.kafka import Kafka
from keyshift.services.minio import MinIO
from keyshift.services.service import ALONE, ANSWER_S, EVERYWHERE, Binding, Service, ServiceNode, port_of
from keyshift.services.zookeeper import ZooKeeper

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)  # what no format of a configuration has to escape, nor splits

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Data = Annotated[Path, typer.Option(help="A folder to keep data in; the service makes one of its own there.")]
# The last ports are left out, because nodes find each other at those after that of their clients.
Port = Annotated[int, typer.Option(min=1, max=65533, help="The port to listen on.")]
Listen = Annotated[str, typer.Option(help="The address to listen on.")]
Nodes = Annotated[
    str,
    typer.Option(
        metavar="HOST,HOST,HOST",
        help="Under which names the nodes of this service find each other; empty: it is alone.",
    ),
]


@app.command()
def kafka(
    data: Data,
    advertise: Annotated[
        str,
        typer.Option(metavar="HOST", help="The name under which clients reach this broker; of one of several its own."),
    ] = "",
    port: Port = 9092,
    listen: Listen = EVERYWHERE,
    nodes: Nodes = "",
) -> None:
    """A broker; its controller has the next port: on loopback if it is alone."""
    node = _node(nodes)
    advertise = advertise or ("" if node.alone else node.hosts[node.number - 1])
    if not HOST_NAME.fullmatch(advertise) or advertise == EVERYWHERE:
        raise BadInput(
            f"--advertise {advertise!r} is not a host: expected the name or IPv4 address under which every client "
            "reaches this broker, without a port"
        )
    binding = _binding(data, "kafka", listen, advertise)
    become(Kafka(state_folder(), binding, node), _ports(node, {"kafka": port, "kafka_controller": port + 1}))


@app.command()
def zookeeper(data: Data, port: Port = 2181, listen: Listen = EVERYWHERE, nodes: Nodes = "") -> None:
    """A server; those of an ensemble find each other at the next two ports."""
    node = _node(nodes)
    ports = {"zookeeper": port, "zookeeper_peers": port + 1, "zookeeper_election": port + 2}
    become(ZooKeeper(state_folder(), _binding(data, "zookeeper", listen), node=node), _ports(node, ports))


@app.command()
def minio(data: Data, port: Port = 9000, listen: Listen = EVERYWHERE) -> None:
    """A single server with the credentials of $MINIO_ROOT_USER and $MINIO_ROOT_PASSWORD."""
    credentials = _given("MINIO_ROOT_USER"), _given("MINIO_ROOT_PASSWORD")
    for name, value, least in zip(("USER", "PASSWORD"), credentials, (3, 8), strict=True):
        if len(value) < least:
            raise BadInput(f"MINIO_ROOT_{name} has {len(value)} characters; MinIO wants at least {least}")
    become(MinIO(state_folder(), _binding(data, "minio", listen), credentials), {"minio": port})


@app.command()
def redis(
    port: Port = 6379,
    listen: Listen = EVERYWHERE,
    memory_mib: Annotated[int, typer.Option(min=0, help="When it takes no more, in MiB; 0: never.")] = 0,
) -> None:
    """A single server for state, in memory alone, with the password of $KEYSHIFT_REDIS_PASSWORD."""
    home, file = state_folder(), "conf/redis.conf"
    configuration = redis_configuration(_address(listen), port, _given(PASSWORD), memory_mib)
    program = redis_program()
    _require_home(home)
    write_whole(home / file, configuration)
    _exec(home, [str(program), file], {})


@app.command()
def bucket(
    deadline_s: Annotated[float, typer.Option(min=0, help="How long to wait for MinIO, in seconds.")] = 300.0,
    secure: Annotated[bool, typer.Option(help="Speak TLS with it.")] = False,
) -> None:
    """Wait for the MinIO of $KEYSHIFT_MINIO (host:port) and make $KEYSHIFT_BUCKET there unless it exists."""
    address, name = _given("KEYSHIFT_MINIO"), _given("KEYSHIFT_BUCKET")
    keys = _given("KEYSHIFT_ACCESS_KEY"), _given("KEYSHIFT_SECRET_KEY")
    there = Bucket(Endpoints("", "", address, *keys, bucket=name, secure=secure), answer_s=ANSWER_S, retries=0)
    made = await_answer(there.make, deadline_s)
    tell(f"bucket {name!r} at {address}: {'made' if made else 'is there already'}")


def become(service: Service, ports: dict[str, int]) -> NoReturn:
    """Configure the service and replace this process with it. ``ports`` as in the service's ``default_ports``.

    Raises ServiceUnavailable if the state folder or the data folder cannot be written to.
    """
    _require_home(service.home)
    require_disk_space(service.data, 0, "give a folder with --data that this user can write to")
    program = service.fetch(tell, threading.Event())
    command, env = service.configure(program, ports, threading.Event())
    _exec(service.home, command, env)


def _require_home(home: Path) -> None:
    require_disk_space(home, 0, "set KEYSHIFT_HOME to a folder that can be written to")


def _exec(home: Path, command: list[str], env: dict[str, str]) -> NoReturn:
    os.chdir(home)  # paths in the command are relative to it
    sys.stderr.flush()
    # The container's own settings of the service (MINIO_PROMETHEUS_AUTH_TYPE) stay.
    os.execvpe(command[0], command, os.environ | env)


def _binding(data: Path, name: str, listen: str, advertise: str = "") -> Binding:
    """Make the binding of a service. Raises BadInput for a path or an address that no configuration can hold."""
    if not data.is_absolute() or not PLAIN_PATH.fullmatch(str(data)):
        raise BadInput(f"--data {str(data)!r}: expected an absolute path of letters, digits and . _ - /")
    # A folder in it: at the root of a fresh volume is lost+found, which Kafka takes for a broken topic.
    return Binding(_address(listen), advertise or listen, data / name)


def _node(nodes: str) -> ServiceNode:
    """The node of this machine. Raises BadInput for names that are none, or if this machine is not among them."""
    if not nodes:
        return ALONE
    hosts, here = tuple(nodes.split(",")), socket.gethostname()
    short = [host.split(".")[0] for host in hosts]
    if len(hosts) != 3 or not all(map(HOST_NAME.fullmatch, hosts)) or here.split(".")[0] not in short:
        raise BadInput(f"--nodes {nodes!r}: expected the names of three hosts with commas between, {here} among them")
    return ServiceNode(short.index(here.split(".")[0]) + 1, hosts)


def _ports(node: ServiceNode, ports: dict[str, int]) -> dict[str, int]:
    """The ``ports`` of all nodes, by ``port_of``: each node has the same."""
    return {port_of(name, number): port for number in range(1, len(node.hosts) + 1) for name, port in ports.items()}


def _address(listen: str) -> str:
    if not HOST_NAME.fullmatch(listen):
        raise BadInput(f"--listen {listen!r}: expected an IPv4 address, {EVERYWHERE} for all of this machine")
    return listen


def _given(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise BadInput(f"{name} is not set in the environment; set it (in a cluster: from the Secret of the chart)")
    return value


if __name__ == "__main__":
    run_program(app)
