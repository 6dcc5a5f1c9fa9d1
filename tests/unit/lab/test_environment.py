import socket
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyspark import SparkContext

from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.spec import make_spec
from keyshift.lab import environment as module
from keyshift.lab.environment import (
    NotStarted,
    nothing_starts,
    open_job_lab,
    open_lab,
    open_services,
    require_possible_here,
    start_job,
)
from keyshift.lab.machine.load_cost import LoadCost
from keyshift.lab.run import Lab
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.needs import Resources
from keyshift.services.stack import Stack

PROFILE = "services: {{kafka: '{kafka}', zookeeper: '{open}', minio: '{open}'}}"


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def profile(tmp_path, listening):
    """Writes one, with what else is in it; gives where it is."""

    def written(kafka=listening, more=""):
        path = tmp_path / "profile.yaml"
        path.write_text(PROFILE.format(kafka=kafka, open=listening) + more)
        return str(path)

    return written


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name in ("KEYSHIFT_ACCESS_KEY", "KEYSHIFT_SECRET_KEY"):
        monkeypatch.setenv(name, "secret")


def test_services_of_a_profile_are_used_if_one_of_their_nodes_can_be_reached_and_none_is_started(profile, listening):
    kafka = f"127.0.0.1:1,{listening},127.0.0.1:2"
    with open_services(profile(kafka)) as endpoints:
        assert (endpoints.kafka, endpoints.minio) == (kafka, listening)


@pytest.mark.parametrize(
    "kafka", ["127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1", "no-such-host.invalid:9092", "127.0.0.1:99999"]
)
def test_a_service_that_cannot_be_reached_is_named_with_its_address(profile, kafka):
    with pytest.raises(ServiceUnavailable, match=f"kafka at {kafka} cannot be reached"), open_services(profile(kafka)):
        pass


IN_PODS = "spark: {master: 'k8s://https://api', image: keyshift:1, driver_host: 10.0.0.1, executors: 2, cores: 4}"


@pytest.mark.parametrize("backend", ["remote", "hybrid"])
@pytest.mark.parametrize(
    ("of_place", "own", "words"),
    [
        ("", "", "'': executors in pods cannot reach a server of this machine; set redis="),
        (", redis: '127.0.0.1:1'", "", "127.0.0.1:1 cannot be reached: "),
        (", redis: '127.0.0.1:1'", "127.0.0.1:2", "127.0.0.1:2 cannot be reached: "),
    ],
)
def test_state_that_is_on_a_server_is_possible_in_pods_only_if_the_place_or_the_run_names_one(
    tmp_path, monkeypatch, backend, of_place, own, words
):
    path = tmp_path / "profile.yaml"
    path.write_text(f"{PROFILE.format(kafka='k:1', open='o:1')[:-1]}{of_place}}}\n{IN_PODS}")
    monkeypatch.setattr(module, "require_java", lambda: None)
    with pytest.raises(KeyshiftError, match=f"^redis = {words}"):
        require_possible_here([make_spec({"backend": backend, "redis": own})], str(path))


@pytest.fixture
def opened(monkeypatch):
    """What a lab was opened with, which is not really opened."""
    given = []

    @contextmanager
    def open_nothing(*arguments):
        given.append(arguments)
        yield

    for name, stand_in in {"Lab": open_nothing, "open_services": open_nothing, "require_java": lambda: None}.items():
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(module, "jars", lambda *_: [])
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # that of other tests
    return given


@pytest.fixture
def told(opened, monkeypatch):
    """What a machine of two processors and 8 GiB is told, on which nobody knows what a load costs."""
    lines = []
    monkeypatch.setattr(module, "tell", lines.append)
    monkeypatch.setattr(module, "kept_cost", lambda home: None)
    monkeypatch.setattr(module.Resources, "here", lambda: Resources(cpus=2, memory=8 << 30, free=8 << 30))
    module._tell_once.cache_clear()  # other tests tell the same
    return lines


def test_the_profile_says_where_the_spark_of_all_runs_is(opened):
    specs = [make_spec({}), make_spec({"to_slots": 7})]
    with open_lab(specs, "local-cluster"):
        pass
    *_, cores, _, spark, stack = opened[-1]
    assert (spark.master, spark.executors, cores) == ("local-cluster", 2, 9)
    assert isinstance(stack, Stack), "the services are ours"


