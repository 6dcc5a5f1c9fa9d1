"""Connections to a server of Flight."""

from typing import Any

import pyarrow.flight as flight


def flight_client(address: str, scheme: str = "grpc", **proof: Any) -> flight.FlightClient:
    """A client of ``address``; ``proof``: what it needs for TLS. It asks no proxy, whatever the environment names: gRPC
    would send it also what is for this machine.
    """
    return flight.FlightClient(f"{scheme}://{address}", generic_options=[("grpc.enable_http_proxy", 0)], **proof)
