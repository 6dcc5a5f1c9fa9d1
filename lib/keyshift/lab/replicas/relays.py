"""Replica 0 can be cut off from services: its Spark's connections go through relays, those of the others do not."""

from collections.abc import Collection
from dataclasses import replace

from keyshift.lab.replicas.relay import CutOff, Relayed, RelayPorts
from keyshift.services.service import HOST
from keyshift.services.stack import Stack
from keyshift.traffic.process import JsonProcess
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import Fault

MODULE = "keyshift.lab.replicas.relay"
START_S = 60.0
NUMBER = 0  # of the replica


class Relays:
    """Relays to some services, in a process of their own. Raises ServiceUnavailable if that does not start."""

    def __init__(self, stack: Stack, services: Collection[str]) -> None:
        nodes = stack.alive()
        routes = {kind: tuple(node.route() for node in nodes if node.kind == kind) for kind in services}
        self._process = JsonProcess(MODULE, Relayed(services=routes), RelayPorts)
        try:
            there: RelayPorts = self._process.report(START_S)
        except BaseException:
            self._process.kill()
            raise
        self._addresses = {name: ",".join(f"{HOST}:{port}" for port in ports) for name, ports in there.ports.items()}

    def seen_by(self, config: JobConfig) -> JobConfig:
        """Give what the Spark of a replica is to have instead of its ``config``."""
        if config.replica != NUMBER:
            return config
        own = config.endpoints
        of_each = ("kafka", own.kafka), ("zookeeper", own.zookeeper)
        kafka, zookeeper = (self._addresses.get(name, directly) for name, directly in of_each)
        return replace(config, endpoints=replace(own, kafka=kafka, zookeeper=zookeeper))

    def cut(self, fault: Fault) -> None:
        """Begin to cut a replica off. Raises ServiceUnavailable if the relay has died."""
        self._process.tell(CutOff(fault.who, fault.seconds))

    def end(self) -> None:
        """End the relays: nothing goes through them any more."""
        self._process.kill()
