"""Whatever becomes of their rows on the way, slots of two jobs on one input do the same things in the same order."""

import pytest
from two_replicas import Replica, run


def agreed(one: list, other: list) -> int:
    """So many elements are the same from the beginning on."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def results_agree(replicas: list[Replica]) -> bool:
    """As far as both of them come: the last timers fire in one only."""
    first, second = (replica.results for replica in replicas)
    shorter = {slot: min(len(first[slot]), len(second[slot])) for slot in range(2)}
    assert sum(shorter.values()) > 100
    return all(agreed(first[slot], second[slot]) == shorter[slot] for slot in range(2))


@pytest.mark.parametrize("workload", ["keycount", "windowcount"])
def test_replicas_with_an_order_do_the_same_turns_and_give_the_same_results(workload):
    replicas = run(1, "live_robin", workload)
    first, second = (replica.turns for replica in replicas)
    for slot in range(2):
        assert agreed(first[slot], second[slot]) > 60, "behind the savepoint of one of them chains differ"
        assert [number for number, _ in first[slot]] == list(range(1, 1 + len(first[slot])))
    assert results_agree(replicas)
    assert all(replica.batches > 3 for replica in replicas)


def test_replicas_without_an_order_give_their_results_in_different_orders():
    assert not results_agree(run(1, "none"))
