"""The threads around an order machine that follows a leader."""

import contextlib
import math
import threading
from dataclasses import replace

import pytest
from small_job import CONFIG

from keyshift.ordering import Record
from keyshift.worker.order.following import Following
from order_services import OrderServices
from waits import until

BEFORE, LATE = ((due, 0, Record(1, 0)) for due in (0.0, math.inf))


class Told:
    def __init__(self):
        self.heard_, self.terms, self.in_turn, self.abreast = [], [], False, False

    def heard(self, records):
        assert self.in_turn
        self.heard_.append(list(records))

    def elected(self, term):
        assert self.in_turn
        self.terms.append(term)


@pytest.fixture
def services():
    with OrderServices(seed=1, late_s=0.0, fails=0.0, expires_s=600.0).installed() as services:
        yield services


@pytest.fixture
def made(services):
    config = replace(CONFIG, job="run", slots_before=3, session_ms=200, token="secret").of_replica(1)
    return Following(config, 2, 40)


def test_the_log_is_that_of_the_slot_in_all_replicas_and_so_is_the_election(services, made):
    log, election = services.made
    assert (log.partition, log.next, log.replica) == (("run-order", 5), 40, 1)
    assert (election.slot, election.replica) == (("run", CONFIG.stage, 2), 1)
    assert (election.secret, election.session_s) == ("secret", 0.2)


def test_what_is_read_and_each_term_are_told_in_a_turn_until_it_is_closed(services, made):
    told, lock, log = Told(), threading.Lock(), services.logs["run-order", 5]
    log += [*[BEFORE] * 40, LATE]

    @contextlib.contextmanager
    def turn():
        with lock:
            told.in_turn = True
            yield
            told.in_turn = False

    threads = [threading.Thread(target=work) for work in made.works(told, turn)]
    for thread in threads:
        thread.start()
    until(lambda: told.heard_[2:])
    told.abreast = True
    until(lambda: told.heard_[9:])
    assert told.terms == [], "it has not read what was there"
    log[40] = BEFORE
    until(lambda: [(40, Record(1, 0))] in told.heard_ and told.terms == [1])
    made.append(Record(1, 2))
    until(lambda: [(41, Record(1, 2))] in told.heard_ and told.heard_[-1] == [])  # time passes, too
    made.resign()
    until(lambda: told.terms == [1, 2])
    made.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    order_log, election = services.made
    assert order_log.closed and election.lives and services.seen == {"resigned": 1}
