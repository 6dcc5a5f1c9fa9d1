"""Under which versions replicas do what is requested; in which order they are told is in ``test_system``."""

from types import SimpleNamespace

import pytest

from keyshift.lab.replicas.requests import MoveRequest, OneByOne, Together
from keyshift.model.keys import Assignment
from keyshift.traffic.copies import Standing


class Replica:
    """With its job, the only stage of that, and so on. It moves units one by one, and at once, to the slot that is
    asked for; ``late``: with this step of its first migration, behind which another one was prepared, and is dropped.
    ``under``: the owners by version.
    """

    name, lives, busy = "counter", True, False

    def __init__(self, number, used=1, late=None):
        self.number, self.used, self.late, self.under = number, used, late, {1: (0, 0, 0, 0)}
        self.system = self.job = self.plans = self.log = self
        self.stages, self.config = [self], SimpleNamespace(attempt=0)

    @property
    def assignment(self):
        version = max(self.under)
        return Assignment(version, self.under[version])

    def moves(self, stage):
        return False

    def adopt(self, proposal, behind):
        self.request(proposal.slot, "counter", behind)

    def request(self, slot, stage, behind):
        moving = [unit for unit, owner in enumerate(self.assignment.owner) if owner != slot]
        if moving:
            self.used = max(self.used, behind["counter"])
        for number, unit in enumerate(moving):
            owners = [*self.assignment.owner]
            owners[unit] = slot
            self.used += 1
            self.under[self.used] = tuple(owners)
            if number == self.late:
                self.used += 1
                break
        self.late = None


def told(kind, replicas, *slots, proposed=False):
    """All of them are told to move to these, one after the other."""
    keep_up = {each.number: Standing(0, 10**18) for each in replicas}
    requests = kind(SimpleNamespace(living=replicas, standings=keep_up), lambda line: None, lambda: False)
    for slot in slots:
        requests.add(MoveRequest(slot, None, SimpleNamespace(slot=slot, stage="counter") if proposed else None))
        while requests.waits:
            requests.pass_on()
    return replicas


@pytest.mark.parametrize("proposed", [False, True])
def test_what_moves_together_has_one_version_though_one_replica_has_used_more(proposed):
    """One came back when another one had taken steps back, with the same assignment."""
    later, sooner = told(Together, [Replica(0), Replica(1, used=3)], 1, 0, proposed=proposed)
    assert later.under == sooner.under and min(later.under.keys() - {1}) == 4


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("slots", [(1, 1, 0), (1, 0, 1), (1, 2, 0, 1)])
def test_replicas_that_move_apart_have_the_same_owners_under_the_same_version_though_a_step_was_late(late, slots):
    """The rest of a migration is dropped in one of them, which is asked for it again, or for something else."""
    first, second, third = told(OneByOne, [Replica(0, late=late), Replica(1), Replica(2, late=late)], *slots)
    assert first.under == third.under and max(first.under) == max(second.under), "they are compared in the end"
    same = first.under.keys() & second.under.keys()
    assert len(same) > 4 and all(first.under[version] == second.under[version] for version in same)
