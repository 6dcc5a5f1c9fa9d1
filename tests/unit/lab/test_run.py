import contextlib
import signal
import threading
from importlib import metadata
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.spec import make_spec
from keyshift.folders import work_folder
from keyshift.lab import run
from keyshift.lab.ending import Ending, RunEnd, Unwanted
from keyshift.lab.judge.evaluation import Span
from keyshift.lab.machine import load_cost
from keyshift.lab.run import Lab
from keyshift.lab.scripts.series import Series, one_job
from keyshift.model.errors import Deposed, ServiceUnavailable
from keyshift.place.profile import SparkProfile
from keyshift.redis_program import PASSWORD
from keyshift.results.manifest import describe_machine
from keyshift.state import settings_of


def lab_of(home, cores=6, place=None):
    endpoints = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s", redis="place:6379")
    return Lab(endpoints, [], home, cores, print, place or SparkProfile())


@pytest.mark.parametrize(
    ("place", "cores", "slots"),
    [
        (SparkProfile(), 6, 4),
        (SparkProfile(), 9, 7),
        (SparkProfile(), 99, 16),
        (SparkProfile(master="k8s://https://api", executors=2, cores=4), 99, 6),
    ],
)
def test_a_restart_may_lead_to_as_many_slots_as_there_are_cores_for(tmp_path, place, cores, slots):
    assert lab_of(tmp_path, cores, place).restart_slots(live_spec({})) == {"counter": slots}


def test_stages_share_the_cores_that_are_left_for_a_restart(tmp_path):
    spec = live_spec({"workload": "chain", "stage_slots": "counter-2:7", "key_groups": 12})
    assert spec.tasks == {"counter-1": 4, "counter-2": 7}
    most = [lab_of(tmp_path, cores).restart_slots(spec) for cores in (10, 13, 18, 99)]
    assert most[:2] == [spec.tasks, spec.tasks]
    assert most[2:] == [{"counter-1": 6, "counter-2": 9}, {"counter-1": 12, "counter-2": 12}]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """It is open. ``lab.done`` has what happened to what a run consists of, ``lab.recorded`` what was stored of it. Its
    ``loop`` does what its script says, and ``loop.ready`` is what it calls before a recovery.
    """
    spark = SimpleNamespace(session=None, await_executors=lambda: None)
    monkeypatch.setattr(run, "ResultStore", Mock())
    monkeypatch.setattr(run, "PlacedSpark", lambda *_: spark)
    monkeypatch.setattr(run, "stop_spark", lambda session: made.done.append("spark"))
    monkeypatch.setattr(run.bare_copy, "bytes_per_s", lambda file: 1.0)
    made = lab_of(tmp_path)
    made.spark, made.done, made.recorded, made.driver_of = spark, [], [], lambda: None

    def note(what, then=lambda: None):
        return lambda: (made.done.append(what), then())

    def job(*_):
        said = {what: note(what) for what in ("stop", "clean", "read_log")}
        asks = {what: note(what, lambda: made.driver_of()) for what in ("require_driver", "end")}
        return SimpleNamespace(log=[], notes=[], **said, **asks)

    def loop(*parts):
        given = {"services": dict, "traffic": SimpleNamespace(offered=lambda: (None, None))}
        made.loop = SimpleNamespace(execute=parts[-1], ready=parts[4], run=lambda: None, **given)
        return made.loop

    monkeypatch.setattr(run, "Job", job)
    ends = {"kill": note("killed"), "close": note("topics go")}
    monkeypatch.setattr(run, "job_traffic", lambda *_: SimpleNamespace(require_wanted="is it wanted?", **ends))
    monkeypatch.setattr(run, "KeyshiftJob", lambda *_: None)
    monkeypatch.setattr(run, "RunLoop", loop)
    stored = SimpleNamespace(
        ended=lambda *_: made.recorded.append("ended"), died=lambda error, _: made.recorded.append(repr(error))
    )
    monkeypatch.setattr(run, "Recording", lambda *_: stored)
    with made:
        yield made


def recorded(lab, error=None, end=None):
    def execute():
        if error is not None:
            raise error

    return lab.record(live_spec({}), "run-1", execute, end)


