"""The driver agrees with routers on an epoch, whether they are in a batch or between two."""

import threading
from dataclasses import replace

import pytest
from small_job import CONFIG

from keyshift.driver import appointments
from keyshift.driver.agreement import Agreement, MemberSay
from keyshift.driver.appointments import LEAST_US, MOST_US, Appointments
from keyshift.model.errors import MigrationFailed
from keyshift.protocol.coordinator import Appointment
from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination

ROUTERS = 2
CONFIG = replace(CONFIG, routers=ROUTERS, ordering="live_robin", heartbeat_us=20_000)


class World:
    """Routers answer what ``says`` gives for their number and the epoch, if anything; ``told``: what they heard of
    ``what``, on which one agrees once.
    """

    def __init__(self, says, config=CONFIG, agrees=None):
        self.nodes = MemoryCoordination(Memory(), config.root)
        self.nodes.begin()
        self.says, self.told, self.appointments = says, [], Appointments(config, self.nodes, agrees)
        self.what = "7"

    def tell(self, appointment):
        self.told.append(appointment)
        for router in range(ROUTERS):
            answer = self.says(router, len(self.told))
            if not appointment.holds and answer is not None:
                self.nodes.acknowledge(nodes.confirmed(self.what)[nodes.of_epoch(appointment.epoch, router)], answer)

    def make(self, at_us=0):
        self.epoch = self.appointments.make(self.what, self.tell, lambda: True, at_us)
        return self.told


def test_an_appointment_holds_when_all_routers_have_confirmed_it_and_otherwise_another_epoch_is_appointed():
    world = World(lambda router, time: True)
    asked, held = world.make()
    assert held == Appointment(asked.epoch, holds=True) and not asked.holds
    assert world.nodes.children(nodes.confirmed("7")) == [], "nothing is left of it"
    first, second, held = World(lambda router, time: router == 0 or time > 1).make()
    assert first.epoch < second.epoch == held.epoch and held.holds and not second.holds


def test_one_may_be_for_later_and_is_for_the_usual_time_if_a_router_has_passed_that():
    world = World(lambda router, time: True)
    asked, held = world.make(at_us=10**17)
    assert asked.epoch == held.epoch == world.epoch == 10**17 // 20_000 + 1
    world = World(lambda router, time: time > 1)
    passed, _, held = world.make(at_us=10**17)
    assert passed.epoch == asked.epoch > held.epoch == world.epoch


def test_how_far_ahead_an_epoch_is_stays_between_limits(monkeypatch):
    monkeypatch.setattr(appointments, "now_us", lambda: 0)
    config = replace(CONFIG, heartbeat_us=1)
    world, late = World(lambda router, time: True, config), World(lambda router, time: False, config)
    for number in range(20):
        world.what = str(number)
        world.make()
    late.appointments.make("7", late.tell, lambda: len(late.told) < 20)
    assert [each.told[-1].epoch for each in (world, late)] == [LEAST_US + 1, MOST_US + 1]


def test_for_a_router_between_two_batches_it_counts_how_far_it_has_come():
    world = World(lambda router, time: True if router == 0 else None)
    world.nodes.publish(nodes.ROUTERS[1], 40_000)
    assert len(world.make()) == 2
    world = World(lambda router, time: True if router == 0 else None)
    world.nodes.publish(nodes.ROUTERS[1], 10**17)
    world.appointments.make("7", world.tell, lambda: len(world.told) < 3)
    assert [each.holds for each in world.told] == [False] * 3, "it has come further than all of them"


def test_a_router_that_does_not_answer_is_named():
    world = World(lambda router, time: True if router == 0 else None, replace(CONFIG, deadline_s=0.1))
    with pytest.raises(MigrationFailed, match=r"7 is appointed: router 1 did not answer within 0.1 s"):
        world.make()


def together(*worlds):
    """All of them appoint the same thing, each in a thread of its own."""
    threads = [threading.Thread(target=world.make, daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_replicas_appoint_the_same_epoch_and_it_holds_if_the_routers_of_all_have_confirmed_it():
    agreement = Agreement(lambda: [(0, 0), (1, 0)])
    always = World(lambda router, time: True, agrees=MemberSay(agreement, (0, 0)))
    later = World(lambda router, time: router == 0 or time > 1, agrees=MemberSay(agreement, (1, 0)))
    together(always, later)
    assert always.told == later.told and [each.holds for each in always.told] == [False, False, True]
    assert always.told[0].epoch < always.told[1].epoch == always.epoch == later.epoch


def test_of_one_that_dies_before_it_has_confirmed_nobody_knows_if_it_has_passed_the_epoch_so_another_one_is_appointed():
    living = [(0, 0), (1, 0)]
    agreement = Agreement(lambda: living)

    def dies(router, time):
        living[:] = [(0, 0)]
        return True

    lives = World(lambda router, time: True, agrees=MemberSay(agreement, (0, 0)))
    dead = World(dies, agrees=MemberSay(agreement, (1, 0)))
    together(lives, dead)
    assert [each.holds for each in lives.told] == [False, False, True]
    assert lives.told[0].epoch < lives.told[1].epoch == lives.epoch
    assert dead.epoch is None and not any(each.holds for each in dead.told)
