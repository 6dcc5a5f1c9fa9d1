"""The generator process: frames of a source's events into Kafka on a fixed schedule, whatever the job does with them.

Each partition belongs to one router and gets one frame every ``frame_ms`` from the beginning: ticks before and after
the load, so that routers always have a row to run on, and while the source is silent, so that time passes for all. The
partitions take turns, so that a slot gets its rows evenly spaced. Several generators may share a source, each with
partitions of its own: whoever writes a partition says alone how far its time has come. An event carries the time it was
*scheduled*; a process that is late sends all that is due as fast as it can, with the scheduled times, so no latency is
hidden (no coordinated omission). It may be too slow for the rate, or Kafka may be: then it is late, and no more than
that. With ``lines`` each event of a frame is a record of its own, sent when the frame is due, and there are no ticks.
Frames and what is on its way to Kafka are bounded, and ``OVERTIME_S`` after the load has ended, what is left of it is
never offered.

``traffic.messages`` has what it is told and says.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pydantic import Field

from keyshift.clock import SECOND_US, now_us
from keyshift.model import frames
from keyshift.model.errors import BadInput, Deposed
from keyshift.trace import Trace
from keyshift.traffic import lines
from keyshift.traffic.entry import CommandLines, TrafficConfig, run
from keyshift.traffic.load import Schedule
from keyshift.traffic.messages import Begin, EndLoad, LoadDone, OfLoad, Ready, SetRate, SkipEvents, SoFar, Stop
from keyshift.traffic.process import say
from keyshift.traffic.writer import Writer, producer_of
from keyshift.workloads import Partition, results_due
from keyshift.workloads.event_files import EventFile

OVERTIME_S = 3.0  # to send what is late at the end of the load: a pause is made good, a rate that is too high is not
TAKE_EVENTS = 1 << 14  # made at once, by one router: as many as make about one frame


class GeneratorConfig(TrafficConfig):
    """What the generator is told first about the events of a source, whose topic has a partition for each router."""

    source: str
    partitions: list[int] = Field(description="those that are written here")
    rate: float = Field(ge=0, description="events per second, all partitions of the source together")
    rate_steps: list[tuple[float, float]] = Field(
        default=[], description="seconds since the start of the load, ascending, and the events per second from then on"
    )
    events: str = Field(default="", description="event file that they are in; empty: they are drawn")
    frame_ms: float = Field(gt=0, description="time between frames, per partition")
    epoch: int = Field(default=frames.FIRST_EPOCH, ge=frames.FIRST_EPOCH, description="of its driver")


class Generator:
    """Sends the frames of its partitions; ``send`` is told what time it is, and never asks."""

    def __init__(self, config: GeneratorConfig, producer: Producer) -> None:
        workload = config.make_workload()
        self._stages = workload.stages
        self._source = source = next(each for each in workload.sources if each.name == config.source)
        self._config, self._topic = config, config.topic
        self.routers = config.partitions
        self._empty = frames.empty(source.schema)
        made = partial(EventFile(config.events).partition, source) if config.events else source.partition
        self._partitions: dict[int, Partition] = {router: made(router) for router in self.routers}
        self._next_offset: dict[int, int] = {}  # of each router's partition, if nobody else writes there
        self._others: dict[int, int] = {}  # routers, and the offset of what somebody else has written there last
        self._sent = dict.fromkeys(self.routers, 0)
        self.due = 0  # results that the events sent so far must have
        self._watermark = 0  # the last that was sent
        self._last_us = 0  # when the load is over, if it has an end
        self._planned = 0  # events of the load, if it has an end
        self._writer = Writer(config.topic, producer, self._written)
        self.schedule: Schedule | None = None
        self.trace = Trace(config.trace, "generator", ["router", "frame_us", "sent_us"]) if config.trace else None

    @property
    def events(self) -> int:
        """Events sent so far."""
        return sum(self._sent.values())

    @property
    def finished(self) -> bool:
        """Whether there was a load and all of it was sent, or given up."""
        return self.schedule is not None and all(self._sent[each] == self.schedule.total[each] for each in self._sent)

    def give_up(self, now_us: int) -> None:
        """Give up what is not sent ``OVERTIME_S`` after the end of the load, or after it was told to start."""
        schedule = self.schedule
        if schedule and schedule.end_us < math.inf and now_us > self._last_us + OVERTIME_S * SECOND_US:
            schedule.total = [float(self._sent.get(each, 0)) for each in range(self._topic.partitions)]

    def done(self, now_us: int) -> LoadDone:
        """Return what is said when the load is over."""
        took_us = now_us - self.schedule.start_us if self.schedule is not None else 0
        return LoadDone(self.events, self._planned, self.due, took_us / SECOND_US)

    def obey(self, command: OfLoad, now_us: int) -> None:
        """Plan the load, change its rate, or end it. Raises BadInput for a command that is not for now."""
        schedule = self.schedule
        match command:
            case SkipEvents(skipped) if schedule is None:
                for partition, events in zip(self._partitions.values(), skipped, strict=True):
                    for begin in range(0, events, TAKE_EVENTS):
                        partition.take(np.zeros(min(TAKE_EVENTS, events - begin), np.int64))
                return
            case Begin(start_us, seconds) if schedule is None:
                config = self._config
                start_us = max(start_us, self._watermark + 1)  # or the first events would be late, if this comes late
                schedule = Schedule(start_us, seconds, config.rate, self._topic.partitions, config.rate_steps)
                self.schedule = schedule
            case SetRate(rate) if schedule is not None and schedule.end_us == math.inf and rate > 0:
                schedule.change(now_us, rate)
            case EndLoad() if schedule is not None and schedule.end_us == math.inf:
                schedule.end(now_us)
                schedule.total = [max(due, self._sent.get(each, 0)) for each, due in enumerate(schedule.total)]
            case _:
                raise BadInput(
                    f"generator command {command}: SkipEvents and Begin come once each, in this order; then, while the "
                    "load has no end, SetRate with a rate above 0, or EndLoad"
                )
        assert schedule is not None
        if schedule.end_us < math.inf:
            self._last_us = max(int(schedule.end_us), now_us)
            self._planned = int(sum(schedule.total[router] for router in self.routers))

    def send(self, router: int, frame_us: int) -> bool:
        """Send ``router``'s events that are due at ``frame_us``, or a tick. False if more are left for other calls.

        The watermark is ``frame_us`` or, if some are left, before the first of them, and only the last frame has it: no
        event is late for having been cut off. Waits until there is room on the way to Kafka. Raises ServiceUnavailable
        if any send failed.
        """
        batch, watermark = self._empty, frame_us
        if self.schedule is not None:
            sent, due = self._sent[router], self.schedule.due(router, frame_us)
            if due > sent:
                end = min(due, sent + TAKE_EVENTS)
                start_us = self.schedule.start_us
                drawn = self._partitions[router].take(self.schedule.times(router, sent, end) - start_us)
                batch = self._source.moved(drawn, start_us)  # the same events whenever the load begins
                self._sent[router] = end
                self.due += results_due(self._source, self._stages, batch)
                if end < due:
                    watermark = int(self.schedule.times(router, end, end + 1)[0]) - 1
        for value in self._encoded(batch, watermark):
            self._writer.write(router, value)
        self._watermark = max(self._watermark, watermark)
        if self.trace:
            self.trace.add(router, watermark, now_us())
        return watermark == frame_us

    def _encoded(self, batch: pa.RecordBatch, watermark: int) -> Iterator[bytes]:
        if self._config.lines:
            yield from lines.encode(batch)
            return
        *pieces, last = frames.cut(batch)
        for piece in pieces:
            yield frames.encode(piece, frames.Facts(epoch=self._config.epoch))
        yield frames.encode(last, frames.Facts(watermark, self._config.epoch))

    def flush(self) -> None:
        """Wait until Kafka has acknowledged everything. Raises ServiceUnavailable if it does not."""
        self._writer.flush()

    def _written(self, router: int, offset: int) -> None:
        if offset > self._next_offset.get(router, offset):
            self._others[router] = offset - 1
        self._next_offset[router] = offset + 1

    def require_newest(self) -> None:
        """Refuse to go on if the generator of a later driver writes into the topic, too: Deposed. Whatever one of an
        earlier driver writes does not count.
        """
        config = self._config
        while self._others and not config.lines:
            router, offset = self._others.popitem()
            epoch = self._topic.facts(router, offset, self._source.schema).epoch
            if epoch > config.epoch:
                said = f"another process offers events to topic {self._topic.name!r} now"
                raise Deposed(f"{said} (epoch {epoch}, ours was {config.epoch})")


def aligned(begin_us: float, frame_us: float, start_us: int) -> float:
    """The moment from which turns are counted, less than a frame behind ``begin_us``, so that one of partition 0 is due
    when the load begins, at ``start_us``.

    Otherwise chance would decide how long all events of a run wait in their frames: with one event in a frame, up to a
    whole frame, which is more than the job takes. If there are fewer events, those of another partition may wait for as
    long as its turn is behind: at 10 events/s for two, in frames of 20 ms, each of partition 1 waits for 10 ms.
    """
    behind_us = start_us + 1  # whoever is due at that very moment is in it, whatever is rounded
    return begin_us + (behind_us - begin_us) % frame_us


def generate(config: GeneratorConfig, commands: CommandLines) -> None:
    """The process: send frames until told to stop. Raises ServiceUnavailable, BadInput."""
    config.topic.require_partitions()
    generator = Generator(config, producer_of(config.topic))
    mine, partitions = generator.routers, config.topic.partitions
    for router in mine:
        generator.send(router, now_us())
    generator.flush()
    say(Ready())

    turn_us = config.frame_ms * 1000 / partitions
    begin_us: float = now_us()
    # Turn n is that of partition n % partitions, and due at begin + n * turn_us; other generators have those between
    # ours. Of turns that are late, each router has only its latest one.
    turn = mine[0]
    pending: dict[int, int] = {}  # routers with something to send, and the time of the frame that ends with it
    report_us, done = begin_us + SECOND_US, False
    while True:
        due_us = begin_us + turn * turn_us
        command = commands.next(timeout_s=0.0 if pending else (due_us - now_us()) / SECOND_US)
        if command is not None:
            if isinstance(command, Stop):
                break
            generator.obey(command, now_us())
            if isinstance(command, SkipEvents):
                say(Ready())  # again: no tick was sent meanwhile
            if isinstance(command, Begin) and generator.schedule:
                begin_us = aligned(begin_us, config.frame_ms * 1000, generator.schedule.start_us)
            continue
        passed_us = now_us()
        if passed_us >= due_us:
            after = max(turn, math.floor((passed_us - begin_us) / turn_us)) + 1
            pending |= {
                each % partitions: round(begin_us + each * turn_us)
                for each in range(max(turn, after - partitions), after)
                if each % partitions in mine
            }
            turn = next(each for each in count(after) if each % partitions in mine)
        pending = {router: at_us for router, at_us in pending.items() if not generator.send(router, at_us)}
        generator.require_newest()
        generator.give_up(passed_us)
        if generator.finished and not done:
            generator.flush()
            done = True
            say(generator.done(now_us()))
        if passed_us >= report_us:
            say(SoFar(generator.events, generator.due))
            report_us += SECOND_US
    generator.flush()
    if not done:
        say(generator.done(now_us()))


if __name__ == "__main__":
    run(GeneratorConfig, generate)