def test_state_of_a_run_is_on_the_redis_server_of_the_place_and_goes_from_there(lab, monkeypatch):
    configs, cleaned, job = [], [], run.Job
    monkeypatch.setattr(run, "Job", lambda begin, config, *more: configs.append(config) or job())
    monkeypatch.setattr(run, "clean_stores", lambda *given: cleaned.append(settings_of(*given[:3])))
    monkeypatch.setenv(PASSWORD, "secret")
    spec = live_spec({"backend": "hybrid", "write": "back"})
    lab.record(spec, "run-1", lambda: None)
    (config,) = configs
    assert (config.backend_settings["redis"], config.backend_settings["write"]) == ("place:6379", "back")
    assert config.backend_secret == "secret"
    assert [settings.redis for settings in cleaned] == ["place:6379"]
    assert spec.backend.settings["redis"] == "", "the stored run can be repeated in another place"


@pytest.mark.parametrize(
    ("given", "beside"), [({}, {}), ({"replicas": 2, "ordering": "live_robin"}, {7: "idle Spark"})]
)
def test_the_spark_of_a_lab_is_not_that_of_replicas_which_have_their_own(lab, monkeypatch, given, beside):
    class Replicas(SimpleNamespace):
        def __init__(self, *_):
            super().__init__(parts=dict, **vars(run.Job()))

    monkeypatch.setattr(run, "Replicas", Replicas)
    monkeypatch.setattr(run, "LiveReplicas", lambda *_: None)
    monkeypatch.setattr(run, "idle_jvm", lambda: {7: "idle Spark"})
    lab.record(live_spec(given), "run-1", lambda: None)
    assert lab.loop.services() == beside


def test_executors_are_waited_for_before_a_recovery_as_long_as_somebody_wants_the_job(lab):
    asked = []
    lab.spark.await_executors = asked.append
    lab.record(live_spec({}), "run-1", lambda: lab.loop.ready())
    assert asked == ["is it wanted?"]


@pytest.mark.parametrize(("spec", "partitions"), [(make_spec({}), 4), (live_spec({}), 16)], ids=["a run", "a live job"])
def test_a_job_that_lasts_has_results_of_slots_that_a_restart_may_lead_to_and_no_parameters_of_a_scenario(
    lab, monkeypatch, spec, partitions
):
    given, ends = [], dict.fromkeys(("kill", "close"), lambda: None)
    monkeypatch.setattr(run, "job_traffic", lambda *of: given.append(of[2]) or SimpleNamespace(**ends))
    monkeypatch.setattr(run, "Recording", lambda *of: given.append("seconds" in of[4]) or Mock())
    lab.record(spec, "run-1", lambda: None)
    assert given == [not spec.lasts, partitions]


def test_faults_of_services_can_be_cut_short_before_a_job_ends(lab, monkeypatch):
    cut = []
    monkeypatch.setattr(run.ServiceFaults, "cut_short", lambda faults: cut.append([*lab.done]))
    lab.record(live_spec({}), "run-1", lambda: lab.loop.cut_faults_short())
    assert cut[0] == [] and lab.recorded == ["ended"]


@pytest.mark.parametrize("outlives", [True, False], ids=["a job in the background", "a run"])
def test_a_run_writes_its_metrics_and_a_job_that_is_asked_for_them_does_not(lab, tmp_path, monkeypatch, outlives):
    end = RunEnd()
    end.outlives = outlives
    monkeypatch.setattr(run, "written", lambda *given: given)
    recorded(lab, end=end)
    if outlives:
        assert not hasattr(lab.loop, "metrics")
    else:
        assert lab.loop.metrics() == ("run-1", lab.loop, tmp_path)


@pytest.mark.parametrize("error", [None, Deposed("it runs elsewhere"), ServiceUnavailable("the generator died")])
def test_a_run_that_another_process_goes_on_with_says_so_whatever_ended_it_and_deletes_and_stores_nothing(lab, error):
    lab.driver_of = Mock(side_effect=Deposed("it runs in another process now"))
    with pytest.raises(Deposed, match="it runs in another process now"):
        recorded(lab, error)
    assert "killed" in lab.done and not {"topics go", "clean"} & {*lab.done}
    assert lab.recorded == []


