"""What a load costs, from times of CPU and frames that were never measured, and the load that is chosen by it."""

from importlib import metadata
from itertools import product

import numpy as np
import pandas as pd
import pytest

from keyshift.experiment.spec import make_spec
from keyshift.lab.machine import auto_load, load_cost
from keyshift.lab.machine.auto_load import FRAMES_MS, LEAST_RATE, SHARE, chosen, frames_for
from keyshift.lab.machine.load_cost import RATES, LoadCost, cost_of, cost_spec, rows_per_s
from keyshift.lab.machine.sampler import Stretch
from keyshift.model.errors import ServiceUnavailable
from keyshift.results.manifest import describe_machine

AUTO = {"rate": "auto", "frame_ms": "auto"}


def cost(cpus=2, **values):
    same = {"base_cores": 0.04, "row_ms": 1.0, "event_us": 10.0, "others": 0.0}
    machine = describe_machine().model_copy(update={"cpus": cpus})
    return LoadCost(machine=machine, keyshift=metadata.version("keyshift"), **same | values)


def played(row_s, event_s, base_cores, frames_per_s):
    """Parts of a second each, with so many frames, and these frames."""
    rows = rows_per_s(cost_spec(), 1e3) / cost_spec().job.routers
    parts, frames = [], []
    for number, frames_of in enumerate(frames_per_s):
        rate = RATES[number % 2]
        ours_s = base_cores + frames_of * rows * row_s + rate * event_s
        parts.append(Stretch(float(number), number + 1.0, ours_s, 0.5))
        moments = number + (np.arange(frames_of) + 0.5) / frames_of
        frames += [(round(moment * 1e6), rate / frames_of) for moment in moments]
    return parts, pd.DataFrame(frames, columns=["watermark", "events"])


@pytest.mark.parametrize("frames_per_s", [[80] * 4 + [20] * 4, [80, 50, 60, 75, 20, 3, 20, 17]])
def test_rows_events_and_a_job_without_load_are_told_apart_also_where_frames_came_together(frames_per_s):
    found = cost_of(*played(0.0015, 8e-6, 0.05, frames_per_s))
    assert found.base_cores == pytest.approx(0.05)
    assert found.row_ms == pytest.approx(1.5)
    assert found.event_us == pytest.approx(8.0)
    assert found.others == pytest.approx(0.5 / found.machine.cpus)
    assert found.cores(500, 2000) == pytest.approx(0.05 + 0.75 + 0.016)


def test_nothing_costs_less_than_nothing():
    parts, frames = played(0.0015, 0.0, 0.0, [80] * 4 + [20] * 4)
    parts[1] = parts[1]._replace(ours_s=parts[1].ours_s * 0.9)
    found = cost_of(parts, frames)
    assert found.event_us == 0
    assert 1.4 < found.row_ms < 1.5


def test_a_machine_on_which_no_frames_came_says_so():
    parts, frames = played(0.0015, 8e-6, 0.05, [80] * 4 + [20] * 4)
    with pytest.raises(ServiceUnavailable, match="too busy"):
        cost_of(parts, frames[frames["watermark"] > 1e6])


@pytest.mark.parametrize(
    ("values", "per_frame"),
    [
        ({"routers": 1, "slots": 2, "to_slots": 2}, 1 + 2),
        ({"routers": 2, "slots": 2, "to_slots": 4}, 2 + 2 * 4),
        ({"routers": 2, "slots": 2, "to_slots": 3, "workload": "chain", "stage": "all"}, 2 + 2 * 3 + 3 * 3),
    ],
)
def test_rows_are_those_of_routers_and_of_the_slots_of_each_stage(values, per_frame):
    assert rows_per_s(make_spec(values), 20.0) == 50 * per_frame


