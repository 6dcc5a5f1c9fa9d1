import pytest
from pydantic import Field

from keyshift.forecast import cost
from keyshift.forecast.cost import cpu_us_per_event, event_cpu_us, event_us, more_cpu_us
from keyshift.workloads import workloads
from keyshift.workloads.alone import StageAlone
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.keyed import Grouped
from keyshift.workloads.nexmark import Nexmark


@pytest.fixture
def clock(monkeypatch):
    """A clock of CPU time that shows 1 ms more whenever it is read."""
    reads = []

    def read():
        reads.append(0)
        return len(reads) * 1_000_000

    monkeypatch.setattr(cost.time, "process_time_ns", read)
    return reads


@pytest.mark.parametrize("name", workloads.names())
def test_the_cost_of_an_event_is_the_cpu_time_of_the_second_half_by_its_events(name, clock):
    assert cpu_us_per_event(workloads.get(name)(key_groups=8), frames=4, events_per_frame=50) == 2 * 1000 / 100
    assert len(clock) == 2 + 4


@pytest.mark.parametrize("query", ["q5", "q4"])
def test_rows_of_timers_reach_the_last_stage(query, monkeypatch):
    workload = Nexmark(key_groups=8, query=query, window_ms=40, slide_ms=20, delay_ms=5, auction_ms=20)
    seen = []
    process = StageAlone.process

    def watched(alone, events):
        results = process(alone, events)
        if alone.stage is workload.stages[-1]:
            seen.append(results)
        return results

    monkeypatch.setattr(StageAlone, "process", watched)
    assert cpu_us_per_event(workload, frames=8) > 0
    assert sum(result["kind"].to_pylist().count(1) for result in seen) > 5


@pytest.fixture
def measured(monkeypatch):
    """The workloads that are measured: an event takes 5 µs, and 7 with 17 keys. What is measured is kept for the whole
    process: were something below that replaced, other tests would get what this one has measured.
    """
    found = []
    costs = lambda workload: found.append(workload) or (7.0 if workload.keys == 17 else 5.0)  # noqa: E731
    monkeypatch.setattr(cost, "_computation_us", costs)
    return found


@pytest.mark.parametrize(
    ("state_bytes", "keys"), [(1024, 4096), (16 << 10, 4096), (1 << 20, 64), (4 << 20, 16), (1 << 26, 1)]
)
def test_an_event_is_measured_with_64_mib_of_payloads_at_the_most(state_bytes, keys, measured):
    assert event_us(KeyCount(keys=20_000, key_groups=2048, state_bytes=state_bytes)) == 5.0
    assert [each.keys for each in measured] == [keys]


class Plain(Grouped):
    keys: int = Field(default=9000, ge=5000)
    state_bytes: int = 0
    work_us: float = Field(default=7.0, gt=0)


class ManyKeys(KeyCount):
    keys: int = Field(default=9000, ge=5000)


@pytest.mark.parametrize(
    ("own", "alone", "cost_us"), [(Plain(), Plain(), 5.0), (ManyKeys(work_us=500), ManyKeys(work_us=0), 505.0)]
)
def test_parameters_of_ones_own_stay_unless_less_of_them_is_possible(own, alone, cost_us, measured):
    assert event_us(own) == cost_us
    assert measured == [alone]


@pytest.mark.parametrize(("by", "cpu_us"), [("waiting", 5.0), ("spinning", 505.0)])
@pytest.mark.usefixtures("measured")
def test_an_event_that_waits_takes_its_slot_and_no_core(by, cpu_us):
    workload = KeyCount(work_us=500, work_by=by)
    assert (event_us(workload), event_cpu_us(workload)) == (505.0, cpu_us)


def test_what_computes_the_same_is_not_measured_to_be_compared(measured):
    many, few = KeyCount(keys=50_000, seed=3), KeyCount(keys=17, seed=3)
    assert (more_cpu_us(few, many), more_cpu_us(many, few)) == (2.0, 0.0)
    assert {*measured} == {KeyCount(keys=17, seed=1), KeyCount(keys=4096, seed=1)}
    measured.clear()
    assert more_cpu_us(many, KeyCount(keys=9000)) == 0.0
    work = {"work_by": "spinning", "keys": 9000}
    assert more_cpu_us(KeyCount(work_us=500, **work), KeyCount(**work)) == 500.0 and not measured