@pytest.mark.parametrize("outlives", [True, False], ids=["a job in the background", "a run"])
def test_who_cannot_say_whose_a_job_is_deletes_of_it_only_what_nobody_else_can_have(lab, outlives):
    """Its own error is told in any case."""
    lab.driver_of, end = Mock(side_effect=ServiceUnavailable("ZooKeeper is away")), RunEnd()
    end.outlives = outlives
    with pytest.raises(ServiceUnavailable, match="the generator died"):
        recorded(lab, ServiceUnavailable("the generator died"), end)
    deletes = [] if outlives else ["topics go", "clean"]
    assert lab.done == ["require_driver", "read_log", "stop", "killed", "end", *deletes]
    assert lab.recorded == ["ServiceUnavailable('the generator died')"]
    assert end.undeleted == ["claim (ServiceUnavailable: ZooKeeper is away)"] and not end.deleted


def test_a_verdict_is_stored_though_nobody_can_say_whose_the_job_is(lab):
    lab.driver_of, end = Mock(side_effect=ServiceUnavailable("ZooKeeper is away")), RunEnd()
    end.outlives = True
    recorded(lab, end=end)
    assert lab.recorded == ["ended"] and lab.done == ["require_driver", "stop", "killed", "end"]


@pytest.mark.parametrize(
    ("error", "resumable", "ending"),
    [
        (None, True, Ending.STOPPED),
        (ServiceUnavailable("ZooKeeper is away"), True, Ending.RESUMABLE),
        (KeyboardInterrupt(), True, Ending.RESUMABLE),
        (RuntimeError("nobody has thought of this"), True, Ending.RESUMABLE),
        (ServiceUnavailable("ZooKeeper is away"), False, Ending.DIED),
        (KeyboardInterrupt(), False, Ending.DIED),
        (Unwanted("the job was given up"), False, Ending.GIVEN_UP),
        (Deposed("another one drives"), True, Ending.DEPOSED),
    ],
)
def test_only_what_nothing_goes_on_with_is_deleted_and_who_keeps_the_journal_hears_it_before(
    lab, error, resumable, ending
):
    end = RunEnd()
    end.resumable, end.decided = lambda: resumable, lab.done.append
    with pytest.raises(type(error)) if error else contextlib.nullcontext():
        recorded(lab, error, end)
    deletes = ending in (Ending.STOPPED, Ending.GIVEN_UP, Ending.DIED)
    nobody_can_claim, go = (["end"], ["topics go", "clean"]) if deletes else ([], [])
    assert lab.done[lab.done.index("stop") :] == ["stop", "killed", *nobody_can_claim, ending, *go]
    assert (end.ending, end.deleted, end.undeleted) == (ending, deletes, [])
    assert lab.recorded == (["ended"] if error is None else [repr(error)] if deletes else [])


def test_an_interrupt_while_a_run_is_tidied_up_does_not_hide_why_it_died(lab, monkeypatch):
    ends = {"kill": lambda: signal.raise_signal(signal.SIGINT), "close": lambda: None}
    monkeypatch.setattr(run, "job_traffic", lambda *_: SimpleNamespace(**ends))
    with pytest.raises(KeyboardInterrupt):
        recorded(lab, ServiceUnavailable("the generator died"))
    assert lab.recorded == ["ServiceUnavailable('the generator died')"]


def cost(row_ms=0.5, others=0.0):
    known = {"base_cores": 0.1, "event_us": 5.0, "keyshift": metadata.version("keyshift")}
    return load_cost.LoadCost(machine=describe_machine(), row_ms=row_ms, others=others, **known)


@pytest.fixture
def measured(lab, monkeypatch):
    """The job that says what a load costs is not run: each time it gives the next of these."""
    made = []
    monkeypatch.setattr(load_cost, "cost_of", lambda parts, frames: made.pop(0))
    return made


def test_what_a_load_costs_is_measured_once_for_all_labs_of_a_state_folder(lab, tmp_path, measured):
    measured += [cost(0.5), cost(0.7)]
    assert lab.load_cost() == lab.load_cost() == load_cost.kept_cost(tmp_path) == cost(0.5)
    assert lab.load_cost(again=True) == lab.load_cost() == load_cost.kept_cost(tmp_path) == cost(0.7)