def test_costs_are_kept_for_this_machine_and_this_version(tmp_path):
    assert load_cost.kept_cost(tmp_path) is None
    here = cost(describe_machine().cpus)
    load_cost.keep(here, tmp_path)
    assert load_cost.kept_cost(tmp_path) == here
    for other in ({"keyshift": "0.0.1"}, {"machine": here.machine.model_copy(update={"cpu": "another"})}):
        load_cost.keep(here.model_copy(update=other), tmp_path)
        assert load_cost.kept_cost(tmp_path) is None
    load_cost.keep(here, tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text("{}")
    assert load_cost.kept_cost(tmp_path) is None


@pytest.mark.parametrize(
    ("cpus", "row_ms", "event_us"), list(product([1, 2, 4], [0.5, 1.0, 2.0, 4.0], [0.0, 5.0, 30.0, 200.0]))
)
def test_at_most_half_of_the_processors_are_taken_or_the_line_says_so(cpus, row_ms, event_us):
    measured = cost(cpus, row_ms=row_ms, event_us=event_us)
    load = chosen([make_spec(AUTO)], measured)
    assert LEAST_RATE <= load.rate <= 2000 and FRAMES_MS[0] <= load.frame_ms <= FRAMES_MS[-1]
    assert load.cores == pytest.approx(measured.cores(rows_per_s(make_spec({}), load.frame_ms), load.rate))
    assert (load.cores <= SHARE * cpus) == ("more than the half" not in load.words(measured))
    if load.cores > SHARE * cpus:
        assert load.frame_ms == FRAMES_MS[-1], "nothing less could be chosen"


@pytest.mark.parametrize(
    ("given", "measured", "expected"),
    [
        (AUTO, cost(row_ms=0.5), (2000.0, 20.0)),  # the default, and no more
        (AUTO, cost(cpus=64, row_ms=0.01, event_us=0.0), (2000.0, 20.0)),
        (AUTO | {"rate": 9000.0}, cost(), (9000.0, 20.0)),
        (AUTO | {"rate": 9000.0}, cost(row_ms=2.0), (9000.0, 25.0)),
        (AUTO | {"frame_ms": 20.0}, cost(row_ms=1.9), (1000.0, 20.0)),
        (AUTO | {"frame_ms": 20.0}, cost(row_ms=5.0), (LEAST_RATE, 20.0)),
        (AUTO | {"frame_ms": 100.0}, cost(row_ms=5.0), (2000.0, 100.0)),
    ],
)
def test_what_is_given_stays_and_the_other_is_chosen_for_it(given, measured, expected):
    assert chosen([make_spec(given)], measured)[:2] == expected


def test_several_runs_have_the_load_that_the_dearest_of_them_can_have():
    measured = cost(row_ms=1.5)
    small, large = make_spec(AUTO), make_spec(AUTO | {"to_slots": 12})
    alone, dear = chosen([small], measured), chosen([large], measured)
    assert alone.frame_ms < dear.frame_ms
    assert chosen([small, large], measured) == dear


def test_an_event_that_computes_more_counts_for_more(monkeypatch):
    monkeypatch.setattr(auto_load, "more_cpu_us", lambda workload, than: 500.0 * (workload.name != than.name))
    few = chosen([make_spec(AUTO | {"workload": "windowcount"})], cost())
    assert few.rate < chosen([make_spec(AUTO)], cost()).rate == 2000


def test_what_another_run_was_given_is_not_chosen():
    open_one = make_spec(AUTO)
    few, long = make_spec(AUTO | {"rate": 250.0}), make_spec(AUTO | {"frame_ms": 200.0})
    assert chosen([open_one, few, long], cost(row_ms=0.5))[:2] == chosen([open_one], cost(row_ms=0.5))[:2]


def test_frames_are_no_longer_than_the_epochs_of_an_order():
    measured = cost(cpus=1, row_ms=4.0)
    free, ordered = make_spec(AUTO), make_spec(AUTO | {"ordering": "live_robin", "heartbeat_ms": 60.0})
    assert chosen([free], measured).frame_ms > 60
    for specs in ([ordered], [free, ordered]):
        load = chosen(specs, measured)
        assert load.frame_ms == 60
        assert [spec.settled(rate=load.rate, frame_ms=load.frame_ms) for spec in specs]


def test_frames_make_no_more_rows_than_a_run_may_have_whatever_they_cost():
    few, many, most = (make_spec(AUTO | {"routers": routers, "to_slots": 16}) for routers in (1, 8, 64))
    cheap = cost(cpus=64, row_ms=0.01)
    assert chosen([few], cheap).frame_ms == 20
    for specs in ([many], [few, many]):
        load = chosen(specs, cheap)
        assert load.frame_ms == 40, "128 rows each time"
        assert [spec.settled(rate=load.rate, frame_ms=load.frame_ms) for spec in specs]
    assert frames_for([most]) == [200], "which are too many, too"


def test_what_an_event_waits_takes_its_slot_and_no_processor():
    def rate(**work):
        return chosen([make_spec(AUTO | work)], cost()).rate

    assert rate(work_us=400.0, work_by="spinning") < rate(work_us=400.0, work_by="waiting") == 2000
    assert rate(work_us=2000.0, work_by="waiting") < 1e6 / 2000 * 2, "more than two slots can"


def test_the_largest_of_several_rates_counts():
    steps = {"rate": 2000.0, "frame_ms": "auto", "rate_steps": "5:40000,9:100"}
    assert chosen([make_spec(steps)], cost())[1:] == chosen([make_spec({"rate": 4e4, "frame_ms": "auto"})], cost())[1:]
    one, other = (
        chosen([make_spec({"workload": "saas", "frame_ms": "auto", "rates": rates, "rate_steps": steps})], cost())
        for rates, steps in (("control:5", "control=3:40000"), ("control:40000", ""))
    )
    assert one == other
