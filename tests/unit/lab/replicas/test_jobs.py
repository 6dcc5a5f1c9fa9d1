"""The jobs of a replicated one: what each is made of, and that all of them end, whatever fails."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from small_job import CONFIG

from keyshift.experiment.spec import make_spec
from keyshift.lab.plans.stage_plans import PlansPast
from keyshift.lab.replicas import jobs
from keyshift.lab.replicas.jobs import Replicas
from keyshift.lab.replicas.spares import Spares
from keyshift.model.errors import Deposed, QueryDied, ServiceUnavailable
from keyshift.model.markers import StateWritten
from keyshift.model.records import Instance
from keyshift.runtime.protocol_log import LogEvent
from keyshift.traffic.copies import Incarnation
from keyshift.wire.faults import parse
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.savepoint import Savepoint

SAVED = Savepoint("capture-1", {0: 7}, {}, {"counter": {0: 7, 1: 9}})


class Job:
    """What it is given, and what it is asked."""

    def __init__(self, start_query, config, *given):
        self.start_query, self.config, self.given, self.log, self.asked = start_query, config, given, [], []
        self.notes = []
        self.stages = [SimpleNamespace(name="counter", assignment="assigned", agrees=None)]
        self.fails = ""

    def __getattr__(self, name):
        if name not in ("require_driver", "stop", "end", "clean"):
            raise AttributeError(name)

        def ask():
            self.asked.append(name)
            if self.fails == name:
                raise ServiceUnavailable(f"{name} failed")

        return ask

    def start(self, *given):
        self.asked.append(given)

    def read_log(self):
        self.log += [LogEvent(1, "slot-0", "barrier", (), 3, 0, "router-0")]


class Application:
    def __init__(self, part, incarnation, gives_way):
        self.name = name = f"{part}-{incarnation}" if incarnation else part
        self.did, self.start_query = [], lambda config: (f"starts {name}", config)
        self.gives_way, self.isActive, self.pid = gives_way, True, None

    def __getattr__(self, name):
        return lambda *given: self.did.append((name, *given) if given else name)

    def await_ready(self, require_wanted):
        require_wanted()
        self.did.append("await_ready")

    def kill(self):
        if "kill" not in self.did:
            self.did.append("kill")


def system(spec, job):
    """As ``KeyshiftJob``; its failover keeps what it is asked."""
    failover = Mock()
    failover.histories.return_value = f"histories of {job.config.job}"
    failover.plans.return_value = f"plans of {job.config.job}"
    return SimpleNamespace(spec=spec, job=job, failover=failover, start=lambda: job.asked.append("start"))


@pytest.fixture(params=[{}])
def made(monkeypatch, request):
    """Two of them, with what they have in common; ``log`` is that of the run. ``memory``: ZooKeeper. ``opened``: all
    applications. ``forgot``: before which attempts of whom. The parameter: more of the spec.
    """
    monkeypatch.setattr(jobs, "Job", Job)
    monkeypatch.setattr(jobs, "KeyshiftJob", system)
    monkeypatch.setattr(jobs, "newest_attempt", lambda config: 4)
    memory, forgot = Memory(), []
    monkeypatch.setattr(jobs, "forget_attempts", lambda config: forgot.append((config.job, config.attempt)))
    monkeypatch.setattr(jobs, "Coordination", lambda _hosts, root, _secret: MemoryCoordination(memory, root))
    values = {"replicas": 2, "ordering": "live_robin", "fault": "kill:replica@steady"} | request.param
    spec, opened = make_spec(values), []
    config, log = replace(CONFIG, job="run", ordering=spec.job.ordering), []
    configs = [config.of_replica(number) for number in range(2)]
    order = SimpleNamespace(ends=lambda: {0: 0, 1: 0}) if spec.job.ordering == "kazoo" else None
    traffic = SimpleNamespace(differences=[], standings={}, order=order, require_wanted=lambda: None)
    services = Mock(away=False, seen_by=lambda config: f"{config.job} through relays")
    given = Path("work"), traffic, "say", services

    def opening(*given):
        opened.append(Application(*given))
        return opened[-1]

    replicas = Replicas(spec, configs, opening, *given, log)
    known = {"spec": spec, "traffic": traffic, "memory": memory, "services": services, "forgot": forgot}
    return SimpleNamespace(replicas=replicas, log=log, opened=opened, **known)


def test_each_is_a_job_of_its_own_whose_query_its_own_application_starts(made):
    first, second = made.replicas.all
    assert [each.job.config.job for each in (first, second)] == ["run-r0", "run-r1"]
    assert [each.job.start_query(each.job.config) for each in (first, second)] == [
        ("starts 0", "run-r0 through relays"),
        ("starts 1", "run-r1 through relays"),
    ]
    assert first.job.given[:-1] == (Path("work"), made.spec.job.batch_s, made.traffic, "say")
    assert first.system.spec.scenario.fault == "", "what fails is for all of them"
    made.replicas.begin()
    assert first.application.did == ["begin", "await_ready"]


@pytest.mark.parametrize(("made", "common"), [({}, []), ({"ordering": "kazoo"}, ["/keyshift/run"])], indirect=["made"])
def test_what_all_have_together_is_there_before_they_begin_and_goes_when_they_are_cleaned(made, common):
    made.replicas.begin()
    assert [*made.memory.nodes] == common
    MemoryCoordination(made.memory, "/keyshift/run").memory.put("/keyshift/run/order/counter/0/leader", b"")
    made.replicas.all[0].job.fails = "clean"
    with pytest.raises(ServiceUnavailable, match="clean failed"):
        made.replicas.clean()
    assert len(made.memory.nodes) == (0 if common else 1)


def test_the_log_says_of_which_replica_a_place_is_and_the_dead_are_not_asked(made):
    made.replicas.read_log()
    assert [event.place for event in made.log] == ["replica-0 slot-0", "replica-1 slot-0"]
    assert [event.other for event in made.log] == ["replica-0 router-0", "replica-1 router-0"]
    made.replicas.all[0].lives = False
    assert [each.number for each in made.replicas.living] == [1]
    made.replicas.read_log()
    assert [event.place for event in made.log[2:]] == ["replica-1 slot-0"]


def test_the_log_has_what_is_known_of_an_incarnation_that_has_died_in_front_of_what_the_next_one_tells(made):
    first, second = made.replicas.all
    first.lives, dead = False, first.job
    made.replicas.leave(first)
    assert dead.asked == ["stop"] and [event.place for event in made.log] == ["replica-0 slot-0"]
    made.replicas.lead_next(first, SAVED, "run-r1", second)
    made.replicas.read_log()
    assert [event.place for event in made.log] == ["replica-0 slot-0", "replica-1 slot-0", "replica-0 slot-0"]


def test_the_log_has_once_what_each_of_them_has_read_as_it_stopped(made):
    for each in made.replicas.all:
        each.job.read_log()
    for _ in range(2):
        made.replicas.keep_log()
    assert [event.place for event in made.log] == ["replica-0 slot-0", "replica-1 slot-0"]


@pytest.mark.parametrize("ask", ["stop", "end", "clean"])
@pytest.mark.parametrize("failing", [0, 1])
def test_all_of_them_end_whatever_fails_in_one(made, ask, failing):
    made.replicas.all[failing].job.fails = ask
    with pytest.raises(ServiceUnavailable, match=f"{ask} failed"):
        getattr(made.replicas, ask)()
    assert [each.job.asked for each in made.replicas.all] == [[ask]] * 2
    assert [each.application.did for each in made.replicas.all] == [["end"] if ask == "stop" else []] * 2


def test_a_replica_that_comes_back_claims_nothing_as_another_process_may_have_claimed_its_job_meanwhile(made):
    first, second = made.replicas.all
    first.job.config = replace(first.job.config, epoch=3)
    made.replicas.lead_next(first, SAVED, "run-r1", second)
    assert first.job.config.epoch == 3 and first.job.asked == [(["assigned"], SAVED)]
    made.replicas.require_driver()
    assert first.job.asked[-1] == "require_driver" == second.job.asked[-1]
    second.job.require_driver = Mock(side_effect=Deposed("job run-r1 runs in another process now"))
    with pytest.raises(Deposed):
        made.replicas.require_driver()


def test_the_next_incarnation_is_another_attempt_in_another_application_from_what_another_one_has_written(made):
    first, second = made.replicas.all
    first.lives, old = False, first.application
    first.job.notes.append("a step was late")
    made.replicas.begin_next(first)
    assert first.application is not old and first.application.did == ["begin"]
    assert (first.application.name, first.application.gives_way) == ("0-1", True)
    made.replicas.lead_next(first, SAVED, "run-r1", second)
    config = first.job.config
    assert (config.job, config.attempt, config.restore, config.restore_of) == ("run-r0", 1, "capture-1", "run-r1")
    assert first.job.asked == [(["assigned"], SAVED)] and first.job.start_query(first.job.config)[0] == "starts 0-1"
    assert first.lives and first.system.job is first.job and first.job.notes == ["a step was late"]
    assert first.began == [Incarnation(), Incarnation({0: 7, 1: 9}, 1)]
    assert first.system.failover.mock_calls == [call.follow("histories of run-r1", "plans of run-r1")]
    assert [each.number for each in made.replicas.living] == [1, 0], "who has lived for longest comes first"
    assert made.forgot == [("run-r0", 1)]


def test_what_each_writes_has_a_later_name_and_is_there_when_all_results_before_it_are(made, monkeypatch):
    awaited, sizes = [], {"counter": 9}

    def capture(config, stages, check, name):
        return Savepoint(f"{name}-{config.job}", {}, {}), sizes

    monkeypatch.setattr(jobs, "capture", capture)
    made.traffic.await_slots = lambda *given: awaited.append(given)
    first, second = made.replicas.all
    for each in (first, second):
        each.job.stages[-1].config = SimpleNamespace(slots=3)
    saved, written = made.replicas.capture(first, "check")
    assert (saved.name, written) == ("capture-000-000001-run-r0", sizes)
    assert awaited == [(range(3), StateWritten("counter", saved.name), "check", 0)]
    assert made.replicas.capture(second, "check")[0].name == "capture-000-000002-run-r1"
    assert awaited[1][-1] == 1


def journal_of(begin):
    """Of a job whose first replica has come back twice."""
    history = SimpleNamespace(assignments=["before", "newest"])
    past = SimpleNamespace(begun_from=begin, stages={"counter": history})
    turns = {0: [{}, {0: 6, 1: 7}, {0: 6, 1: 10}], 1: [{}]}
    began = {number: [Incarnation(each) for each in some] for number, some in turns.items()}
    plans, requested = {"counter": PlansPast(2, ["decision"])}, {"counter": 3}
    of = SimpleNamespace(of="run-r1", began=began, requested=requested)
    return SimpleNamespace(past=past, plans=plans if begin else {}, of_replicas=of)


def test_another_process_goes_on_with_each_of_them_from_what_one_has_written(made):
    for replica in made.replicas.all:
        made.replicas.go_on(replica, journal_of(SAVED), "epochs")
    first, second = made.replicas.all
    config = first.job.config
    assert (config.job, config.attempt, config.epochs) == ("run-r0", 5, "epochs"), "behind all that were before"
    for each in (config, second.job.config):
        assert (each.restore, each.restore_of) == ("capture-1", "run-r1")
    assert first.job.asked == [(["newest"], SAVED)]
    followed = call.follow(journal_of(SAVED).past.stages, {"counter": PlansPast(3, ["decision"])})
    assert first.system.failover.mock_calls == [followed], "what was requested since is lost, and has its number"
    assert [each.turns for each in first.began] == [{}, {0: 6, 1: 7}, {0: 6, 1: 10}, {0: 7, 1: 9}]
    assert second.began == [Incarnation(), Incarnation({0: 7, 1: 9}, 5)] and second.lives
    assert made.forgot == [("run-r0", 5), ("run-r1", 5)]
    journal = journal_of(SAVED)
    journal.of_replicas.began[1].append(Incarnation({}, 7))
    made.replicas.go_on(second, journal, "epochs")
    assert second.job.config.attempt == 8, "ZooKeeper has lost that of the journal"


@pytest.mark.parametrize("made", [{"ordering": "kazoo"}], indirect=True)
def test_what_the_process_before_has_ordered_counts_for_nothing(made):
    made.replicas.order = SimpleNamespace(ends=lambda: {1: 9, 0: 5})
    made.replicas.begin()
    made.replicas.order = None  # what this process orders does not move the beginning
    for replica in made.replicas.all:
        made.replicas.go_on(replica, journal_of(SAVED), "epochs")
    assert [[each.job.config.order_begin(slot) for slot in (0, 1)] for each in made.replicas.all] == [[5, 9]] * 2


def test_or_from_the_beginning_of_the_input(made):
    first = made.replicas.all[0]
    made.replicas.go_on(first, journal_of(None), "epochs")
    assert (first.job.config.attempt, first.job.config.restore) == (5, None)
    assert first.job.asked == ["start"]
    assert first.system.failover.mock_calls == [call.take({"counter": PlansPast(3)})]
    assert first.began[-1] == Incarnation({}, 5)


@pytest.mark.parametrize("in_another_process", [False, True])
def test_one_that_dies_while_it_starts_has_been_an_incarnation_as_some_slots_may_have_given_results(
    made, monkeypatch, in_another_process
):
    monkeypatch.setattr(Job, "start", Mock(side_effect=QueryDied("a part is missing")))
    first, second = made.replicas.all
    first.lives = False
    with pytest.raises(QueryDied):
        if in_another_process:
            made.replicas.go_on(first, journal_of(SAVED), "epochs")
        else:
            made.replicas.lead_next(first, SAVED, "run-r1", second)
    assert first.began[-1] == Incarnation({0: 7, 1: 9}, first.job.config.attempt) and not first.lives


@pytest.mark.parametrize("made", [{"spares": 1}], indirect=True)
def test_a_replica_that_comes_back_takes_a_spare_application_and_another_one_is_started_when_it_is_full(made):
    asked = []
    made.traffic.require_wanted = lambda: asked.append("is it wanted?")
    made.replicas.begin()
    assert len(asked) == len(made.opened) == 3, "while it waits for each of them"
    first = made.replicas.all[0]
    spare = next(each for each in made.opened if each.name == "spare-0")
    assert spare.did == ["begin", "await_ready"] and spare.gives_way
    assert made.replicas.parts() == {}, "nobody has a process"
    spare.pid = 78
    assert made.replicas.parts() == {78: Instance("spare")}
    made.replicas.begin_next(first)
    assert first.application is spare and spare.did == ["begin", "await_ready"]
    assert made.replicas.parts() == {78: Instance(replica=0)}
    made.replicas.begin_next(first)
    assert first.application.name == "0-1", "there is none left"
    made.replicas.spares.fill()
    made.replicas.spares.fill()
    assert [(each.name, each.did) for each in made.opened[-1:]] == [("spare-1", ["begin"])]
    made.replicas.stop()
    assert made.opened[-1].did == ["begin", "end"]


@pytest.mark.parametrize("made", [{"spares": 2}], indirect=True)
def test_a_spare_application_that_has_died_is_not_taken_and_nothing_of_it_is_left(made):
    made.replicas.begin()
    dead, lives = (each for each in made.opened if each.name.startswith("spare"))
    dead.isActive = False
    made.replicas.begin_next(made.replicas.all[0])
    assert made.replicas.all[0].application is lives and dead.did[-1] == "kill"


def test_a_spare_application_that_is_being_started_is_taken_by_nobody():
    class Starts(Application):
        def begin(self):
            taken.append(spares.take())
            self.did.append("begin")

    taken, opened = [], []
    spares = Spares(1, lambda part: opened.append(Starts(part, 0, True)) or opened[-1])
    spares.fill()
    assert taken == [None] and spares.take() is opened[0] and opened[0].did == ["begin"]


def test_of_a_spare_application_whose_start_is_interrupted_nothing_is_left():
    class Interrupted(Application):
        def begin(self):
            raise KeyboardInterrupt

    opened = []
    spares = Spares(1, lambda part: opened.append(Interrupted(part, 0, True)) or opened[-1])
    with pytest.raises(KeyboardInterrupt):
        spares.fill()
    assert opened[0].did == ["kill"] and spares.take() is None


def test_all_end_if_what_comes_before_fails_and_the_rest_of_that_comes_too(made):
    fails = Mock(side_effect=AssertionError("a bug"))
    did = made.replicas.all[0].application.did
    made.replicas.before_stop += [fails, lambda: did.append("the second")]
    with pytest.raises(AssertionError, match="a bug"):
        made.replicas.stop()
    assert did == ["the second", "end"] and made.replicas.all[1].application.did == ["end"]


def decided(made, *numbers):
    """What replicas of these numbers say together about the same thing."""
    said = [made.replicas.all[number].job.stages[0].agrees for number in numbers]
    results, threads = {}, []
    for number, each in zip(numbers, said, strict=True):

        def decide(number=number, each=each):
            results[number] = each.decide(("what", numbers), number, lambda said: max(said.values()), lambda: True)

        threads.append(threading.Thread(target=decide))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    return results


def test_those_that_live_agree_and_the_dead_have_no_say(made):
    assert decided(made, 0, 1) == {0: 1, 1: 1}
    first, second = made.replicas.all
    first.application.isActive = False
    assert decided(made, 1) == {1: 1}
    assert first.application.did == ["kill"], "its JVM might write on, by what the others have left behind"
    made.replicas.begin_next(first)
    assert decided(made, 1) == {1: 1}, "its application runs, and its job has not begun"
    first.lives = False
    made.replicas.lead_next(first, SAVED, "run-r1", second)
    assert decided(made, 1, 0) == {0: 1, 1: 1}


def test_one_that_is_late_ends_before_others_go_on_without_it(made):
    first, second = made.replicas.all
    assert first.job.stages[0].agrees.leave()
    assert (first.application.did, second.application.did) == (["kill"], [])
    assert not second.job.stages[0].agrees.leave()
    assert second.application.did == []


def test_what_hits_a_replica_in_a_phase_hits_its_own_application_and_all_else_the_services(made):
    kill, restart = parse("kill:replica@transfer, restart:kafka@switch")
    own = made.replicas.all[1].job.given[-1]
    own.require(restart)
    own.hit(restart)
    own.hit(kill)
    assert made.services.mock_calls == [call.require(restart), call.hit(restart)] and own.away is False
    assert [each.application.did for each in made.replicas.all] == [[], ["strike"]]
    assert [fault for _, fault in made.replicas.struck] == [kill]
    [stop] = parse("stop:replica@align:2s")
    own.hit(stop)
    assert made.replicas.all[1].application.did == ["strike", ("pause", 2.0)]
