"""Replicas that agree: nobody waits for the dead, a decision is the same for all, and the last one goes on alone."""

import threading
import time

import pytest

from keyshift.driver import agreement
from keyshift.driver.agreement import Agreement, MemberSay, alone
from keyshift.waiting import wait_until


class Group:
    """Threads of members that decide about something; ``results``: by member."""

    def __init__(self, *members):
        self.living, self.wanted, self.results, self.threads = list(members), True, {}, []
        self.agreement = Agreement(lambda: self.living)

    def decide(self, member, what, mine, of_all):
        def run():
            say = MemberSay(self.agreement, member)
            self.results[member] = say.decide(what, mine, of_all, lambda: self.wanted)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def over(self):
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.results


FIRST, SECOND, THIRD = (0, 0), (1, 0), (2, 0)


def most(said):
    return max(said.values())


def every(said):
    return all(said.values())


def test_a_job_without_replicas_decides_at_once_and_stays():
    say = alone()
    assert say.decide("epoch", 7, most, lambda: True) == 7
    assert not say.leave() and say.decide("another", 8, most, lambda: True) == 8


def test_each_question_is_decided_by_itself():
    group = Group(FIRST, SECOND)
    group.decide(FIRST, "one", True, every)
    group.decide(SECOND, "another", True, every)
    assert not wait_until(lambda: group.results, 0.05, 0.005)
    group.decide(SECOND, "one", False, every)
    group.decide(FIRST, "another", True, every)
    assert group.over().keys() == {FIRST, SECOND}


def test_nobody_waits_for_the_dead_and_what_they_said_counts_for_nothing():
    group = Group(FIRST, SECOND, THIRD)
    group.decide(FIRST, "holds", True, every)
    group.decide(SECOND, "holds", False, every)
    assert not wait_until(lambda: group.results, 0.05, 0.005)
    group.living = [FIRST]
    assert group.over() == {FIRST: True, SECOND: None}


def test_a_decision_counts_for_whoever_asks_for_it_later():
    group = Group(FIRST, SECOND)
    group.living = [FIRST]
    group.decide(FIRST, "epoch", 5, most)
    group.over()
    group.living = [FIRST, SECOND]
    group.decide(SECOND, "epoch", 9, most)
    assert group.over() == {FIRST: 5, SECOND: 5}


def test_old_decisions_are_forgotten(monkeypatch):
    monkeypatch.setattr(agreement, "KEPT", 2)
    group = Group(FIRST)
    say = MemberSay(group.agreement, FIRST)
    for number in range(4):
        say.decide(number, number, most, lambda: True)
    assert say.decide(3, 9, most, lambda: True) == 3
    assert say.decide(0, 9, most, lambda: True) == 9


def test_whoever_does_not_want_it_any_more_waits_no_more():
    group = Group(FIRST, SECOND)
    group.decide(FIRST, "epoch", 5, most)
    group.wanted = False
    assert group.over() == {FIRST: None}


def test_what_is_decided_may_depend_on_who_says_it():
    group = Group(FIRST, SECOND)
    for member in (FIRST, SECOND):
        group.decide(member, "who", None, set)
    assert group.over()[FIRST] == {FIRST, SECOND}


def test_one_that_leaves_has_ended_before_others_go_on_without_it_and_the_last_one_does_not_leave():
    group, seen = Group(FIRST, SECOND), []
    group.decide(FIRST, "epoch", 5, most)

    def end():
        time.sleep(0.05)
        seen.append(group.results.copy())

    assert MemberSay(group.agreement, SECOND, end).leave()
    assert group.over() == {FIRST: 5} and seen == [{}]
    last = MemberSay(group.agreement, FIRST, lambda: pytest.fail("it goes on"))
    assert not last.leave()
    group.decide(SECOND, "epoch", 9, most)
    assert group.over()[SECOND] is None, "nobody counts on it any more"


@pytest.mark.parametrize("number", [2, 3])
def test_of_all_that_leave_at_once_one_stays(number):
    group, left = Group(*((each, 0) for each in range(number))), []
    threads = [
        threading.Thread(target=lambda each=each: left.append(MemberSay(group.agreement, (each, 0)).leave()))
        for each in range(number)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(left) == [False, *[True] * (number - 1)]


def test_the_next_attempt_of_one_that_has_left_has_a_say_again():
    group = Group(FIRST, SECOND)
    MemberSay(group.agreement, SECOND).leave()
    group.living = [FIRST, (1, 1)]
    group.decide(FIRST, "epoch", 5, most)
    group.decide((1, 1), "epoch", 9, most)
    assert group.over() == {FIRST: 9, (1, 1): 9}
