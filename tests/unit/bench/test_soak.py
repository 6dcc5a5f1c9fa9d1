"""A soak: what is drawn, what is reported, and that it passes or not; the job and its processes are stand-ins."""

import contextlib
import json
import math
import os
from itertools import count, pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
import small_store
import typer

from bench.soak import __main__ as soak
from bench.soak.job import Unanswered
from bench.soak.plan import DRIVER, FAULTS, STRATEGIES, rounds
from bench.soak.report import Happened, figure, grown, summary
from bench.soak.watch import Sample, free_mib, left_mib, role_of
from keyshift.experiment.commands import InjectFault, MoveBy
from keyshift.experiment.live_spec import live_spec
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.planner import strategies
from keyshift.wire.faults import parse_now
from waits import Clock

RUN = small_store.run(notes=["a note"])
GOOD = {"summary": RUN.summary, "examples": [], "manifest": RUN}
BAD = {"summary": small_store.run(status="bad").summary, "examples": ["lost: x"]}


def test_the_seed_draws_rounds_in_which_every_fault_comes_before_any_comes_again():
    drawn = [each.fault for each in rounds(1, 7200, 180, 4)]
    assert sorted(drawn[: len(FAULTS)]) == sorted(FAULTS)
    assert len(drawn) == 39 and set(map(drawn.count, FAULTS)) == {3}
    assert rounds(3, 7200, 180, 4) == rounds(3, 7200, 180, 4) != rounds(4, 7200, 180, 4)


def test_rounds_are_in_time_and_move_something():
    some = rounds(2, 3600, 100, 4)
    assert [each.at_s for each in some] == [50 + 100 * number for number in range(35)]
    assert all(each.slots != before.slots for before, each in pairwise(some))
    assert {each.slots for each in some} == {1, 2, 3, 4}
    assert all(each.gap_s <= (1.5 if each.in_the_midst else 50) for each in some)
    assert 5 < sum(each.in_the_midst for each in some) < 30
    assert rounds(2, 149, 100, 4) == []


def test_what_is_drawn_can_be_asked_of_the_job():
    spec = live_spec(soak.LOAD)
    assert [str(parse_now(each)) for each in FAULTS if each != DRIVER] == [each for each in FAULTS if each != DRIVER]
    assert {strategies.get(each).bins for each in STRATEGIES} == {spec.workload.bins}


@pytest.mark.parametrize(("warm_up", "counts_from_s"), [(None, 54.0), (0.0, 0.0), (20.0, 20.0)])
def test_the_first_part_of_a_life_is_as_long_as_it_is_asked_for(warm_up, counts_from_s, whole):
    said, _ = whole(warm_up)
    assert said["warm_up_s"] == pytest.approx(counts_from_s)


def test_a_soak_needs_a_second_slot_for_state_to_move():
    with pytest.raises(BadInput, match=r"slots_max = 1 and slots = 1: .* to at least 2"):
        soak.main(settings=["slots_max=1", "slots=1"])


@pytest.mark.parametrize("given", [{"hours": math.inf}, {"hours": math.nan}, {"hours": 0}, {"every": math.nan}])
def test_a_soak_lasts_a_time_that_ends(given):
    with pytest.raises(BadInput, match="must be a finite number above 0"):
        soak.main(**given)


def samples(role="driver", per_h=0.0, threads_per_h=0.0, pid=7, begin_s=0.0):
    return [
        Sample(begin_s + t, role, pid, float(t), 200 + per_h * t / 3600, int(9 + threads_per_h * t / 3600), 5)
        for t in range(0, 3600, 10)
    ]


def stepped(per_h):
    return [each._replace(held_mib=each.held_mib + 50 * (each.t_s > 1400)) for each in samples(per_h=per_h)]


MORE_AND_MORE = [each for number in range(8) for each in samples("worker", pid=number, begin_s=400.0 * number)]


@pytest.mark.parametrize(
    ("found", "leaks"),
    [
        pytest.param(samples(), [], id="nothing grows"),
        pytest.param(samples(per_h=3.9), [], id="memory, a little"),
        pytest.param(samples(per_h=20), [("driver", "held_mib")], id="memory"),
        pytest.param(samples(threads_per_h=6), [("driver", "threads")], id="threads"),
        pytest.param(stepped(0.0), [], id="one step up"),
        pytest.param(stepped(20.0), [("driver", "held_mib")], id="a step, and it goes on"),
        pytest.param([each for each in MORE_AND_MORE if each.t_s < 3600], [("worker", "processes")], id="processes"),
    ],
)
def test_what_goes_on_growing_is_a_leak(found, leaks):
    assert [(row.role, row.measure) for row in grown(found, 60) if row.leaks] == leaks