@pytest.mark.parametrize(("place", "cores"), [("local", 2 + 16), ("local-cluster", 2 + 16), ("local-apart", 2 + 4)])
def test_a_live_job_has_room_for_a_restart_unless_each_slot_of_that_would_be_another_process(
    opened, monkeypatch, place, cores
):
    monkeypatch.setattr(module.Resources, "here", lambda: Resources(cpus=2, memory=8 << 30, free=8 << 30))
    with open_job_lab(live_spec({}), place):
        assert opened[-1][3] == cores


def test_runs_with_replicas_need_no_spark_of_the_lab_and_have_to_fit_before_anything_is_opened(opened, monkeypatch):
    replicated = make_spec({"replicas": 2, "ordering": "live_robin"})
    resources = Resources(cpus=2, memory=64 << 30, free=64 << 30)
    monkeypatch.setattr(module.Resources, "here", lambda: resources)
    with open_lab([replicated], "local"):
        pass
    assert opened[-1][3] == 0
    with open_lab([replicated, make_spec({"to_slots": 7})], "local"):
        pass
    assert opened[-1][3] == 9, "of the other one"
    monkeypatch.setattr(module.Resources, "here", lambda: resources._replace(cpus=1))
    before = len(opened)
    with pytest.raises(BadInput, match="this machine has 1; lower replicas"), open_lab([replicated], "local"):
        pass
    assert len(opened) == before


def test_what_this_machine_cannot_carry_is_told_once_before_it_starts_and_is_not_refused(opened, told, monkeypatch):
    same = {"base_cores": 0.0, "row_ms": 0.0, "event_us": 10.0, "others": 0.0}
    cost = LoadCost.model_construct(machine=SimpleNamespace(cpus=2), **same)
    large = make_spec({"rate": 4e6, "warmup_s": 30.0, "seconds": 500.0})
    monkeypatch.setattr(module, "kept_cost", lambda home: cost)
    require_possible_here([make_spec({}), make_spec({"rate": "auto", "frame_ms": "auto"})], "local")
    with open_job_lab(large, "local", warned=True):
        assert told == [], "as the process of a job, whose starter has told it"
    for specs in ([make_spec({}), large], [large]):
        with open_lab(specs, "local"):
            assert told == [
                "a verdict takes about 197.4 GiB in the driver, and this machine has 8.0 GiB; nothing is refused "
                "for that",
                f"the load is expected to take 40.0 of 2 processors ({cost}); lower rate or raise frame_ms",
            ]
    assert len(opened) == 6, "services and lab, each time"


def test_migrations_of_one_job_have_one_verdict_and_what_it_takes_is_told(told):
    load = {"rate": 1e5, "warmup_s": 10.0, "seconds": 100.0, "skew": 0.0, "repetitions": 5}
    specs = [make_spec({"strategy": name} | load) for name in ("fluid", "all_at_once")]
    with open_lab(specs, "local"):
        assert told == [], "each run has its own"
    with open_lab(specs, "local", one_job=True):
        words = "a verdict takes about 9.4 GiB in the driver, and this machine has 8.0 GiB"
        assert told == [f"{words}; nothing is refused for that"], "101 million events"


CHAIN = {"workload": "chain", "chain": "map,counter", "stage_slots": "map:1,counter:6", "stage": "all"}
PODS_FOR_A_RUN = "\nspark: {master: 'k8s://https://api', image: i, driver_host: h, executors: 1, cores: 11}"


def test_a_job_of_several_runs_may_need_more_cores_than_any_of_them_and_has_to_fit(opened, profile):
    """Each of its stages has room for as many slots as any stage of a run."""
    specs = [make_spec(CHAIN | {"to_slots": 3, "strategy": name}) for name in ("fluid", "all_at_once")]
    assert {spec.cores for spec in specs} == {2 + 3 + 6}
    for one_job, cores in ((False, 11), (True, 14)):
        with open_lab(specs, "local", one_job=one_job):
            assert opened[-1][3] == cores
    pods = profile(more=PODS_FOR_A_RUN)
    require_possible_here(specs, pods)
    require_possible_here(specs[:1], pods, one_job=True)  # which shares its job with no other
    with pytest.raises(BadInput, match="the run has 14 routers and slots"):
        require_possible_here(specs, pods, one_job=True)


def test_that_nobody_knows_the_load_of_a_search_is_told_once_before_it_starts(told):
    spec = make_spec({"skew": 0.0})
    require_possible_here([spec], "local")
    assert told == []
    require_possible_here([spec], "local", searched=True)
    with open_lab([spec], "local", searched=True):
        [line] = told
    assert line.startswith("how long a search for the highest rate takes, and how many events it offers, is not known")


