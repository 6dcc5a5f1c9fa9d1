"""The generator process: frames of events into Kafka on a fixed schedule, whatever the job does with them.

Each partition belongs to one router and gets one frame every ``frame_ms`` from the beginning: ticks before and after
the load, so that routers always have a row to run on. The partitions take turns, so that a slot gets its rows evenly
spaced. An event carries the time it was *scheduled*; a process that is late sends all that is due as fast as it can,
with the scheduled times, so no latency is hidden (no coordinated omission). It may be too slow for the rate, or Kafka
may be: then it is late, and no more than that. With ``lines`` each event of a frame is a record of its own, sent when
the frame is due, and there are no ticks. Frames and what is on its way to Kafka are bounded, and ``OVERTIME_S``
after the load has ended, what is left of it is never offered.

``traffic.messages`` has what it is told and says.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Producer
from pydantic import Field

from keyshift.clock import SECOND_US, now_us
from keyshift.model import frames
from keyshift.model.errors import BadInput, Deposed
from keyshift.trace import Trace
from keyshift.traffic import lines
from keyshift.traffic.entry import CommandLines, TrafficConfig, run
from keyshift.traffic.messages import Begin, EndLoad, LoadDone, OfLoad, Ready, SetRate, SkipEvents, SoFar, Stop
from keyshift.traffic.process import say
from keyshift.traffic.writer import Writer, connect
from keyshift.workloads import Partition, results_due

OVERTIME_S = 3.0  # to send what is late at the end of the load: a pause is made good, a rate that is too high is not
TAKE_EVENTS = 1 << 14  # made at once, by one router: as many as make about one frame


class GeneratorConfig(TrafficConfig):
    """What the generator is told first: of events, whose topic has a partition for each router."""

    rate: float = Field(gt=0, description="events per second, all routers together")
    rate_steps: list[tuple[float, float]] = Field(
        default=[], description="seconds since the start of the load, ascending, and the events per second from then on"
    )
    frame_ms: float = Field(gt=0, description="time between frames, per partition")
    epoch: int = Field(default=frames.FIRST_EPOCH, ge=frames.FIRST_EPOCH, description="of its driver")


class Schedule:
    """When each event is due: event i of router r is the (i * routers + r)-th of all, which come at equal distances as
    long as the rate is the same: ``rate``, and from each of ``steps`` (seconds since the start) on another. Without
    ``seconds`` there is no end until ``end`` says one.
    """

    def __init__(
        self, start_us: int, seconds: float | None, rate: float, routers: int, steps: Sequence[tuple[float, float]] = ()
    ) -> None:
        self.start_us = start_us
        self._routers = routers
        begins, rates = zip((0.0, rate), *steps, strict=True)
        self._begins_us, self._rates = np.array(begins) * SECOND_US, np.array(rates)  # of each stretch, since the start
        self._before = np.append(0.0, np.cumsum(np.diff(begins) * self._rates[:-1]))  # events before each stretch
        self.end_us: float = math.inf
        self.total: list[float] = [math.inf] * routers
        if seconds is not None:
            whole = self._before[-1] + (seconds - begins[-1]) * rates[-1]
            self._end(start_us + round(seconds * SECOND_US), whole)

    def _end(self, end_us: int, whole: float) -> None:
        self.end_us = end_us
        self.total = [max(0, math.ceil((whole - router) / self._routers)) for router in range(self._routers)]

    def end(self, at_us: int) -> None:
        """The load is over at ``at_us``; what is due by then is still of it."""
        self._end(at_us, self._events(at_us - self.start_us))

    def change(self, at_us: int, rate: float) -> None:
        """From ``at_us`` on events come at ``rate``, whatever was planned for later. Nothing before that changes."""
        passed_us = max(0, at_us - self.start_us)
        events, kept = self._events(passed_us), self._begins_us < passed_us
        self._begins_us = np.append(self._begins_us[kept], passed_us)
        self._rates = np.append(self._rates[kept], rate)
        self._before = np.append(self._before[kept], events)

    def _events(self, passed_us: float) -> float:
        """How many events, not rounded, all routers together have until so long after the start."""
        stretch = max(0, int(np.searchsorted(self._begins_us, passed_us, side="right")) - 1)
        if not self._rates[stretch]:  # an event that is due just when a pause begins comes behind the pause
            return float(np.nextafter(self._before[stretch], 0.0))
        since_us = passed_us - self._begins_us[stretch]
        return float(self._before[stretch] + since_us * self._rates[stretch] / SECOND_US)

    def due(self, router: int, now_us: int) -> int:
        """How many events of ``router`` are due at ``now_us``, since the start."""
        passed = self._events(now_us - self.start_us)
        return int(min(self.total[router], max(0, math.floor((passed - router) / self._routers) + 1)))

    def times(self, router: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Microseconds since the epoch at which events ``begin`` to ``end - 1`` of ``router`` are due."""
        numbers = np.arange(begin, end, dtype=np.int64) * self._routers + router
        stretch = np.searchsorted(self._before, numbers, side="right") - 1
        since_us = (numbers - self._before[stretch]) * SECOND_US / self._rates[stretch]
        return self.start_us + (self._begins_us[stretch] + since_us).astype(np.int64)


