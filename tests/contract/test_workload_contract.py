"""Every registered workload keeps the promises of ``keyshift.workloads.contract``; a new one needs only PARAMETERS."""

from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field

from keyshift.checks import check_workload
from keyshift.checks.workload import check_moves, draw_frames
from keyshift.model.errors import BadInput, ContractBroken
from keyshift.model.frames import keys_of
from keyshift.model.keys import Assignment
from keyshift.runtime.arrow import ArrowSplit
from keyshift.state import backends
from keyshift.state.timers import Timers
from keyshift.wire.config import slot_schema
from keyshift.workloads import Source, results_due, workloads
from keyshift.workloads.keycount import EVENTS as EVENTS_OF_KEYS
from keyshift.workloads.keycount import KeyCount, KeyCountOperator, KeyCounts, wrong_results
from keyshift.workloads.keyed import Grouped
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount import WindowCount
from keyshift.workloads.windowcount.operator import WindowCountOperator
from keyshift.workloads.wordcount import EVENTS, WordCount, WordCountOperator
from small_run import at_night
from workload_runs import run, verdict, with_sources

# For workloads that have these parameters; one that needs others adds them here under its name.
COMMON = {"key_groups": 8, "bins": 2, "keys": 40, "skew": 0.5, "state_bytes": 64, "seed": 11}
PARAMETERS: dict[str, dict] = {
    # Short enough for a sequential run of a tenth of a second, in which an event of a key comes every 40 ms or so.
    "chain": {"chain": "counter,map,counter"},
    "windowcount": {"window_ms": 20, "delay_ms": 10, "late_share": 0.1, "idle_ms": 15},
    "wordcount": {"words": 40, "window_ms": 20},
    "stock": {"securities": 40, "open_orders": 30, "resting": 4},
    "saas": {"customers": 12, "employees": 6, "spread": 5, "alerts": 3},
    "nexmark": {"query": "q11", "gap_ms": 15, "delay_ms": 5, "session_bids": 3},
}


def make(name, of=None):
    model = of or workloads.get(name)
    common = {parameter: value for parameter, value in COMMON.items() if parameter in model.model_fields}
    return model(**common | PARAMETERS.get(name, {}))


@pytest.fixture(params=workloads.names())
def workload(request):
    return make(request.param)


def offline(workload, **changes):
    return run(workload, (2, 4, 3), **({"frames": 12} | changes))


def of_timers(results: pd.DataFrame) -> pd.Series:
    return (results[["router", "offset", "position"]] == -1).all(axis=1)


TIMED = [name for name in workloads.names() if of_timers(offline(make(name)).results).any()]


@pytest.fixture(params=TIMED)
def timed(request):
    """A workload that has timers."""
    return make(request.param)


def test_it_passes_the_check_that_anybody_can_call(workload):
    check_workload(workload)


