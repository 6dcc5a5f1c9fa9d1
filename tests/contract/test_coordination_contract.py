"""What every participant of a job may rely on: with the real ZooKeeper, and with the stand-ins that other tests use."""

import inspect
import secrets
import threading
import time
from typing import Any

import pytest
from nodes import Ensemble, Session

from keyshift.model.errors import Deposed, JobOver, NotThere, ServiceUnavailable
from keyshift.wire.coordination import Coordination
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ALL, Folder, Node
from keyshift.wire.tree import PART_BYTES, PARTS
from waits import until

DEADLINE_S = 60.0
STEPS, SLOT, ACKS = Node("steps", Any), Node("slots/1", Any), Folder("acks/2", {"": Any})


@pytest.fixture(params=["memory", "harness", "zookeeper"])
def make(request):
    """Makes a participant of a job of the test's own, from a root and an epoch; ``make.job`` is its name."""
    made, job = [], f"contract-{secrets.token_hex(4)}"
    memory, ensemble = Memory(), Ensemble(seed=1, delay_s=0.01)
    joins = {
        "memory": lambda *where: MemoryCoordination(memory, *where),
        "harness": lambda *where: Session(ensemble, *where),
        "zookeeper": lambda root, epoch: Coordination(
            request.getfixturevalue("session_stack").endpoints().zookeeper, root, "", epoch
        ),
    }

    def make(root="/keyshift/{job}/0", epoch=None):
        made.append(joins[request.param](root.format(job=job), epoch))
        return made[-1]

    make.job = job
    yield make
    for each in made:
        each.close()


@pytest.fixture
def join(make):
    """Makes another participant, below a root that is there."""
    make().begin()
    return make


def test_the_stand_in_has_the_methods_of_the_real_one():
    def methods(kind):
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in found if not name.startswith("_")}

    ours = methods(MemoryCoordination)
    assert {name: ours.get(name) for name in methods(Coordination)} == methods(Coordination)


def test_what_one_publishes_another_reads_until_it_is_withdrawn(join):
    one, other = join(), join()
    assert other.read(STEPS) is None
    for value in (1, {"of": ["any", "kind"]}):
        one.publish(STEPS, value)
        assert other.read(STEPS) == other.require(STEPS) == value
    one.withdraw(STEPS)
    one.withdraw(STEPS)
    assert other.read(STEPS) is None
    with pytest.raises(ServiceUnavailable, match="steps is missing"):
        other.require(STEPS)


def test_a_long_value_that_another_one_overwrites_leaves_nothing_behind(join):
    values = [secrets.token_hex(PART_BYTES) for _ in range(3)]
    for value in values:
        join().publish(STEPS, value)
    assert join().read(STEPS) == values[-1]
    join().publish(STEPS, "short")
    assert join().children(Folder(PARTS, {})) == []


def test_who_has_caught_up_reads_what_others_have_written_until_then(join):
    one, other = join(), join()
    for value in range(20):
        one.publish(STEPS, value)
        other.catch_up()
        assert other.read(STEPS) == value


def test_a_folder_goes_with_all_that_is_in_it(join):
    one, other = join(), join()
    assert other.children(ACKS) == [] and other.read_below(ACKS) == {}
    one.publish(ACKS["a"], 1)
    one.publish(ACKS["b"], 2)
    one.publish(STEPS, 3)
    assert sorted(other.children(ACKS)) == ["a", "b"] and other.read_below(ACKS) == {"a": 1, "b": 2}
    one.withdraw(ACKS)
    assert other.children(ACKS) == [] and other.read(STEPS) == 3


def test_a_folder_with_a_whole_path_is_seen_from_below_another_root(join):
    one, other = join(), join("/keyshift/{job}/1/stage")
    assert one.children(Folder(f"/keyshift/{join.job}", {})) == ["0"]
    other.begin()
    other.publish(ACKS["a"], 1)
    assert sorted(one.children(Folder(f"/keyshift/{join.job}", {}))) == ["0", "1"]
    assert one.read_below(Folder(f"/keyshift/{join.job}/1/stage/{ACKS.path}", {"": Any})) == {"a": 1}


def test_of_acknowledgements_the_first_counts_and_what_is_published_later_does_not_overtake_them(join):
    one, other = join(), join()
    one.acknowledge(ACKS["a"], "first")
    one.acknowledge(ACKS["a"], "second")
    one.publish(STEPS, 1)
    assert other.read_below(ACKS) == {"a": "first"}


def test_what_was_registered_goes_with_its_session_and_the_last_one_holds_it(join):
    one, other, third = join(), join(), join()
    one.register(SLOT, "here")
    other.register(SLOT, "there")
    assert third.read(SLOT) == "there"
    one.close()
    assert third.read(SLOT) == "there"
    other.close()
    assert third.read(SLOT) is None