class Generator:
    """Sends the frames of all routers; ``send`` is told what time it is, and never asks."""

    def __init__(self, config: GeneratorConfig, producer: Producer) -> None:
        workload = config.make_workload()
        [source], self._stages = workload.sources, workload.stages
        self._config, self._topic, self._schema = config, config.topic, source.schema
        routers = range(self._topic.partitions)
        self._empty = frames.empty(source.schema)
        self._partitions: list[Partition] = [source.partition(router) for router in routers]
        self._next_offset: dict[int, int] = {}  # of each router's partition, if nobody else writes there
        self._others: dict[int, int] = {}  # routers, and the offset of what somebody else has written there last
        self._sent = [0 for _ in routers]
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
        return sum(self._sent)

    @property
    def finished(self) -> bool:
        """Whether there was a load and all of it was sent, or given up."""
        return self.schedule is not None and self._sent == self.schedule.total

    def late_us(self, now_us: int) -> int:
        """How long ago the oldest event that is not sent was due; not more than 0 if none is left behind."""
        schedule = self.schedule
        if schedule is None or self.finished:
            return 0
        left = [(router, sent) for router, sent in enumerate(self._sent) if sent < schedule.due(router, now_us)]
        return max((now_us - int(schedule.times(router, sent, sent + 1)[0]) for router, sent in left), default=0)

    def give_up(self, now_us: int) -> None:
        """What is not sent ``OVERTIME_S`` after the end of the load, or after it was told to start, never is."""
        ends = self.schedule is not None and self.schedule.end_us < math.inf
        if self.schedule is not None and ends and now_us > self._last_us + OVERTIME_S * SECOND_US:
            self.schedule.total = list(map(float, self._sent))

    def done(self, now_us: int) -> LoadDone:
        """What is said when the load is over."""
        took_us = now_us - self.schedule.start_us if self.schedule is not None else 0
        return LoadDone(self.events, self._planned, self.due, took_us / SECOND_US)

    def obey(self, command: OfLoad, now_us: int) -> None:
        """Plan the load, change its rate, or end it. Raises BadInput for a command that is not for now."""
        schedule = self.schedule
        match command:
            case SkipEvents(skipped) if schedule is None:
                for partition, events in zip(self._partitions, skipped, strict=True):
                    for begin in range(0, events, TAKE_EVENTS):
                        partition.take(np.zeros(min(TAKE_EVENTS, events - begin), np.int64))
                return
            case Begin(start_us, seconds) if schedule is None:
                config = self._config
                start_us = max(start_us, self._watermark + 1)  # or the first events would be late, if this comes late
                schedule = Schedule(start_us, seconds, config.rate, len(self._sent), config.rate_steps)
                self.schedule = schedule
            case SetRate(rate) if schedule is not None and schedule.end_us == math.inf and rate > 0:
                schedule.change(now_us, rate)
            case EndLoad() if schedule is not None and schedule.end_us == math.inf:
                schedule.end(now_us)
                schedule.total = [max(pair) for pair in zip(schedule.total, self._sent, strict=True)]
            case _:
                raise BadInput(
                    f"generator command {command}: SkipEvents and Begin come once each, in this order; then, while the "
                    "load has no end, SetRate with a rate above 0, or EndLoad"
                )
        assert schedule is not None
        if schedule.end_us < math.inf:
            self._last_us = max(int(schedule.end_us), now_us)
            self._planned = int(sum(schedule.total))

    def send(self, router: int, frame_us: int) -> bool:
        """Events of ``router`` that are due at ``frame_us``, or a tick. False if more of them are left for other calls.

        The watermark is ``frame_us`` or, if some are left, before the first of them, and only the last frame has it: no
        event is late for having been cut off. Waits until there is room on the way to Kafka. Raises ServiceUnavailable
        if any send failed.
        """
        batch, watermark = self._empty, frame_us
        if self.schedule is not None:
            sent, due = self._sent[router], self.schedule.due(router, frame_us)
            if due > sent:
                end = min(due, sent + TAKE_EVENTS)
                batch = self._partitions[router].take(self.schedule.times(router, sent, end))
                self._sent[router] = end
                self.due += results_due(self._stages, batch)
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
        """Raises Deposed if the generator of a later driver writes into the topic, too; whatever one of an earlier
        driver writes does not count.
        """
        config = self._config
        while self._others and not config.lines:
            router, offset = self._others.popitem()
            epoch = self._topic.facts(router, offset, self._schema).epoch
            if epoch > config.epoch:
                said = f"another process offers events to topic {self._topic.name!r} now"
                raise Deposed(f"{said} (epoch {epoch}, ours was {config.epoch})")