def test_a_spark_beside_another_one_of_this_process_is_refused_before_anything_is_opened(opened, monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", "of somebody")
    with pytest.raises(BadInput, match="a Spark runs in this process already"), open_lab([make_spec({})], "local"):
        pass
    assert not opened
    with open_lab([make_spec({"replicas": 2, "ordering": "live_robin"})], "local"):
        assert opened, "each replica has a process of its own"


@pytest.mark.parametrize(
    ("what", "error"),
    [("settled", KeyboardInterrupt), ("settled", ServiceUnavailable), ("record", ServiceUnavailable)],
)
def test_a_job_that_is_interrupted_or_fails_before_it_is_ready_leaves_no_lab_open(tmp_path, monkeypatch, what, error):
    """Also while the load is measured: the next one in this process would be refused."""
    lab, closed = Lab(Endpoints("k:1", "z:1", "m:1", "a", "s"), [], tmp_path, 6, print), []
    monkeypatch.setattr(lab, what, Mock(side_effect=error))

    @contextmanager
    def open_lab(*_, **__):
        try:
            yield lab
        finally:
            closed.append(lab)

    monkeypatch.setattr(module, "open_lab", open_lab)
    with pytest.raises(error) as told:
        start_job(live_spec({}))
    assert closed == [lab], f"as long as somebody keeps the traceback of {told}"


SMALL = "\nspark: {master: 'k8s://https://api', image: i, driver_host: h, executors: 1, cores: 2}"


@pytest.mark.parametrize(
    ("values", "more", "words"),
    [
        ({"fault": "kill:executor@4"}, "", "fault = kill:executor@4: .*local-cluster"),
        ({"fault": "stop:kafka@4:1s"}, "", "fault = stop:kafka@4:1s: .*embedded"),
        ({"trigger": "script", "script": "4: fault kill:executor"}, "", "fault = kill:executor: .*local-cluster"),
        ({}, SMALL, r"set spark\.executors to 3"),
    ],
)
def test_what_is_not_possible_in_its_profile_is_refused_before_anything_is_opened(opened, profile, values, more, words):
    with pytest.raises(BadInput, match=words), open_lab([make_spec(values)], profile(more=more)):
        pass
    assert not opened


def test_frames_that_are_left_to_the_machine_are_refused_if_none_that_it_may_choose_makes_few_rows(
    opened, profile, monkeypatch
):
    monkeypatch.setattr(module.Resources, "here", lambda: Resources(cpus=2, memory=64 << 30, free=64 << 30))
    many, most = (make_spec({"frame_ms": "auto", "routers": routers, "to_slots": 16}) for routers in (8, 64))
    with open_lab([many], "local"):
        assert opened
    with pytest.raises(BadInput, match=r"^frame_ms = 200 with 64 routers and 16 slots makes 5120 rows/s"):
        require_possible_here([most], "local")
    with pytest.raises(BadInput, match=r"^frame_ms = 20 with 8 routers"):  # the default: nothing is measured in pods
        require_possible_here([many], profile(more=SMALL.replace("cores: 2", "cores: 24")))


def test_a_user_without_a_name_is_refused_before_anything_is_opened(opened, monkeypatch):
    monkeypatch.setattr(module.pwd, "getpwuid", {}.__getitem__)
    refused = pytest.raises(ServiceUnavailable, match=r"^user [0-9]+ has no name, .*/etc/passwd")
    with refused, open_lab([make_spec({})], "local"):
        pass
    assert not opened


def test_a_session_that_zookeeper_does_not_have_is_refused_before_spark_is_started(opened, monkeypatch):
    refuse = Mock(side_effect=BadInput("no such session"))
    monkeypatch.setattr(module, "open_services", lambda *_: nullcontext(SimpleNamespace(zookeeper="z:1")))
    monkeypatch.setattr(module, "require_session", refuse)
    led = make_spec({"ordering": "kazoo", "to_slots": 3, "session_ms": 300})
    with pytest.raises(BadInput, match="no such session"), open_lab([make_spec({}), led], "local"):
        pass
    refuse.assert_called_once_with("z:1", 300)
    assert not opened


def test_where_nothing_starts_a_start_says_what_was_to_be_instead(opened):
    spec = make_spec({})
    with pytest.raises(NotStarted) as told, nothing_starts(), open_lab([spec], "local-cluster"):
        pass
    assert told.value.asked.specs == (spec,)
    assert told.value.asked.place.spark.master == "local-cluster"
    with pytest.raises(NotStarted) as told, nothing_starts(), open_services("local"):
        pass
    assert told.value.asked.specs == ()
    assert not opened
    with open_lab([spec], "local"):
        assert opened, "and afterwards as ever"