def test_what_lives_too_shortly_is_no_leak_and_is_told():
    assert {(row.leaks, row.cells()[-1]) for row in grown(samples()[:3], 60)} == {(False, "lives too short to tell")}


def happened(bad=""):
    each = rounds(1, 300, 60, 4)[0]
    return Happened(each, 30.0, "complete after 1.0 s", 123.4, [], bad)


@pytest.mark.parametrize(
    ("told", "bad", "per_h", "words"),
    [
        ({}, "", 0, "the job gave no verdict"),
        (BAD, "", 0, "the verdict is bad"),
        (BAD, "", 0, "lost: x"),
        (GOOD, "not answered", 0, "not answered"),
        (GOOD, "", 50, "driver: held_mib grows by 50.00 per hour"),
    ],
)
def test_each_problem_is_told(told, bad, per_h, words):
    found = summary(told, [happened(bad)], grown(samples(per_h=per_h), 60), [])["problems"]
    assert words in found[0] or words in found[-1], found


def test_the_summary_is_json():
    said = json.loads(json.dumps(summary(GOOD, [happened()], grown(samples(), 60), ["one more"])))
    assert said["problems"] == ["one more"] and said["verdict"] == "ok" and said["notes"] == ["a note"]
    assert said["summary"]["run_id"] == RUN.run_id
    [line] = [each["line"] for each in said["rounds"]]
    assert line.startswith("0:00:30  ") and line.endswith("complete after 1.0 s, silence 123 ms")


def test_the_figure_has_a_panel_for_each_role_and_measure():
    made = figure(samples() + samples("jvm", per_h=50), [happened()], grown(samples("jvm", per_h=50), 60), "title")
    titles = [ax.get_title(loc="left") for ax in made.axes if ax.get_visible()]
    assert titles[0] == "driver: MiB" and titles[3] == "jvm: MiB, GROWS by 50.0 per hour" and len(titles) == 6


DAEMON = ["python", "-m", "keyshift.worker.daemon"]


@pytest.mark.parametrize(
    ("name", "command", "above", "role"),
    [
        ("java", ["java", "-cp"], ["python"], "jvm"),
        ("python3", DAEMON, ["java"], "daemon"),
        ("python3", DAEMON, DAEMON, "worker"),
        ("python3", ["python", "-m", "keyshift.traffic.collector"], ["python"], "collector"),
        ("sh", ["/bin/sh", "-c", "sleep 3"], ["python"], None),
    ],
)
def test_processes_are_told_apart(name, command, above, role):
    assert role_of(name, command, SimpleNamespace(cmdline=lambda: above)) == role


HEAP = """4242:
 def new generation   total 39296K, used 15744K [0x1, 0x2, 0x3)
  eden space 34944K,  45% used [0x1, 0x2, 0x3)
  from space 4352K,   0% used [0x1, 0x2, 0x3)
 tenured generation   total 87424K, used 1024K [0x1, 0x2, 0x3)
   the space 87424K,   1% used [0x1, 0x2, 0x3, 0x4)
 Metaspace       used 7000K, committed 7168K, reserved 1114112K
"""


def test_of_a_go_program_counts_what_its_last_collection_left_and_of_a_heap_not_what_is_free():
    line = "gc {} @0.875s 1%: 7.3+9.3+0.11 ms clock, 14+0/7.1/1.4+0.23 ms cpu, 46->51->{} MB, 54 MB goal, 2 P"
    log = ["API: http://127.0.0.1:19000", line.format(4, 46), line.format(5, 31), "gc said nothing"]
    assert left_mib("\n".join(log)) == 31
    assert left_mib(log[0]) is None
    assert free_mib(HEAP) == (39296 - 15744 + 87424 - 1024) / 1024


class Job:
    """Answers everything, but for what it is told to do otherwise: a fault, and the error it leads to."""

    def __init__(self, errors=None):
        self.errors, self.calls, self.lasted, self.alive = errors or {}, [], [], True

    def start(self, say):
        pass

    def status(self):
        return {"migrations": [], "deaths": 0, "notes": []}

    def do(self, command):
        self.hit(command.fault) if isinstance(command, InjectFault) else self.calls.append(command)

    def hit(self, fault):
        self.calls.append(fault)
        if fault in self.errors:
            raise self.errors[fault]

    def die(self):
        self.hit(DRIVER)

    def settle(self, lasts_s):
        self.lasted.append(lasts_s)
        return {"migrations": [{"outcome": "complete", "took_s": 1.0}], "deaths": 1, "notes": ["died"]}

    def silence_ms(self, begin, end):
        return 50.0

    def stop(self, within_s, say):
        return GOOD

    def end(self):
        self.alive = False


