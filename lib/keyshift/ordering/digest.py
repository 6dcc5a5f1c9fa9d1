"""Digests of turns, and chains of digests: two replicas with the same chain have delivered the same.

A row between stages carries its sender's chain, so the chains of the last stage vouch for all stages.
64 bits: two replicas that differ are taken for equal once in 2^64 turns. Nobody forges rows here.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b
from zlib import crc32

from keyshift.ordering.model import sequence_of
from keyshift.runtime.row import Row

_TURN = struct.Struct("<QqqqQ")  # the chain before, number, met, clock, how many barriers
_ROW = struct.Struct("<iqiqqQqI")  # channel, sequence, kind, version, watermark, chain of the sender, length, checksum
_BYTES = 8


def chained(chain: int, number: int, met: int, clock: int, barriers: Iterable[Row], rows: Iterable[Row]) -> int:
    """The chain behind a turn, of the ``chain`` before it. Rows count in the order in which they are delivered."""
    barriers = tuple(barriers)
    parts = [_TURN.pack(chain, number, met, clock, len(barriers))]
    for row in (*barriers, *rows):
        payload = row.payload
        place = row.router, sequence_of(row), row.kind, row.version, row.watermark, row.chain
        parts.append(_ROW.pack(*place, len(payload), crc32(payload)))
    return int.from_bytes(blake2b(b"".join(parts), digest_size=_BYTES).digest(), "little")
