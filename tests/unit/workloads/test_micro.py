import numpy as np
import pytest
from pydantic import ValidationError

from keyshift.model.keys import units_of
from keyshift.workloads import keyed
from keyshift.workloads.micro import Micro
from workload_runs import run, wrong

SECOND_US = 1_000_000


def make(**changes) -> Micro:
    plain = {"key_groups": 8, "keys": 60, "state_bytes": 24, "seed": 3, "active_share": 0.25}
    return Micro(**(plain | changes))


def taken(workload, times, router=0):
    return workload.sources[0].partition(router).take(np.asarray(times, np.int64))


def written(workload, second, router=0):
    """The key groups that are written, and those that are read, in one second."""
    events = taken(workload, second * SECOND_US + np.arange(3000), router)
    groups = units_of(events["key"].to_numpy(), workload.key_groups)
    writes = events["writes"].to_numpy(zero_copy_only=False)
    return set(groups[writes].tolist()), set(groups[~writes].tolist())


@pytest.mark.parametrize("share, active", [(0.25, 2), (1.0, 8), (0.001, 1)])
def test_in_each_second_a_share_of_the_key_groups_is_written_and_the_others_are_read(share, active):
    workload = make(active_share=share)
    for second in range(4):
        writes, reads = written(workload, second)
        assert (len(writes), len(reads)) == (active, 8 - active)
        assert not writes & reads
        assert written(workload, second, router=1)[0] == writes, "all routers agree"


def test_every_key_group_has_its_turn():
    workload = make(skew=0.0)
    turns = [written(workload, second)[0] for second in range(4)]
    assert set.union(*turns) == set(range(8))
    assert sum(map(len, turns)) == 8


def test_behind_a_number_of_events_keys_follow_another_skew():
    workload = make(skew=0.0, later_events=20_000, later_skew=2.0)
    groups = units_of(taken(workload, np.zeros(40_000))["key"].to_numpy(), 8)
    before, after = (np.bincount(part, minlength=8) / 20_000 for part in (groups[:20_000], groups[20_000:]))
    weights = 1 / np.arange(1, 9) ** 2.0
    assert before == pytest.approx(np.full(8, 1 / 8), rel=0.1)
    assert after == pytest.approx(weights / weights.sum(), rel=0.15)


def test_a_router_makes_ready_to_draw_with_another_skew_only_if_it_comes_to_that(monkeypatch):
    made, real = [], keyed.KeyDraw
    monkeypatch.setattr(keyed, "KeyDraw", lambda *given: made.append(given) or real(*given))
    make().sources[0].partition(0)
    assert len(made) == 1
    make(later_events=5).sources[0].partition(0)
    assert len(made) == 3
    assert make(exist="once used", skew=0).later_events == 0
    with pytest.raises(ValidationError, match="later_events = 500: must be 0 with exist = once used, where keys come"):
        make(exist="once used", skew=0, later_events=500)


@pytest.mark.parametrize("routers", [1, 3])
def test_only_events_that_write_change_anything(routers):
    made = run(make(), routers=routers)
    assert wrong(make(), made) == []
    left = sum(part["count"].sum() for part in made.final)
    assert 0 < left == made.events["writes"].sum() < len(made.events)


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("column, by", [("count", 1), ("stamp", 1), ("count", -1), ("count", 10**9)])
def test_a_result_with_another_count_or_stamp_is_wrong(writes, column, by):
    workload = make()
    made = run(workload)
    of = made.results.merge(made.events[["router", "offset", "position", "writes"]])
    row = of.index[of["writes"] == writes][3]
    made.results.loc[row, column] += by
    where = made.results.loc[row]
    found = wrong(workload, made)
    assert any(f"router {where.router} offset {where.offset} position {where.position}" in line for line in found)


def test_a_read_or_a_write_that_falls_behind_the_other_of_its_router_is_wrong():
    workload = make(keys=1, key_groups=1, active_share=1.0)
    made = run(workload, (1,), routers=1)
    last = made.results.index[-1]
    made.events.loc[made.events.index[-1], "writes"] = False
    made.results.loc[last, ["count", "stamp"]] = 3
    assert any("had left behind" in line for line in wrong(workload, made))
    workload = make(keys=1, key_groups=1, active_share=1.0)
    made = run(workload, (1,), routers=2, frames=2, events_per_frame=1)
    made.events["writes"] = (made.events["router"] == 1) | (made.events["offset"] == 1)
    made.results[["count", "stamp"]] = [[1, 1], [2, 1], [1, 0], [3, 2]]  # in the order of routers
    assert made.results[["router", "offset"]].to_numpy().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    [line] = workload.wrong_results(made.events, made.results)
    assert line.startswith("result of router 0 offset 1 position 0") and "count 1, which its router had" in line
    made.results.loc[[1, 2], ["count", "stamp"]] = [[1, 0], [2, 1]]  # the write that was read came first
    assert [*workload.wrong_results(made.events, made.results)] == []
