"""What stands in for ZooKeeper and Flight does what the runs need of it; what ZooKeeper promises: tests/contract."""

import contextlib

import pyarrow.flight as flight
import pytest
from flaky_flight import Failures
from nodes import Ensemble, Session

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.nodes import ALL, Folder, Node
from waits import until

STEPS = Node("steps", int)
ACKS, SLOTS, HANDOVERS = (Folder(path, {"": str}) for path in ("acks/2", "slots", "handover"))


@pytest.fixture
def ensemble():
    ensemble = Ensemble(seed=1, delay_s=0.01)
    Session(ensemble, "/job").begin()
    return ensemble


def test_a_watch_hears_the_value_now_and_the_last_one_in_the_end(ensemble):
    one, other = Session(ensemble, "/job"), Session(ensemble, "/job")
    heard = []
    other.publish(STEPS, 0)
    one.watch(STEPS, heard.append)
    assert heard == [0]
    for value in range(1, 100):
        other.publish(STEPS, value)
    until(lambda: heard[-1] == 99)
    assert heard == sorted(heard), "an older value came behind a newer one"
    assert len(heard) < 100, "nothing was missed"


def test_acknowledgements_come_late_and_the_first_counts_but_nothing_overtakes_them(ensemble):
    ensemble.delay_s = 60.0
    one, other = Session(ensemble, "/job"), Session(ensemble, "/job")
    one.acknowledge(ACKS["prepared-0"], "first")
    one.acknowledge(ACKS["prepared-0"], "second")
    assert other.children(ACKS) == []
    one.publish(HANDOVERS[0], "here")
    assert other.read_below(ACKS) == {"prepared-0": "first"}


def test_an_expired_session_is_gone_for_a_while_and_then_registers_and_watches_anew(ensemble):
    one, other = Session(ensemble, "/job"), Session(ensemble, "/job")
    one.register(SLOTS[0], "here")
    heard = []
    other.watch(SLOTS[0], heard.append)
    one.watch(STEPS, lambda value: heard.append(f"steps {value}"))
    with ensemble.lock:  # its successor waits until somebody has looked
        one.expire()
        assert other.read(SLOTS[0]) is None
    one.acknowledge(ACKS["prepared-0"], "first")
    other.publish(STEPS, 2)
    assert one.read(SLOTS[0]) == "here", "whoever asks waits for the successor"
    until(lambda: "steps 2" in heard and other.children(ACKS))
    assert heard[0] == "here"
    one.withdraw(SLOTS[0])
    one.expire()
    assert one.read(SLOTS[0]) is None, "what was withdrawn is not registered again"


def test_a_lost_session_says_so_whatever_is_asked(ensemble):
    one, other = Session(ensemble, "/job"), Session(ensemble, "/job")
    one.register(SLOTS[0], "here")
    one.expire()
    one.lose()
    assert other.read(SLOTS[0]) is None
    for ask in (lambda: one.read(STEPS), lambda: one.acknowledge(STEPS, 1), lambda: one.publish(STEPS, 1)):
        with pytest.raises(ServiceUnavailable, match="was lost"):
            ask()


def test_what_is_said_late_when_the_root_is_gone_leaves_nothing_behind(ensemble):
    ensemble.delay_s = 60.0
    task, other, driver = (Session(ensemble, "/job") for _ in range(3))
    task.acknowledge(ACKS["prepared-0"], "first")
    driver.withdraw(ALL)
    for say in (lambda: other.register(SLOTS[0], "here"), lambda: other.publish(HANDOVERS[0], "here"), task.close):
        with contextlib.suppress(ServiceUnavailable):
            say()
    assert not ensemble.nodes


class Server(flight.FlightServerBase):
    def __init__(self):
        super().__init__("grpc://127.0.0.1:0")
        self.heard = 0

    def do_action(self, context, action):
        self.heard += 1
        return iter([flight.Result(b"answer")])


def test_calls_fail_before_and_after_they_have_worked_about_as_often_as_was_said():
    failures = Failures(seed=1, share=0.3, slow_s=0.0)
    with Server() as server:
        client = failures(f"grpc://127.0.0.1:{server.port}")
        failed = 0
        for _ in range(200):
            try:
                (answer,) = client.do_action(flight.Action("drop", b""))
                assert answer.body.to_pybytes() == b"answer"
            except flight.FlightError:
                failed += 1
        client.close()
        before, after = failures.counted["drop not said"], failures.counted["drop said, no answer"]
        assert before + after == failed
        assert server.heard == 200 - before
        assert 30 < before < 90 and 15 < after < 75


def test_a_service_whose_machine_has_gone_down_has_what_was_kept_of_it_and_no_session(ensemble):
    one = Session(ensemble, "/job")
    one.publish(STEPS, 1)
    one.register(SLOTS[0], "here")
    kept = ensemble.kept()
    one.publish(STEPS, 2)
    ensemble.go_back(kept)
    with pytest.raises(ServiceUnavailable):
        one.read(STEPS)
    other = Session(ensemble, "/job")
    assert other.read(STEPS) == 1 and other.children(SLOTS) == []
