"""A process through which a replica's connections to a service go, so that it can be cut off; see ``relays``.

It is told ``Relayed`` first, and answers with ``RelayPorts``. While a service is ``CutOff``, nothing gets through
either way, as in a network that is parted: connections stay, those that are made wait, and what was sent comes later.
"""

import asyncio
import time
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
    """Cut off from this service, for so long."""

    service: str
    seconds: float
    kind: Literal["cut off"] = "cut off"


@dataclass(frozen=True, slots=True)
class RelayPorts:
    """The ports of each service at which the relay listens, in the order of its ways."""

    ports: dict[str, tuple[int, ...]]


RelayCommand = Annotated[CutOff | Stop, Field(discriminator="kind")]


def serve(config: Relayed, commands: CommandLines) -> None:
    """Run the process until it is told to stop. Raises OSError if somebody else listens at a port."""
    asyncio.run(_relay(config, commands))


async def _relay(config: Relayed, commands: CommandLines) -> None:
    valves = {service: Valve() for service in config.services}
    ports: dict[str, tuple[int, ...]] = {}
    for service, routes in config.services.items():
        connect = partial(_connect, valves[service])
        servers = [await asyncio.start_server(partial(connect, each), HOST, each.port) for each in routes]
        ports[service] = tuple(server.sockets[0].getsockname()[1] for server in servers)
    say(RelayPorts(ports))
    while not isinstance(command := await asyncio.to_thread(commands.next, 3600.0), Stop):
        if isinstance(command, CutOff):
            valves[command.service].close(command.seconds)


class Valve:
    """A valve between a replica and a service: open, or closed for a time."""

    def __init__(self) -> None:
        self._until = 0.0  # by the monotonic clock

    def close(self, seconds: float) -> None:
        """Close it for so long, or as long as it was to be closed before if that is longer."""
        self._until = max(self._until, time.monotonic() + seconds)

    async def passed(self) -> None:
        """Wait until it is open."""
        while (left_s := self._until - time.monotonic()) > 0:
            await asyncio.sleep(left_s)


async def _connect(valve: Valve, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await valve.passed()
    try:
        from_service, to_service = await asyncio.open_connection(*route.to)
    except OSError:
        return writer.close()
    await asyncio.gather(_copy(reader, to_service, valve), _copy(from_service, writer, valve))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, valve: Valve) -> None:
    """Copy what comes, until one of both ends of the connection is closed."""
    try:
        while data := await reader.read(READ_BYTES):
            await valve.passed()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    run(Relayed, serve, RelayCommand)