def test_what_others_have_disturbed_is_for_one_lab_and_told(lab, tmp_path, measured):
    measured += [cost(9.0, others=0.6)]
    lab.say = (said := []).append
    assert lab.load_cost() == lab.load_cost() == cost(9.0, others=0.6)
    assert load_cost.kept_cost(tmp_path) is None
    [line] = [line for line in said if "others had 60%" in line]
    assert "keyshift calibrate" in line


def test_all_runs_of_a_lab_that_leave_their_load_open_have_the_same_and_others_keep_theirs(lab, measured):
    measured += [cost(2 * describe_machine().cpus)]
    lab.say = (said := []).append
    few, many, own = (make_spec(each) for each in ({"frame_ms": "auto"}, {"frame_ms": "auto", "to_slots": 8}, {}))
    found = lab.settled([few, own, many])
    assert found[0].run.frame_ms == found[2].run.frame_ms > 20
    assert found[1] == own
    assert [spec.unsettled for spec in found] == [(), (), ()]
    assert any(f"frame_ms = {found[0].run.frame_ms:g}" in line for line in said)
    assert lab.settled(found) == found, "chosen once"


def test_where_executors_run_elsewhere_the_load_is_the_default_and_nothing_is_measured(tmp_path):
    lab = lab_of(tmp_path, place=SparkProfile(master="k8s://https://api"))
    lab.say = (said := []).append
    [spec] = lab.settled([make_spec({"rate": "auto"})])
    assert (spec.run.rate, spec.run.auto) == (2000.0, "rate")
    assert "not measured" in said[0]


def test_the_files_of_spark_stay_behind_a_lab_for_the_next_one(lab, tmp_path, monkeypatch):
    """Its JVM goes on, with the folder that it was given first."""
    folders = []
    monkeypatch.setattr(run, "PlacedSpark", lambda *given: folders.append(given[3]) or lab.spark)
    for _ in range(2):
        with lab_of(tmp_path) as one:
            first = folders[0] / "broadcast"
            first.touch()
            with work_folder(tmp_path, "run-"):  # its metrics
                assert first.exists()
        assert first.exists() and not one.work.exists()
    assert folders[0] == folders[1]


@pytest.mark.parametrize(("to_slots", "slots_max"), [((3, 5), 5), ((4, 4), 0)])
def test_laps_are_stored_with_the_slots_of_their_job_if_some_need_fewer(lab, monkeypatch, to_slots, slots_max):
    specs = [make_spec({"to_slots": slots}) for slots in to_slots]
    monkeypatch.setattr(Series, "evaluations", lambda series: [(Span(0.0, 0.0, 1.0, 0.0), None)] * len(specs))
    monkeypatch.setattr(run, "Recording", lambda *given: SimpleNamespace(ended=lambda *_: given[4]))
    stored = list(lab.run_series(job := one_job(specs), specs))
    assert [(each["to_slots"], each["slots_max"]) for each in stored] == [(slots, slots_max) for slots in to_slots]
    assert [make_spec(each).tasks for each in stored] == [job.tasks] * len(specs)


def interrupted():
    """A job that comes to an interrupt while it starts, and to another one while it is given up."""
    job = Mock(ended=threading.Event(), await_ready=Mock(side_effect=KeyboardInterrupt))
    job.give_up.side_effect = lambda: job.ended.is_set() or (signal.raise_signal(signal.SIGINT), job.ended.set())
    return job


def test_a_job_whose_start_is_interrupted_is_given_up_and_another_one_may_start(lab, monkeypatch):
    """Nobody else has it."""
    jobs = []
    monkeypatch.setattr(run, "LiveJob", lambda *_: jobs.append(interrupted()) or jobs[-1])
    for number in range(2):
        with pytest.raises(KeyboardInterrupt):
            lab.start(live_spec({}))
        assert jobs[number].ended.is_set()


def test_a_lab_ends_its_spark_though_somebody_interrupts_the_end_of_its_job(lab, monkeypatch, tmp_path):
    job = interrupted()
    job.await_ready.side_effect = None
    monkeypatch.setattr(run, "LiveJob", lambda *_: job)
    with pytest.raises(KeyboardInterrupt), lab_of(tmp_path) as other:
        other.start(live_spec({}))
    assert job.ended.is_set() and lab.done == ["spark"]
