"""What goes into a job: the topics of its sources, as one input whose routers are numbered through.

The routers of a source come behind those of the sources before it; its partition 0 is read by the first of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from keyshift.traffic import lines
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.topics import OfferedSoFar, Topic
from keyshift.workloads import Source, Workload


class SourceInput(NamedTuple):
    """The events of ``source`` are in ``topic``, and ``first`` is the router of its partition 0."""

    source: Source
    topic: Topic
    first: int


class Inputs:
    """The inputs of a workload, with the topic of each of its sources, in their order."""

    def __init__(self, workload: Workload, topics: Sequence[Topic]) -> None:
        self.all: list[SourceInput] = []
        self._stages, first = workload.stages, 0
        for source, topic in zip(workload.sources, topics, strict=True):
            self.all.append(SourceInput(source, topic, first))
            first += topic.partitions

    def shares(self, loads: Sequence[SourceLoad]) -> Iterator[tuple[SourceInput, SourceLoad, list[int]]]:
        """Give what each generator offers: its source, the load of that, and the partitions which it alone writes.

        ``loads``: of each source. No generator is without a partition, so there may be fewer than ``injectors``.
        """
        for each, load in zip(self.all, loads, strict=True):
            injectors = min(load.injectors, each.topic.partitions)
            for number in range(injectors):
                yield each, load, list(range(each.topic.partitions))[number::injectors]

    def extents(self) -> dict[int, tuple[Topic, int, int, int]]:
        """For each router its topic and partition; the offsets of the oldest record that is still there, and of the
        next one.
        """
        return {
            each.first + partition: (each.topic, partition, *extent)
            for each in self.all
            for partition, extent in sorted(each.topic.extents().items())
        }

    def require_whole(self) -> None:
        """Refuse topics in which not all is still there: NotThere. Results of what is gone would count as wrong."""
        for each in self.all:
            each.topic.require_whole()

    def read(self, before: Mapping[int, int] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """All events as the first stage gets them, and all frames; see ``Topic.read``."""
        stage, *_ = self._stages
        found = [each.topic.read(each.source, before, stage, each.first) for each in self.all]
        if len(found) == 1:
            return found[0]
        events, frames = (pd.concat(tables, ignore_index=True) for tables in zip(*found, strict=True))
        return events, frames

    def portions(self, before: Mapping[int, int] | None = None) -> Iterator[tuple[pa.Table, pd.DataFrame]]:
        """The same, some of one router at a time; see ``Topic.portions``."""
        stage, *_ = self._stages
        for each in self.all:
            yield from each.topic.portions(each.source, before, stage, each.first)

    def read_lines(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """All events and their records, of one source; see ``traffic.lines``."""
        [only] = self.all
        return lines.read(only.topic, only.source.schema)

    def count(self) -> OfferedSoFar:
        """Count what was offered, in little memory; see ``Topic.count``."""
        found = [each.topic.count(each.source, self._stages) for each in self.all]
        events = [events for offered in found for events in offered.events]
        epochs = tuple(epochs for offered in found for epochs in offered.epochs)
        return OfferedSoFar(events, sum(offered.due for offered in found), epochs)