def test_a_watch_hears_what_is_there_now_and_later_also_when_it_was_gone(join):
    one, other = join(), join()
    heard, later = [], []
    one.watch(STEPS, heard.append)
    assert heard == []
    other.publish(STEPS, 1)
    until(lambda: heard == [1])
    one.watch(STEPS, later.append)
    assert later == [1]
    other.withdraw(STEPS)
    other.publish(STEPS, 2)
    until(lambda: heard[-1] == later[-1] == 2)


def test_a_watch_ends_with_false(join):
    one, other = join(), join()
    heard, last = [], []
    one.watch(STEPS, lambda value: heard.append(value) or False)
    other.publish(STEPS, 1)
    until(lambda: heard)
    one.watch(STEPS, last.append)
    other.publish(STEPS, 2)
    until(lambda: last[-1] == 2)
    assert heard == [1]


def test_a_watch_of_a_folder_hears_its_names(join):
    one, other = join(), join()
    heard = []
    one.watch_children(ACKS, lambda names: heard.append(sorted(names)))
    assert heard == [[]]
    other.acknowledge(ACKS["a"], 1)
    other.acknowledge(ACKS["b"], 1)
    until(lambda: heard[-1] == ["a", "b"])


def test_a_watch_of_a_folder_that_was_ended_hears_nothing_more(join):
    one, other = join(), join()
    heard, last = [], []
    end = one.watch_children(ACKS, heard.append)
    end()
    end()
    one.watch_children(ACKS, last.append)
    other.acknowledge(ACKS["a"], 1)
    until(lambda: last[-1:] == [["a"]])
    assert heard == [[]]


def test_who_hears_something_may_say_something(join):
    one, other = join(), join()
    one.watch(STEPS, lambda value: one.acknowledge(ACKS[str(value)], value))
    other.publish(STEPS, 1)
    until(lambda: other.children(ACKS) == ["1"])


@pytest.mark.parametrize("say", ["publish", "register", "watch_children"])
def test_without_a_root_nobody_says_anything(join, say):
    driver, task = join(), join()
    driver.publish(STEPS, 1)
    driver.withdraw(ALL)
    with pytest.raises(ServiceUnavailable):
        getattr(task, say)(*([ACKS, print] if say == "watch_children" else [SLOT, "here"]))
    assert driver.read(STEPS) is None


def test_one_leads_at_a_time_and_who_has_led_before_another_one_publishes_nothing(join):
    one, other = join(), join()
    leads, may_end, order = threading.Event(), threading.Event(), []

    def act():
        one.publish(STEPS, "one")
        order.append("one")
        leads.set()
        assert may_end.wait(DEADLINE_S)

    def follow():
        other.publish(STEPS, "other")
        order.append("other")

    first = threading.Thread(target=one.lead, args=("one", act), daemon=True)
    first.start()
    assert leads.wait(DEADLINE_S)
    second = threading.Thread(target=other.lead, args=("other", follow), daemon=True)
    second.start()
    time.sleep(0.05)
    assert order == ["one"]
    may_end.set()
    second.join(DEADLINE_S)
    assert order == ["one", "other"]
    with pytest.raises(ServiceUnavailable, match="steps is not written: another coordinator leads"):
        one.publish(STEPS, "one")
    assert one.read(STEPS) == "other"


def test_a_driver_whose_job_another_one_has_claimed_writes_and_deletes_nothing(make):
    nodes, job = make("/keyshift/{job}"), make.job
    with pytest.raises(NotThere):
        nodes.claim(job)
    assert nodes.epoch_of(job) is None
    epoch, claims = nodes.claim(job, first=True), []
    assert nodes.epoch_of(job) == epoch
    old, leader = make(epoch=epoch), make(epoch=epoch)
    old.begin()

    def lead():
        leader.publish(STEPS, 1)
        claims.append(nodes.claim(job))
        for node in (STEPS, SLOT):  # one that is there, and one that is not
            with pytest.raises(Deposed):
                leader.publish(node, 2)

    leader.lead("leader", lead)
    new = make(epoch=claims[0])
    for act in (
        lambda: old.publish(STEPS, 2),
        lambda: old.withdraw(STEPS),
        old.begin,
        old.require_epoch,
        old.end_epoch,
        lambda: old.lead("old", lambda: None),
    ):
        with pytest.raises(Deposed):
            act()
    new.require_epoch()
    assert new.read(STEPS) == 1 and new.read(SLOT) is None
    assert [nodes.epoch_of(job)] == claims
    new.end_epoch()
    new.end_epoch()
    assert nodes.epoch_of(job) is None
    with pytest.raises(JobOver):
        nodes.claim(job)
    nodes.withdraw(ALL)
    with pytest.raises(NotThere) as gone:
        nodes.claim(job)
    assert not isinstance(gone.value, JobOver)
    with pytest.raises(Deposed):
        old.publish(STEPS, 2)
    assert nodes.children(ALL) == []
