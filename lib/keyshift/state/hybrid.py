"""Values in use here, all of them in a store that all slots reach: local access, and migration that moves no state.

Beside the slot's own values it is ``remote``: a key is fetched when it is first used, also after its unit has come from
another slot. The strategies ``lazy`` and ``hybrid`` are the other kind of hybrid: there the former owner is what keys
are fetched from, and each slot has a store of its own, of whatever backend.
"""

from typing import Literal

import pyarrow as pa
from pydantic import Field

from keyshift.state.redis_server import RemoteSettings
from keyshift.state.remote import RemoteStore


class HybridSettings(RemoteSettings):
    """Where the server is, and what is kept here."""

    state_cache_mib: int = Field(default=128, ge=1, le=1 << 20, description="MiB of values that a slot keeps in Python")
    write: Literal["through", "back"] = Field(
        default="through", description="changes go to the server with the next frame, or when they leave the slot"
    )


class HybridStore(RemoteStore):
    """See ``Store``."""

    def __init__(self, slot: str, schema: pa.Schema, settings: HybridSettings) -> None:
        super().__init__(slot, schema, settings, settings.state_cache_mib << 20, settings.write == "through")