@pytest.fixture
def run(monkeypatch):
    """All rounds, at once."""

    def run(job, faults):
        clock = Clock()
        monkeypatch.setattr(soak, "time", clock)
        made = soak.Soak(job, SimpleNamespace(n=0, total=1000, update=lambda n: None), clock.time)
        some = rounds(1, 45 * (len(faults) + 1), 45, 4, faults)
        try:
            made.run(some, 300)
        except KeyshiftError as error:
            made.error = str(error)
        return made

    return run


def test_each_round_asks_for_a_migration_and_a_fault(run):
    job = Job()
    made = run(job, ["stop:slot:3s", DRIVER])
    assert [call for call in job.calls if isinstance(call, str)] == [each.round.fault for each in made.happened]
    assert {each.round.fault for each in made.happened} == {"stop:slot:3s", DRIVER}
    assert sorted(job.lasted) == [0.0, 3.0]
    assert len([call for call in job.calls if isinstance(call, MoveBy)]) == 2
    told = {(each.outcome, each.bad, *each.notes) for each in made.happened}
    assert told == {("complete after 1.0 s, died 1 x", "", "died")}


def test_what_is_refused_was_answered(run):
    errors = {"kill:slot": BadInput("no"), "restart:kafka": KeyshiftError("away")}
    made = run(Job(errors), list(errors))
    assert [each.bad for each in made.happened] == ["", ""]
    assert {each.outcome.partition(";")[0] for each in made.happened} == {"refused (no)", "refused (away)"}


def test_what_is_not_answered_is_bad_and_the_soak_goes_on(run):
    made = run(Job({"kill:slot": Unanswered("nothing came")}), ["kill:slot"] * 2)
    assert [each.bad for each in made.happened] == ["nothing came"] * 2


def test_a_job_that_ends_ends_the_soak_and_its_last_round_is_told(run):
    made = run(Job({DRIVER: KeyshiftError("the job has ended")}), [DRIVER, DRIVER])
    assert made.error == "the job has ended"
    assert [each.bad for each in made.happened] == ["the job has ended"]


class ProcessWatch(contextlib.nullcontext):
    """Has seen a driver that does not grow."""

    rows = samples()

    def __init__(self, stack, file, every_s):
        super().__init__(self)
        self.now_s = count(0, 100).__next__

    def follow(self, pid):
        pass

    def of_job(self):
        return {}


@pytest.fixture
def whole(monkeypatch, tmp_path):
    """The command with all around it, for six minutes; gives what it has written down, and whether it is passed."""

    def whole(warm_up=60.0, **does):
        for name, act in does.items():
            monkeypatch.setattr(Job, name, act)
        monkeypatch.setattr(soak, "SoakJob", lambda *_: Job())
        monkeypatch.setattr(soak, "ProcessWatch", ProcessWatch)
        monkeypatch.setattr(soak, "Stack", mock.Mock())
        monkeypatch.setattr(soak, "time", Clock())
        home = tmp_path / str(len([*tmp_path.iterdir()]))
        monkeypatch.setattr(soak.os, "environ", os.environ | {"KEYSHIFT_HOME": str(home)})
        with pytest.raises(typer.Exit) as ended:
            soak.main(hours=0.1, every=45.0, warm_up=warm_up)
        [summary] = home.glob("soak/*/summary.json")
        return json.loads(summary.read_text()), ended.value.exit_code == 0

    return whole


def fail(error):
    def act(self, *given):
        raise error

    return act


def test_a_soak_in_which_all_is_well_is_passed(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(soak.Soak, "run", lambda self, some, seconds: self.happened.append(happened()))
    said, passed = whole()
    assert passed and said["problems"] == [] and said["verdict"] == "ok" and len(said["rounds"]) == 1
    [picture] = tmp_path.glob("*/soak/*/soak.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("where", ["start", "status", "stop"])
def test_a_job_that_fails_anywhere_is_a_problem_and_the_summary_is_written(whole, where):
    said, passed = whole(**{where: fail(KeyshiftError("it failed"))})
    assert not passed
    assert "it failed" in said["problems"]
    assert (said["verdict"] == "ok") == (where == "status"), "it is stopped for its verdict if it can be"


def test_ctrl_c_stops_the_job_and_the_summary_has_its_verdict_and_once_more_gives_it_up(whole):
    said, passed = whole(do=fail(KeyboardInterrupt()))
    assert passed and said["verdict"] == "ok" and said["rounds"] == []
    said, passed = whole(do=fail(KeyboardInterrupt()), stop=fail(KeyboardInterrupt()))
    assert not passed
    assert said["problems"] == ["the job gave no verdict", "given up"]
