"""Chain: events go through several keyed stages, each of which gives them another key. Stages count, or only pass on.

What a chain of stages costs, and whether each of its stages can move its state while the others go on.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from keyshift.registry import by_name
from keyshift.workloads.contract import ORIGIN_NAMES, KeyedStage, Operator
from keyshift.workloads.keycount import EVENTS, RESULT_FIELDS, KeyCount, KeyCounts, StateCheck, wrong_results
from keyshift.workloads.operators import MapOperator, Work
from keyshift.workloads.tables import RESULT, lines
from keyshift.workloads.times import Times

MOST, MOST_WORK_US = 4, 1e6
_STRIDE = 7919  # how far apart neighbouring keys of a stage are in the next one, about


class Chain(KeyCount):
    """Parameters of the workload. Every key exists from the beginning in each counter, with count 0.

    ``work_us`` is for each event in each counter, ``stage_work_us`` in one stage; maps have no other work.
    """

    name: ClassVar[str] = "chain"
    summary: ClassVar[str] = (
        "several keyed stages, each with another key for every event: counters, and maps without state"
    )

    chain: str = Field(default="counter,counter", description="one to four keyed stages: counter or map, with commas")

    stage_work_us: str = Field(
        default="", description="other microseconds of work for each event, by stage, maps too: map:50,counter:200"
    )

    @field_validator("chain")
    @classmethod
    def _known(cls, chain: str) -> str:
        kinds = chain.split(",")
        if not 1 <= len(kinds) <= MOST or set(kinds) - {"counter", "map"}:
            raise ValueError(f"must be one to {MOST} of counter and map, with commas between them")
        return chain

    @model_validator(mode="after")
    def _known_works(self) -> Self:
        _ = self.works
        return self

    @property
    def works(self) -> dict[str, float]:
        """Microseconds for which an event occupies its slot, of each stage by its name. Raises BadInput."""
        of_kind = {"map": 0.0, "counter": self.work_us}
        works = {name: of_kind[kind] for name, kind in zip(self._names, self.kinds, strict=True)}
        what = f"a number of microseconds from 0 to {MOST_WORK_US:g}, e.g. {self._names[-1]}:100"
        given = by_name("stage_work_us", self.stage_work_us, "stage", list(works), float, 0, MOST_WORK_US, what)
        return works | given

    @property
    def told_us(self) -> float:
        """See ``KeyCount``."""
        return sum(self.works.values())

    @property
    def kinds(self) -> list[str]:
        """``counter`` or ``map``, of each stage."""
        return self.chain.split(",")

    @cached_property
    def stages(self) -> tuple[KeyedStage, ...]:  # type: ignore[override]
        """The counters and maps, numbered where there are several of a kind."""
        stages = []
        for number, (kind, (name, us)) in enumerate(zip(self.kinds, self.works.items(), strict=True)):
            operator: Callable[[], Operator] = partial(self.counter, us)
            if kind == "map":
                operator = partial(MapOperator, work=Work(us, self.work_by))
            fields = () if kind == "map" else RESULT_FIELDS
            stages.append(KeyedStage(name, EVENTS, fields, operator, self._rekeyed if number else None))
        return tuple(stages)

    @property
    def _names(self) -> list[str]:
        several, seen = Counter(self.kinds), Counter[str]()
        names = []
        for kind in self.kinds:
            seen[kind] += 1
            names.append(kind if several[kind] == 1 else f"{kind}-{seen[kind]}")
        return names

    @cached_property
    def _factor(self) -> int:
        return next(each for each in range(_STRIDE, _STRIDE + self.keys + 1) if math.gcd(each, self.keys) == 1)

    def key_at(self, stage: int, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The key at the ``stage``-th stage of events with these keys at the first: other keys stay other keys."""
        for _ in range(stage):
            keys = (keys * self._factor + 1) % self.keys
        return keys

    def _rekeyed(self, results: pa.RecordBatch) -> pa.RecordBatch:
        return results.set_column(0, "key", pa.array(self.key_at(1, results["key"].to_numpy())))

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``. The events tell what must come out, not the code of the operators.

        Each counter has seen each event once, so its counts are those of its keys among all events. Events of one key
        are of one key at every stage, and keep the order of each router.
        """
        kinds, keys = self.kinds, events["key"].to_numpy()
        at_stage = [self.key_at(stage, keys) for stage in range(len(kinds))]
        counts = [KeyCounts(each) for each in at_stage]
        both = results[[*ORIGIN_NAMES, "key"]].merge(
            events[ORIGIN_NAMES].assign(expected=at_stage[-1]), on=ORIGIN_NAMES
        )
        yield from lines(both, both["key"] != both["expected"], RESULT + ": key {key}, expected {expected}")
        if kinds[-1] == "counter":
            yield from wrong_results(counts[-1], results)
        checks = {stage: StateCheck(self, counts[stage]) for stage, kind in enumerate(kinds) if kind == "counter"}
        for part in final:
            for stage in np.unique(part["stage"].to_numpy()).tolist():
                rows = part[part["stage"] == stage]
                if stage in checks:
                    yield from (f"stage {stage + 1}: {line}" for line in checks[stage].wrong(rows))
                else:
                    yield f"stage {stage + 1}: there are {len(rows)} keys in the final state of a stage without state"
        for stage, check in checks.items():
            yield from (f"stage {stage + 1}: {line}" for line in check.missing())