def generate(config: GeneratorConfig, commands: CommandLines) -> None:
    """The process: send frames until told to stop. Raises ServiceUnavailable, BadInput."""
    topic, routers = config.topic, config.topic.partitions
    topic.require_partitions()
    generator = Generator(config, connect(topic))
    for router in range(routers):
        generator.send(router, now_us())
    generator.flush()
    say(Ready())

    turn_us = config.frame_ms * 1000 / routers
    begin_us = now_us()
    turn = 0  # turn n is due at begin + n * turn_us; of turns that are late, each router has only its latest one
    pending: dict[int, int] = {}  # routers with something to send, and the time of the frame that ends with it
    late_us, report_us, done = 0.0, begin_us + SECOND_US, False
    while True:
        due_us = begin_us + turn * turn_us
        command = commands.next(timeout_s=0.0 if pending else (due_us - now_us()) / SECOND_US)
        if command is not None:
            if isinstance(command, Stop):
                break
            generator.obey(command, now_us())
            continue
        passed_us = now_us()
        if passed_us >= due_us:
            late_us = max(late_us, passed_us - due_us)
            after = max(turn, math.floor((passed_us - begin_us) / turn_us)) + 1
            pending |= {
                each % routers: round(begin_us + each * turn_us) for each in range(max(turn, after - routers), after)
            }
            turn = after
        pending = {router: at_us for router, at_us in pending.items() if not generator.send(router, at_us)}
        generator.require_newest()
        late_us = max(late_us, generator.late_us(passed_us))
        generator.give_up(passed_us)
        if generator.finished and not done:
            generator.flush()
            done = True
            say(generator.done(now_us()))
        if passed_us >= report_us:
            say(SoFar(generator.events, generator.due, round(late_us / 1000, 3)))
            late_us, report_us = 0.0, report_us + SECOND_US
    generator.flush()
    if not done:
        say(generator.done(now_us()))


if __name__ == "__main__":
    run(GeneratorConfig, generate)
