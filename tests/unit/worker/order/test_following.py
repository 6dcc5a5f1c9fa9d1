"""The threads around an order machine that follows a leader."""

import contextlib
import threading
from dataclasses import replace

import pytest
from small_job import CONFIG

from keyshift.ordering import Record
from keyshift.worker.order import following
from keyshift.worker.order.following import Following
from waits import until


class Log:
    def __init__(self, *place):
        self.place, self.records, self.closed, self.next = place[1:], [], False, 0
        self.append = self.records.append

    def end(self):
        return 1

    def read(self, timeout_s):
        threading.Event().wait(timeout_s / 10)
        assert not self.closed
        found = [*enumerate(self.records)][self.next :]
        self.next += len(found)
        return found

    def close(self):
        self.closed = True


class Election:
    def __init__(self, *given):
        self.given, self.over, self.resigned, self.kept = given, threading.Event(), 0, False

    def stand(self, elected):
        elected(7)
        self.over.wait()

    def keep(self):
        self.kept = True

    def resign(self):
        self.resigned += 1

    def withdraw(self):
        self.over.set()

    close = withdraw


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
def made(monkeypatch):
    """``made.log`` and ``made.election`` are stand-ins."""
    seen = {}
    for name, kind in ("OrderLog", Log), ("Election", Election):
        opened = lambda *given, name=name, kind=kind: seen.setdefault(name, kind(*given))  # noqa: E731
        monkeypatch.setattr(following, name, opened)
    config = replace(CONFIG, job="run", slots_before=3, session_ms=200, token="secret").of_replica(1)
    made = Following(config, 2, 40)
    made.log, made.election = seen["OrderLog"], seen["Election"]
    return made


def test_the_log_is_that_of_the_slot_in_all_replicas_and_so_is_the_election(made):
    assert made.log.place == ("run-order", 5, 40, 1)
    _, *given = made.election.given
    assert given == ["secret", "run", (CONFIG.stage, 2), 1, 0.2]


def test_what_is_read_and_each_term_are_told_in_a_turn_until_it_is_closed(made):
    told, lock = Told(), threading.Lock()

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
    made.append(Record(7, 0))
    until(lambda: [(0, Record(7, 0))] in told.heard_ and told.terms == [7])
    until(lambda: told.heard_[-1] == [])  # time passes, too
    made.resign()
    made.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert made.log.closed and made.election.kept and made.election.resigned == 1
