"""Captures of a slot whose order comes from a leader: they are passed, and have no place in the order.

A capture is of one replica alone, so no record of the order log has it, and none may be cut by one: that would make two
turns of one. So a channel does not stand at a capture, as it does at a barrier. It passes it, when all that came before
was delivered. When each channel has, the capture comes, between two turns. Some channels may be ahead of it then. That
is in the position of the slot; routers that begin at the capture say again what is known.
"""

from collections import deque
from collections.abc import Sequence

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering.channels import Channel
from keyshift.runtime.row import CAPTURE, Row


class Captures:
    """The captures on all ``channels`` of a slot, during one batch."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self._come: list[deque[tuple[int, Row]]] = [deque() for _ in channels]  # each behind so many elements

    def come(self, row: Row) -> bool:
        """Take the row that is next on its channel. Gives whether it is a capture."""
        if row.kind != CAPTURE:
            return False
        channel = self._channels[row.router]
        self._come[row.router].append((channel.delivered + len(channel.waiting), row))
        return True

    def passed(self, channel: Channel) -> bool:
        """Whether a capture has come there, and all that was in front of it was delivered."""
        come = self._come[channel.number]
        return bool(come) and come[0][0] <= channel.delivered

    def take(self) -> tuple[Row, ...]:
        """Take each channel's next capture, if all have passed one. Raises ProtocolViolation if they differ."""
        if not all(self.passed(channel) for channel in self._channels):
            return ()
        rows = tuple(come.popleft()[1] for come in self._come)
        names = sorted({bytes(row.payload).decode() for row in rows})
        if len(names) > 1:  # versions may differ: routers of a later stage may switch meanwhile
            raise ProtocolViolation(f"channels have passed different captures: {', '.join(names)}")
        return rows

    def left(self) -> list[Row]:
        """The rows that wait, with captures that not all channels have passed, also behind what was delivered."""
        left = []
        for channel, come in zip(self._channels, self._come, strict=True):
            rows = [element.row for element in channel.waiting]
            for behind, row in reversed(come):
                rows.insert(max(0, behind - channel.delivered), row)
            left += rows
        return left
