"""LiveRobin: a slot takes from its channels in turn, from each up to the mark of the epoch. Nobody has to talk.

What a channel carries follows from the input, so where its marks are does, too. A turn is a function of what the
channels carry: when rows come only decides when it is delivered. A channel without events marks all the same, with
ticks. Latency: a row waits for the slowest channel's mark.

    turn   from each channel that has not closed the next epoch: elements up to and with its next mark;
           channels ascending, another one first each time

After the turn the slot is in the least epoch of its channels. Where all of them close several epochs at once, because
the source was silent or has just begun, one turn has all of these. The design has a turn for each epoch. This one is
better in two ways. There may be 10^10 epochs before the first event, whose time counts from 1970. And a barrier has
one place: the channel with the least epoch has to go on for the next turn, and its barrier comes before that. With a
turn per epoch, a channel that closes the epochs 5 to 9 with one frame may or may not have shown the barrier of epoch 6
when turn 7 is due. So turns are numbered without gaps, and the epoch is told by ``Turn.reached``.

Source: LiveRobin marks channels by heartbeats; here the marks are frames of the input, which are the same in all
replicas.
"""

from collections.abc import Sequence

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering.channels import Channel
from keyshift.ordering.machine import Ordering
from keyshift.runtime.row import Row
from keyshift.runtime.turn import Turn


class LiveRobin(Ordering):
    """The machine of LiveRobin. The processing time of a turn is the time that its epoch ends."""

    def take(self, ready: bool) -> Turn | None:
        """See ``Ordering.take``. Raises ProtocolViolation if one channel goes on where another has a barrier."""
        if all(channel.stands for channel in self.channels):
            return self._barriers()
        met, epoch = self._time, self.epoch
        behind = [channel for channel in self._in_turn() if channel.closed == epoch]
        for channel in behind:
            if channel.stands:
                self._wait_for_barriers(channel)
                return None
        if not ready or not all(channel.marks for channel in behind):
            return None
        rows = [row for channel in behind for row in self._up_to_mark(channel)]
        return self._rows(self._ordered(rows), met, self._time)

    def _in_turn(self) -> list[Channel]:
        first = (self.turn + 1) % len(self.channels)
        return self.channels[first:] + self.channels[:first]

    @staticmethod
    def _up_to_mark(channel: Channel) -> list[Row]:
        rows = []
        while True:
            if channel.stands:
                raise ProtocolViolation(f"channel {channel.number} has a barrier that is not behind a mark")
            mark = channel.waiting[0].mark
            rows.append(channel.deliver())
            if mark:
                return rows

    def _wait_for_barriers(self, standing: Channel) -> None:
        """Require that no channel goes on: all have closed the epoch behind which ``standing`` has a barrier."""
        for channel in self.channels:
            if channel.waiting and not channel.stands:
                version = standing.waiting[0].row.version
                raise ProtocolViolation(
                    f"channel {channel.number} goes on at epoch {channel.closed}, where channel {standing.number} has "
                    f"a barrier of version {version}"
                )

    def _ordered(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of a turn in the order in which they are delivered."""
        return rows
