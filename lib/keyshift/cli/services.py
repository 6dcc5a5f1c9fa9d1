"""The embedded services of this machine."""

from typing import Annotated, Any

import typer

from keyshift.cli.options import Json, print_rows


def up(
    kafka_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of Kafka.")] = None,
    zookeeper_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of ZooKeeper.")] = None,
    minio_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of MinIO.")] = None,
) -> None:
    """Start Kafka, ZooKeeper and MinIO on this machine (loopback only)."""
    from keyshift.progress import tell
    from keyshift.services.jars import jars, require_java
    from keyshift.services.stack import Stack

    require_java()
    wanted = {"kafka": kafka_port, "zookeeper": zookeeper_port, "minio": minio_port}
    stack = Stack(ports={name: port for name, port in wanted.items() if port})
    stack.up(tell)
    jars("spark", tell)
    print_rows([_service_row(service) for service in stack.status()], as_json=False)


def down(
    wipe: Annotated[bool, typer.Option(help="Delete the state folder too: data, results, logs, credentials.")] = False,
) -> None:
    """Stop what `up` started."""
    from keyshift.control.files import Jobs
    from keyshift.model.errors import BadInput
    from keyshift.progress import tell
    from keyshift.services.stack import Stack

    if running := Jobs().running():
        names = ", ".join(f"{job.name} (process {job.pid})" for job in running)
        raise BadInput(f"the services stay, because a job needs them: {names}; `keyshift job stop` stops it")
    Stack().down(wipe=wipe, say=tell)


def status(as_json: Json = False) -> None:
    """What runs, where, since when."""
    from keyshift.services.stack import Stack

    stack = Stack()
    print_rows([_service_row(service) for service in stack.status()], as_json)
    if not as_json:
        typer.echo(f"state folder: {stack.home}")


def _service_row(service: Any) -> dict[str, Any]:
    return {
        "service": service.name,
        "state": service.state,
        "address": service.address,
        "pid": service.pid,
        "up_s": None if service.since_s is None else round(service.since_s),
        "rss_mib": None if service.rss_mib is None else round(service.rss_mib),
        "log": str(service.log),
    }