@pytest.mark.parametrize("name", workloads.names())
@settings(max_examples=settings.default.max_examples // 4)
@given(chunks=st.lists(st.integers(0, 120), min_size=1, max_size=8), router=st.integers(0, 5))
def test_events_do_not_depend_on_how_many_are_taken_at_once(name, chunks, router):
    times, ends = np.arange(sum(chunks), dtype=np.int64), np.cumsum([0, *chunks])
    for source in make(name).sources:
        whole, partition = source.partition(router).take(times), source.partition(router)
        parts = [partition.take(times[begin:end]) for begin, end in pairwise(ends)]
        assert pa.Table.from_batches(parts) == pa.Table.from_batches([whole])


@pytest.mark.parametrize("name", workloads.names())
@settings(max_examples=settings.default.max_examples // 8)
@given(rng=st.randoms(use_true_random=False))
def test_it_makes_no_difference_whether_units_move_and_whether_their_timers_fire_together(name, rng):
    workload = make(name)
    frames = draw_frames(workload, rng)
    note(f"{frames = }")
    check_moves(workload, frames)


BY_DAY, BY_NIGHT = (zip(cycle(routers), backends.names(), strict=False) for routers in ((1, 3), (3, 1)))


@pytest.mark.parametrize(("routers", "backend"), [*BY_DAY, *(at_night(*each) for each in BY_NIGHT)])
def test_a_run_whose_state_moves_twice_is_judged_ok(workload, backend, routers):
    made = offline(workload, routers=routers, backend=backend)
    found = verdict(workload, made)
    assert found.ok, found.examples


def test_timers_lost_in_a_move_make_the_verdict_bad(timed, monkeypatch):
    install = Timers.install

    def only_how_far(self, batch):
        install(self, batch.filter(pa.array(batch["kind"].to_numpy() < 0)))

    monkeypatch.setattr(Timers, "install", only_how_far)
    made = offline(timed)
    found = verdict(timed, made)
    assert found.wrong > 0
    assert (found.lost, found.duplicated, found.reordered) == (0, 0, 0)


# -- workloads of one's own that do not keep a promise -----------------------------------------------------------------


def with_stage(of, **changes):
    """A workload like another one, with a stage that differs; ``operator`` is made from the workload."""

    class Changed(of):
        @property
        def stages(self):
            stage, *others = super().stages
            given = dict(changes)
            if operator := given.pop("operator", None):
                given["operator"] = lambda: operator(self)
            return (replace(stage, **given), *others)

    return Changed


class Backwards(KeyCountOperator):
    def process(self, events, state_of):
        answer = super().process(events, state_of)
        return answer.take(pa.array(range(answer.num_rows - 1, -1, -1), pa.int64()))


class CountsBesideTheState(KeyCountOperator):
    def process(self, events, state_of):
        answer = super().process(events, state_of)
        seen = []
        for unit in events["unit"].to_pylist():
            state = state_of(unit)
            state.seen = getattr(state, "seen", 0) + 1  # an attribute does not move
            seen.append(state.seen)
        return pa.RecordBatch.from_arrays([*answer.columns[:-1], pa.array(seen, pa.int64())], schema=answer.schema)


class KeepsDictionaries(KeyCountOperator):
    state_schema = pa.schema([("count", pa.int64()), ("payload", pa.dictionary(pa.int8(), pa.binary()))])


class Timeless(WindowCountOperator):
    uses_time = False


class Credulous(KeyCount):
    def wrong(self, events, results, final, times=None):
        return iter(())


class BlindToAField(KeyCount):
    def wrong(self, events, results, final, times=None):
        yield from super().wrong(events, results.assign(stamp=results["count"] - 1), final, times)


class SumsTheState(KeyCount):
    def wrong(self, events, results, final, times=None):
        yield from wrong_results(KeyCounts(events["key"]), results)
        if sum(part["count"].sum() for part in final) != len(events):
            yield "counts do not add up"


class TrustsPayloads(KeyCount):
    """The oracle never looks at a column."""

    def damaged(self, part, counts):
        return np.zeros(len(part), bool)


def that_overlooks(words):
    """An oracle that never says a line with these words."""

    class Overlooks(WindowCount):
        def wrong(self, events, results, final, times=None):
            yield from (line for line in super().wrong(events, results, final, times) if words not in line)

    return Overlooks


class NoSkew(Grouped):
    """As much of a workload as is looked at until it is missed."""

    name: ClassVar[str] = "no_skew"
    summary: ClassVar[str] = "nobody knows how its keys come"


class NoOnly(BaseModel):
    name: ClassVar[str] = "no_only"
    summary: ClassVar[str] = "its parameters are not those of Grouped"
    key_groups: int
    bins: int
    skew: float


class SaysMore(KeyCount):
    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.keys


class SetsOfNames(KeyCount):
    names: Any = Field(default=("a", "b"), description="JSON has no such type")


class Weighted(KeyCount):
    weights: list[float] = Field(default=[1.0, 2.0], description="results have no place for several numbers")


class KeepsItsSlot(KeyCountOperator):
    state_schema = pa.schema([("slot", pa.int64()), ("payload", pa.binary())])


class Suspicious(KeyCount):
    def wrong(self, events, results, final, times=None):
        yield "nobody is to be trusted"


class DrawsByChance(KeyCount):
    @property
    def sources(self):
        [plain] = super().sources
        again = iter(range(1 << 30))  # a partition that is opened twice has other events
        return (replace(plain, partition=lambda router: plain.partition(next(again))),)


def with_source(base, **changes):
    return with_sources(base, lambda plain: [replace(plain, **changes)])


def with_column(name, kind):
    return with_stage(KeyCount, events=EVENTS_OF_KEYS.append(pa.field(name, kind)))


FIRST = pa.field("first", pa.bool_())


def and_strangers(plain):
    return plain, replace(plain, name="others", map=lambda events: events.select(["t", "key"]))


BROKEN = {
    "order": (with_stage(KeyCount, operator=Backwards), "results are of positions"),
    "columns": (with_stage(KeyCount, result_fields=()), "results have columns"),
    "events": (with_stage(KeyCount, events=pa.schema([("t", pa.int64())])), "its events begin with"),
    "name": (with_stage(KeyCount, name="The counter"), "name 'The counter': must be of"),
    "due": (with_stage(KeyCount, due=lambda events: events["key"].to_numpy() % 2 == 0), "results are of positions"),
    "beside the state": (with_stage(KeyCount, operator=CountsBesideTheState), "units that move give other results"),
    "time": (with_stage(WindowCount, operator=Timeless), "there are timers, but no uses_time"),
    "an oracle that says yes": (Credulous, "the state of a unit was lost, and the verdict does not call it wrong"),
    "a blind oracle": (BlindToAField, "the values of stamp were exchanged between results of events, and the verdict"),
    "an oracle that sums": (SumsTheState, "two keys of stage 0 have each other's state, and the verdict does not"),
    "an oracle that trusts": (TrustsPayloads, "two keys of stage 0 have each other's payload in their state, and the"),
    "no timer": (that_overlooks("has no timer"), "a timer is missing in the final state, and the verdict does not"),
    "a timer": (that_overlooks("a timer is set"), "a timer is there that nobody has set in the final state, and the"),
    "no skew": (NoSkew, "no_skew has skew None: must be a number"),
    "no only": (NoOnly, r"no_only has no only\(units\): it may give None"),
    "computed": (SaysMore, "keycount is not made anew of what its model_dump.. gives: unknown key 'twice'"),
    "no JSON": (SetsOfNames, r"names was \('a', 'b'\), and is \['a', 'b'\]"),
    "a list": (Weighted, r"weights = \[1.0, 2.0\]: results tell a number, a text or a truth value of each parameter"),
    "a name of results": (with_stage(KeyCount, result_fields=(FIRST,)), "t has .'first'. already"),
    "a name of states": (with_stage(KeyCount, operator=KeepsItsSlot), "key of a final state has .'slot'. already"),
    "an oracle that says no": (Suspicious, "a run whose state moves twice is judged bad"),
    "map": (with_stage(KeyCount, map=lambda events: events), "its map belongs to the source"),
    "twins": (with_sources(KeyCount, lambda plain: [plain, plain]), "two sources or stages have the same name"),
    "strangers": (with_sources(KeyCount, and_strangers), "slots of stage counter get"),
    "times": (with_source(WindowCount, times=()), "column at of source events moves by .* it belongs to its times"),
    "no times": (with_source(WindowCount, times=("at", "key")), "column key .*, and it is one of its times"),
    "times of t": (with_source(WindowCount, times=("at", "t")), "times .'t'. must be columns beside t"),
    "drawn with": (with_source(KeyCount, drawn_with=("seeds",)), "is drawn with .'seeds'., which are no parameters"),
    "chance": (DrawsByChance, "gives other events if they are taken in other parts"),
    "a column of slots": (with_column("unit", pa.int32()), r"every event has .'unit'. already"),
    "an origin": (with_column("offset", pa.int64()), r"every event has .'offset'. already"),
    "a dictionary": (with_column("kind", pa.dictionary(pa.int8(), pa.string())), "'kind'. of its events are of a dict"),
    "dictionaries kept": (with_stage(KeyCount, operator=KeepsDictionaries), "'payload'. of its state are of a dict"),
}


@pytest.mark.parametrize(("of", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_the_check_says_in_plain_words_what_a_workload_does_not_keep(of, words):
    with pytest.raises(ContractBroken, match=words):
        check_workload(make(of.name, of))


@pytest.mark.parametrize("frames", [0, 1, 3])
def test_too_few_frames_for_all_moves_are_refused(frames):
    with pytest.raises(BadInput, match=f"frames = {frames}: must be at least 4"):
        check_workload(make("keycount"), frames=frames)


# -- a workload whose events do not all have a result ------------------------------------------------------------------


def even(events: pa.RecordBatch):
    return events["key"].to_numpy() % 2 == 0


class CountsAllAnswersEven(KeyCountOperator):
    def process(self, events, state_of):
        return super().process(events, state_of).filter(pa.array(even(events)))


Even = with_stage(KeyCount, operator=CountsAllAnswersEven, due=even)


def test_a_workload_may_answer_some_of_its_events():
    check_workload(make("keycount", Even))
    made = offline(make("keycount", Even))
    assert 0 < len(made.results) < len(made.events)
    assert (made.results["key"] % 2 == 0).all()


def test_a_result_that_is_due_is_lost_if_it_is_missing_and_one_that_is_not_due_is_unexpected():
    workload = make("keycount", Even)
    made = offline(workload)
    missing = verdict(workload, made, results=made.results.drop(index=7))
    assert (missing.lost, missing.unexpected) == (1, 0)
    every = offline(make("keycount"))
    more = verdict(workload, made, results=every.results)
    assert more.unexpected == len(every.results) - len(made.results) > 0
    assert (more.lost, more.wrong, more.duplicated) == (0, 0, 0)


# -- a workload whose events are not those of its source ---------------------------------------------------------------

LINES = pa.schema([pa.field("t", pa.int64()), pa.field("line", pa.string())])
WORDS = ("a", "to", "key", "keys", "state", "moves", "while", "the", "job", "runs")
LONG = 3  # letters of a word that has a result


class LinesOfWords:
    """Of none, one or several words."""

    def __init__(self, seed, router):
        self._random = np.random.default_rng((seed, router))

    def take(self, times):
        lines = [" ".join(self._random.choice(WORDS, self._random.integers(4))) for _ in times]
        return pa.RecordBatch.from_arrays([pa.array(times), pa.array(lines, pa.string())], schema=LINES)


def words_of(lines: pa.RecordBatch) -> pa.RecordBatch:
    pairs = [(t, each) for t, line in zip(*lines.to_pydict().values(), strict=True) for each in line.split()]
    times, words = pa.array([t for t, _ in pairs], pa.int64()), pa.array([each for _, each in pairs], pa.string())
    return pa.RecordBatch.from_arrays([keys_of(words), times, words], schema=EVENTS)


def is_long(events: pa.RecordBatch):
    return pc.greater_equal(pc.utf8_length(events["word"]), LONG).to_numpy(zero_copy_only=False)


class AnswersLongWords(WordCountOperator):
    def process(self, events, state_of):
        return super().process(events, state_of).filter(pa.array(is_long(events)))


class LongWords(with_stage(WordCount, operator=lambda workload: AnswersLongWords(0), due=is_long)):
    @property
    def sources(self):
        return (Source("lines", LINES, lambda router: LinesOfWords(self.seed, router), map=words_of),)


def test_routers_may_make_events_of_another_kind_than_the_sources_with_keys_of_any_type():
    workload = LongWords(key_groups=8, bins=2, seed=5)
    check_workload(workload)
    made = offline(workload)
    per_frame = made.events.groupby(["router", "offset"]).size()
    assert per_frame.max() > 20, "more events than lines"
    assert made.results["word"].str.len().min() >= LONG


def test_a_router_gives_slots_what_was_mapped():
    [source], [stage] = LongWords().sources, LongWords().stages
    lines = pa.RecordBatch.from_pydict({"t": [7, 8, 9], "line": ["keys to keys", "", "state"]}, schema=LINES)
    events = source.mapped(lines)
    assert events["word"].to_pylist() == ["keys", "to", "keys", "state"]
    assert events["t"].to_pylist() == [7, 7, 7, 9]
    assert results_due(source, [stage], lines) == 3
    assert results_due(source, [stage], lines.slice(0, 0)) == 0
    split = ArrowSplit(slot_schema(stage), 2, 8, 2)
    parts = split(events, Assignment.contiguous(16, 2))
    rows = [row for part in parts.values() for row in pa.ipc.read_record_batch(part, slot_schema(stage)).to_pylist()]
    assert sorted((row["position"], row["word"]) for row in rows) == list(enumerate(events["word"].to_pylist()))


# -- a workload with several sources -----------------------------------------------------------------------------------


def test_time_goes_on_only_as_far_as_it_has_come_in_all_sources():
    def two_of_them(plain):
        return plain, replace(plain, name="others", partition=lambda number: plain.partition(number + 10))

    workload = make("windowcount")
    made = offline(make("windowcount", with_sources(WindowCount, two_of_them)), routers=1)
    found = verdict(workload, made)
    assert found.ok, found.examples
    assert of_timers(made.results).any()
    ahead = made.frames.assign(watermark=made.frames["watermark"].where(made.frames["router"] == 0, 0))
    assert Times(ahead, made.timers, made.assignments).least == 0
    assert verdict(workload, made, times=Times(ahead, made.timers, made.assignments)).wrong > 0
