"""Whatever becomes of their rows on the way, slots of two jobs on one input do the same things in the same order."""

from collections import defaultdict

import pytest
from two_replicas import (
    BATCHES,
    COMPARED,
    TURNS,
    Frame,
    Replica,
    Replicas,
    dies_and_returns,
    driver_dies,
    moves_and_dies,
    run,
    two_die,
)

from keyshift.lab.replicas.returning import Returns
from keyshift.lab.replicas.system import LiveReplicas
from keyshift.ordering import orderings
from keyshift.traffic.copies import FirstCopies
from mutation import Mutants
from small_run import at_night


def agreed(one: list, other: list) -> int:
    """So many elements are the same from the beginning on."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def results_agree(replicas: list[Replica]) -> bool:
    """As far as both of them come: the last timers fire in one only."""
    first, second = (replica.results for replica in replicas)
    shorter = {slot: min(len(first[slot]), len(second[slot])) for slot in range(2)}
    assert sum(shorter.values()) > 100
    return all(agreed(first[slot], second[slot]) == shorter[slot] for slot in range(2))


AGREE = [name for name, protocol in orderings.items() if protocol.agrees]


SHAPES = {
    "keycount": {},
    "windowcount": {},
    "four stages": {"workload": "chain", "chain": "counter,map,counter,counter"},
    "saas": {},
}
STAGES = {"four stages": 4, "saas": 3}  # others have one
BY_DAY = {("time_merge", "windowcount"), ("live_robin", "four stages"), ("kazoo", "saas")}


@pytest.mark.parametrize(
    ("ordering", "shape"),
    [
        (ordering, shape) if (ordering, shape) in BY_DAY else at_night(ordering, shape)
        for ordering in AGREE
        for shape in SHAPES
    ],
)
def test_replicas_with_an_order_do_the_same_turns_and_give_the_same_results(ordering, shape):
    replicas = run(1, ordering, **({"workload": shape} | SHAPES[shape]))
    first, second = (replica.turns for replica in replicas)
    assert len(first) == 2 * STAGES.get(shape, 1)
    for place in first:
        stopped = min(replica.stopped[place] for replica in replicas)
        assert agreed(first[place], second[place]) >= stopped > TURNS, "behind it chains differ: its name is in them"
        assert [number for number, _ in first[place]] == list(range(1, 1 + len(first[place])))
    assert results_agree(replicas)
    assert all(replica.batches > BATCHES for replica in replicas)


@pytest.mark.parametrize(
    ("ordering", "workload"),
    [
        *(("live_robin", "chain"), ("kazoo", "windowcount")),
        *(at_night(*each) for each in (("live_robin", "windowcount"), ("kazoo", "chain"))),
        *(at_night(ordering, "keycount") for ordering in ("live_robin", "kazoo")),
    ],
)
def test_a_replica_that_begins_from_what_another_one_has_written_goes_on_with_the_same_turns(ordering, workload):
    lives, returns = run(1, ordering, workload, returns=True)
    for place, later in returns.turns.items():
        begin = lives.turns[place].index(later[0])
        assert begin > TURNS, "it has not begun from the beginning"
        assert agreed(lives.turns[place][begin:], later) > TURNS, "behind the savepoint of one of them chains differ"
    for slot in range(2):
        mine, theirs = returns.results[slot], lives.results[slot]
        assert len(mine) > 50
        at = theirs.index(mine[0])
        assert agreed(theirs[at:], mine) == min(len(theirs) - at, len(mine))


@pytest.mark.parametrize(
    ("ordering", "workload", "kept"),
    [("live_robin", "keycount", True), at_night("live_robin", "chain", False), ("kazoo", "chain", False)],
)
def test_a_replica_dies_comes_back_and_is_full_when_it_keeps_up_with_the_other_one(ordering, workload, kept):
    quick = {"slow_s": (0.005, 0.005)} if kept else {}  # it has more to replay
    dead, way, replicas = dies_and_returns(1, workload, kept, ordering=ordering, **quick)
    assert way.report.startswith("replica 1 was full again ") and way.full_at is not None
    assert ("its state was there, in capture-0" in way.report) is kept
    assert dead.lives and dead.application.did == ["ready", "important"]
    assert replicas.differences == [] and replicas.chains.compared > COMPARED


mutant = Mutants()


@mutant(Returns, "begin", "deaths")
def begins_no_second_way(original, ways, replica, from_older=True):
    if replica.number not in ways._not_full:
        original(ways, replica, from_older)


@mutant(LiveReplicas, "hit", "deaths")
def hits_who_has_just_died(original, job, fault):
    job._replicas.living[0].application.kill()


def each_came_back(replicas: Replicas) -> bool:
    """Of two that died, one at the second attempt."""
    return sorted(each.deaths for each in replicas.all) == [0, 1, 2] and len(replicas.living) == 3


def test_two_of_three_replicas_die_at_one_moment_and_come_back_though_the_first_way_back_fails():
    replicas, full, told = two_die(1)
    assert each_came_back(replicas) and full[-1] == 3, told
    assert sum("was full again" in line for line in told) == 2 and replicas.differences == []


@pytest.mark.parametrize("name", ["begins_no_second_way", "hits_who_has_just_died"])
def test_a_bug_in_that_is_found(name):
    with mutant.by_name[name].there():
        assert not each_came_back(two_die(1)[0])


def by_key(replica: Replica) -> dict[int, list[tuple]]:
    """The results of each key, by time. Each has its number among those of the key, so their order is in them."""
    found = defaultdict(list)
    for rows in replica.results.values():
        for key, *result in rows:
            found[key].append(tuple(result))
    return {key: sorted(results) for key, results in found.items()}


@pytest.mark.parametrize("workload", [at_night("keycount"), "chain"])
def test_what_comes_of_a_key_does_not_depend_on_the_slots_that_it_moves_between_meanwhile(workload):
    stays, moves = run(1, "live_robin", workload, moves="one")
    assert by_key(stays) == by_key(moves)
    homes = [[{key for key, *_ in rows} for rows in replica.results.values()] for replica in (stays, moves)]
    assert not set.intersection(*homes[0]) and len(set.intersection(*homes[1])) > 5, "they have moved in one"


@pytest.mark.parametrize("ordering", ["live_robin", at_night("time_merge")])
def test_replicas_that_move_one_after_the_other_have_the_same_turns_where_they_have_the_same_assignment(ordering):
    later, sooner = run(1, ordering, "windowcount", moves="one_by_one")
    assert by_key(later) == by_key(sooner)
    for place in later.turns:
        mine, theirs = dict(later.turns[place]), dict(sooner.turns[place])
        stopped = min(replica.stopped[place] for replica in (later, sooner))
        same = [mine[number] == theirs[number] for number in range(1, stopped + 1)]
        assert same[0] and same[-1] and not all(same), "they differ meanwhile"
        differ = [number for number, alike in enumerate(same) if not alike]
        assert len(differ) == differ[-1] - differ[0] + 1, "and only then"


@pytest.mark.parametrize(
    ("ordering", "workload"),
    [
        ("live_robin", "windowcount"),
        ("kazoo", "chain"),  # whose last stage moves
        *(at_night("time_merge", workload) for workload in ("windowcount", "chain")),  # by day units move in simulation
        *(at_night(*each) for each in (("kazoo", "windowcount"), ("live_robin", "keycount"), ("kazoo", "keycount"))),
    ],
)
def test_replicas_that_move_their_state_together_do_the_same_turns_and_give_the_same_results(ordering, workload):
    replicas = run(1, ordering, workload, moves="both")
    first, second = (replica.turns for replica in replicas)
    for place in first:
        stopped = min(replica.stopped[place] for replica in replicas)
        assert agreed(first[place], second[place]) >= stopped > TURNS
    assert results_agree(replicas)
    for replica in replicas:
        homes = [{key for key, *_ in rows} for rows in replica.results.values()]
        assert len(set.intersection(*homes)) > 5, "they have moved"


@pytest.mark.parametrize(
    ("ordering", "dies_after_s"),
    [("kazoo", 0.1), at_night("live_robin", 0.1), *(at_night(ordering, 0.6) for ordering in AGREE)],
)
def test_a_replica_dies_while_both_move_and_the_other_one_goes_on_with_all_of_it(ordering, dies_after_s):
    lives, dead, (replica, gone) = moves_and_dies(1, "keycount", dies_after_s, ordering)
    history = lives.job.stages[-1].history
    assert len(history.records) == 80 and {record.outcome for record in history.records} == {"complete"}
    assert len(dead.job.stages[-1].history.records) < 80, "it has died meanwhile"
    assert len(gone.turns) == 2, "in each of its slots"
    for place, turns in gone.turns.items():
        assert agreed(replica.turns[place], turns) == len(turns) > 2, "until it died it did the same"


def counted(frames: list[Frame]) -> dict[int, list[int]]:
    """The results of each key, of the first copies among these: the numbers of its events."""
    first, found = FirstCopies(), defaultdict(list)
    for frame in frames:
        if first.counts(frame.slot, frame.turn, 0):
            for key, count in zip(frame.rows["key"], frame.rows["count"], strict=True):
                found[key].append(count)
    return found


def each_once(found: dict[int, list[int]], due: int) -> bool:
    """Whether each event of each key has one result, in their order."""
    in_order = all(numbers == [*range(1, 1 + len(numbers))] for numbers in found.values())
    return in_order and sum(map(len, found.values())) == due


@pytest.mark.parametrize("ordering", [at_night("live_robin"), at_night("time_merge"), "kazoo"])
def test_another_driver_goes_on_with_both_and_what_they_gave_since_in_other_slots_counts_for_nothing(ordering):
    frames, superseded, due = driver_dies(1, ordering=ordering)

    def superseding(frame: Frame) -> bool:
        return not superseded.covers(frame.replica, frame.slot, frame.log_offset, "counter", frame.slot, frame.turn)

    kept = [frame for frame in frames if superseding(frame)]
    assert len(frames) - len(kept) > 20
    for some in (kept, *([frame for frame in kept if frame.replica == number] for number in range(2))):
        assert each_once(counted(some), due)
    assert not each_once(counted(frames), due), "otherwise what came in other slots is there twice, or not at all"


def test_replicas_without_an_order_give_their_results_in_different_orders():
    assert not results_agree(run(1, "none"))
