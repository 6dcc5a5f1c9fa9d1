"""A process through which a replica's connections to a service go, so that it can be cut off; see ``relays``.

It is told ``Relayed`` first, and answers with ``RelayPorts``. While a service is ``CutOff``, nothing gets through
either way, as in a network that is parted: connections stay, those that are made wait, and what was sent comes later.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from keyshift.services.service import HOST, Route
from keyshift.traffic.entry import CommandLines, run
from keyshift.traffic.messages import Stop
from keyshift.traffic.process import say

READ_BYTES = 1 << 16


class Relayed(BaseModel):
    """The ways to each service, to all of its nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    services: dict[str, tuple[Route, ...]]


@dataclass(frozen=True, slots=True)
class CutOff:
    """From this service, for so long."""

    service: str
    seconds: float
    kind: Literal["cut off"] = "cut off"


@dataclass(frozen=True, slots=True)
class RelayPorts:
    """At these ports of each service, in the order of its ways."""

    ports: dict[str, tuple[int, ...]]


Command = Annotated[CutOff | Stop, Field(discriminator="kind")]


def serve(config: Relayed, commands: CommandLines) -> None:
    """The process, until it is told to stop. Raises OSError if somebody else listens at a port."""
    asyncio.run(_relay(config, commands))


async def _relay(config: Relayed, commands: CommandLines) -> None:
    open_to: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
    ports: dict[str, tuple[int, ...]] = {}
    for service, routes in config.services.items():
        open_to[service].set()
        servers = [
            await asyncio.start_server(partial(_connect, each, open_to[service]), HOST, each.port) for each in routes
        ]
        ports[service] = tuple(server.sockets[0].getsockname()[1] for server in servers)
    say(RelayPorts(ports))
    while not isinstance(command := await asyncio.to_thread(commands.next, 3600.0), Stop):
        if isinstance(command, CutOff):
            open_to[command.service].clear()
            asyncio.get_running_loop().call_later(command.seconds, open_to[command.service].set)


async def _connect(
    route: Route, open_: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await open_.wait()
    try:
        from_service, to_service = await asyncio.open_connection(*route.to)
    except OSError:
        return writer.close()
    await asyncio.gather(_copy(reader, to_service, open_), _copy(from_service, writer, open_))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_: asyncio.Event) -> None:
    """Until one of both ends of the connection is closed."""
    try:
        while data := await reader.read(READ_BYTES):
            await open_.wait()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    run(Relayed, serve, Command)
