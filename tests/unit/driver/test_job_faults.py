"""Faults as the driver sees them: each happens once, in the first attempt."""

from types import SimpleNamespace

import pytest

from keyshift.driver.job_faults import JobFaults
from keyshift.model.errors import BadInput
from keyshift.wire.faults import parse, parse_now


class Stage:
    """Keeps what its tasks are told."""

    def __init__(self, attempt):
        self.config = SimpleNamespace(attempt=attempt)
        given = {"watch_children": self.watch, "read": self.read, "acknowledge": self.acknowledge}
        self.participant, self.ask = SimpleNamespace(**given), self
        self.watched, self.told, self.failed, self.acknowledged = {}, [], [], []

    def watch(self, folder, call):
        self.watched[folder.path] = call

    def read(self, node):
        return "10.0.0.7:4000" if node.path == "slots/0" else None

    def acknowledge(self, node, value):
        self.acknowledged.append((node.path, value))

    def fail(self, fault):
        self.failed.append(str(fault))

    def tell(self, node, value):
        self.told.append((node.path, value.slot, value.fault.action))


class ServiceFaults:
    away, executors = True, False

    def __init__(self):
        self.hits = []

    def require(self, fault):
        if not self.executors and fault.who == "executor":
            raise BadInput(f"{fault} cannot happen")

    def allows(self, fault):
        return fault.who != "minio"

    def hit(self, fault, host=""):
        self.hits.append(f"{fault} {host}".strip())


@pytest.fixture
def struck():
    """JobFaults on two stages, which listen; with what they did."""

    def make(text, attempt=0):
        stages, services, phases = [Stage(attempt), Stage(attempt)], ServiceFaults(), []
        faults = JobFaults(parse(text), stages, phases.append, services)
        faults.listen()
        return SimpleNamespace(faults=faults, stages=stages, services=services, phases=phases)

    return make


def test_what_two_stages_come_to_happens_once(struck):
    made = struck("restart:kafka@transfer, restart:zookeeper@switch, stop:source@align:1s")
    first, second = made.stages
    first.watched["faults"]([])
    first.watched["faults"](["0"])
    second.watched["faults"](["0", "2"])
    for stage in made.stages:
        stage.at_phase(stage, "prepare")
        stage.at_phase(stage, "switch")
    assert made.services.hits == ["restart:kafka@transfer", "restart:zookeeper@switch"]
    assert [str(fault) for fault in made.faults.done] == [
        "restart:kafka@transfer",
        "stop:source@align:1s",  # has hit itself
        "restart:zookeeper@switch",
    ]
    assert [str(doing) for doing in made.phases] == ["fault: restart kafka", "fault: restart zookeeper"]
    assert [what for _, what in made.faults.struck] == [f"{f.action} {f.who}" for f in made.faults.done]
    assert made.faults.busy
    assert not first.told + second.told
    assert first.acknowledged == [("faults/2", "elsewhere")], "its slots are not to be hit by what hits itself"
    assert second.acknowledged == []


def test_a_later_attempt_has_no_faults_in_phases(struck):
    made = struck("restart:kafka@transfer, restart:zookeeper@switch", attempt=1)
    made.stages[0].at_phase(made.stages[0], "switch")
    assert made.stages[0].watched == {}
    assert made.services.hits == []


def test_the_coordinator_that_comes_to_the_phase_is_hit(struck):
    made = struck("kill:coordinator@switch, stop:coordinator@drain:2s")
    first, second = made.stages
    second.at_phase(second, "switch")
    first.at_phase(first, "switch")
    first.watched["faults"](["1"])
    assert (first.failed, second.failed) == (["stop:coordinator@drain:2s"], ["kill:coordinator@switch"])


def test_at_a_time_a_service_is_hit_or_the_first_slot_told_and_what_cannot_happen_here_is_refused(struck):
    made = struck("")
    with pytest.raises(BadInput, match="kill:executor cannot happen"):
        made.faults.hit(parse_now("kill:executor"))
    assert (made.faults.done, made.faults.struck, made.stages[0].told) == ([], [], [])
    for fault in parse("restart:minio@4, kill:slot@5"):
        made.faults.hit(fault)
    assert made.services.hits == ["restart:minio@4"]
    assert made.stages[0].told == [("fault", 0, "kill")]


def test_what_is_not_possible_any_more_when_its_phase_comes_has_not_happened(struck):
    made = struck("restart:minio@switch")
    for stage in made.stages:
        stage.at_phase(stage, "switch")
    assert (made.faults.done, made.faults.struck, made.services.hits, made.phases) == ([], [], [], [])


def test_a_replica_is_hit_as_services_are(struck):
    made = struck("kill:replica@transfer, kill:replica@switch")
    first, _ = made.stages
    first.watched["faults"](["0"])
    first.at_phase(first, "switch")
    assert made.services.hits == ["kill:replica@transfer", "kill:replica@switch"]


def test_the_executor_of_the_first_slot_is_deleted_by_who_deletes_pods_at_a_time_and_in_a_phase(struck):
    made = struck("kill:executor@transfer, kill:executor@4")
    made.services.executors = True
    made.stages[0].watched["faults"](["0"])
    made.faults.hit(parse("kill:executor@4")[0])
    assert made.services.hits == ["kill:executor@transfer 10.0.0.7", "kill:executor@4 10.0.0.7"]
    assert not made.stages[0].told
