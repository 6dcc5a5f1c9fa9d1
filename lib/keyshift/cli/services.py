"""The embedded services of this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from keyshift.cli.options import Json, print_rows
from keyshift.model.errors import BadInput
from keyshift.progress import tell


def up(
    kafka_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of Kafka.")] = None,
    zookeeper_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of ZooKeeper.")] = None,
    minio_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of MinIO.")] = None,
) -> None:
    """Start Kafka, ZooKeeper and MinIO on this machine (loopback only); the profile is that of KEYSHIFT_PROFILE."""
    from keyshift.place.profile import VARIABLE, load_profile
    from keyshift.services.jars import jars, require_java
    from keyshift.services.stack import Stack

    place = load_profile()
    if place.services != "embedded":
        raise BadInput(f"the profile of {VARIABLE} names services of others ({place.services}): nothing to start here")
    wanted = {"kafka": kafka_port, "zookeeper": zookeeper_port, "minio": minio_port}
    ports = {name: port for name, port in wanted.items() if port}
    stack = Stack(ports=ports, session_ms=place.session_ms, nodes=place.nodes)
    for service in stack.alive():
        port = ports.get(service.kind)  # of the first node
        if port and service.node.number == 1 and not service.address.endswith(f":{port}"):
            raise BadInput(
                f"--{service.kind}-port {port}: {service.title} runs at {service.address}; `keyshift down` first"
            )
    require_java()
    stack.up(tell)
    jars("spark", tell)
    print_rows(list(map(asdict, stack.status())), as_json=False)


def down(
    wipe: Annotated[
        bool,
        typer.Option(
            help="Delete what is in the state folder, too: data, results, executed notebooks, logs, credentials, and "
            "every job that could be resumed."
        ),
    ] = False,
) -> None:
    """Stop what `up` started, unless a job, a run, a notebook or a batch uses it."""
    from keyshift.control.files import Jobs
    from keyshift.folders import work_in_use
    from keyshift.services.stack import Stack

    jobs, stack = Jobs(), Stack()

    def require() -> None:
        if running := jobs.running():
            names = ", ".join(f"{job.name} (process {job.pid})" for job in running)
            raise BadInput(f"the services stay, because a job needs them: {names}; `keyshift job stop` stops it")
        if others := stack.used_by_others(parents=True):
            apart = stack.used_by_others()
            them = ", ".join(f"{pid}{'' if pid in apart else ', from which this was started'}" for pid in others)
            what, which = ("process", "it") if len(others) == 1 else ("processes", "them")
            raise BadInput(f"the services stay, because others use them: {what} {them}; end {which} first")
        if wipe and (used := work_in_use(stack.home)):
            raise BadInput(
                f"--wipe: files of a run, a notebook or a batch are in use: {', '.join(map(str, used))}; wait for its "
                "end, or end it first"
            )
        if wipe and (elsewhere := jobs.left_elsewhere()):
            raise BadInput(
                f"--wipe: {', '.join(elsewhere)}: such a job has left data in services that are not of this folder, "
                "and nobody would find them any more; `keyshift job forget NAME` deletes them"
            )

    stack.down(wipe, tell, require)


def status(as_json: Json = False) -> None:
    """What runs, where, since when."""
    from keyshift.place.profile import VARIABLE, load_profile
    from keyshift.services.stack import Stack

    stack = Stack()
    print_rows(list(map(asdict, stack.status())), as_json)
    if not as_json:
        typer.echo(f"state folder: {stack.home}")
        try:
            services = load_profile().services
        except BadInput as error:
            typer.echo(f"the profile of {VARIABLE}: {error}")
        else:
            if services != "embedded":
                typer.echo(f"the profile of {VARIABLE} names services of others instead: {services}")
