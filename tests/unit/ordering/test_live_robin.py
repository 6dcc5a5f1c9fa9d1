"""Turns of live_robin and time_merge, by hand: two channels, epochs of 10 microseconds."""

import pytest

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering import Position, Setting
from keyshift.ordering.live_robin import LiveRobin
from keyshift.ordering.time_merge import TimeMerge
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, TICK, Row


def data(router, offset, watermark, payload=b"", version=1):
    return Row(DATA, router, version, offset, watermark, payload)


def tick(router, offset, watermark, version=1):
    return Row(TICK, router, version, offset, watermark)


def barrier(router, offset, version, kind=BARRIER, name=b""):
    return Row(kind, router, version, offset, 0, name)


def opened(machine=LiveRobin, **settings):
    setting = Setting(2, 10, **settings)
    return machine(setting, Position.begin(setting, 1))


def taken(machine, ready=True):
    turns = []
    while (turn := machine.take(ready)) is not None:
        turns.append(turn)
    return turns


def offsets(turn):
    return [(row.router, row.offset) for row in turn.rows]


def test_a_turn_ends_at_the_mark_of_each_channel_and_another_channel_is_first_each_time():
    machine = opened()
    machine.arrived([data(0, 0, 5), data(0, 1, 11), data(0, 2, 20), data(1, 0, 12)])
    (first,) = taken(machine)
    assert offsets(first) == [(1, 0), (0, 0), (0, 1)]
    assert (first.number, first.met, first.reached, first.clock) == (1, 0, 10, 10)
    assert machine.waiting_bytes > 0
    machine.arrived([tick(1, 1, 23)])
    (second,) = taken(machine)
    assert offsets(second) == [(0, 2), (1, 1)]
    assert (second.number, second.met, second.reached) == (2, 10, 20)
    assert machine.waiting_bytes == 0


@pytest.mark.parametrize("apart", [True, False])
def test_chains_of_replicas_that_have_differed_are_the_same_again_only_if_each_is_of_its_turn_alone(apart):
    one, other = opened(apart=apart), opened(apart=apart)
    for machine, payload in ((one, b"a"), (other, b"b")):
        machine.arrived([data(0, 0, 10, payload), tick(1, 0, 10), data(0, 1, 20, b"c"), tick(1, 1, 20)])
    (differs, again), (unlike, same) = taken(one), taken(other)
    assert differs.chain != unlike.chain and (again.chain == same.chain) is apart


def test_epochs_that_all_channels_close_at_once_are_one_turn():
    machine = opened()
    begin = 1_700_000_000_000_000
    machine.arrived([data(0, 0, begin), data(1, 0, begin + 35), data(0, 1, begin + 50)])
    first, second = taken(machine)
    assert (first.met, first.reached) == (0, begin)
    assert (second.number, second.met, second.reached) == (2, begin, begin + 30)
    assert offsets(second) == [(0, 1)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([data(0, 0, 5), barrier(0, 0, 2), data(1, 0, 10), tick(0, 1, 10, 2)], "has a barrier that is not behind"),
        ([data(0, 0, 10), data(0, 1, 20), barrier(0, 0, 2)], "at offset 0, and has come to offset 1"),
        ([data(0, 0, 10), data(0, 1, 20), barrier(0, 2, 2)], "at offset 2, and has"),
        ([data(0, 0, 10), barrier(0, 0, 2), data(1, 0, 10), data(1, 1, 20)], "channel 1 goes on at epoch 1, where"),
        ([data(0, 0, 10), barrier(0, 0, 3), data(1, 0, 10), barrier(1, 0, 2)], "stand at different barriers"),
        ([data(0, 0, 10), barrier(0, 0, 2), data(0, 0, 20, version=3)], "a row of version 3 at offset 0, where it was"),
        ([data(0, 0, 10), barrier(0, 0, 2), data(0, 1, 20)], "a row of version 1 behind version 2"),
    ],
    ids=["in an epoch", "in front of its mark", "behind it", "passed", "different ones", "again", "an old version"],
)
def test_what_cannot_be_there_ends_the_replica(rows, words):
    machine = opened()
    with pytest.raises(ProtocolViolation, match=words):
        machine.arrived(rows)
        taken(machine)


def test_captures_behind_one_frame_are_as_many_as_where_each_epoch_has_its_own_frame():
    def capture(router, offset, name):
        return barrier(router, offset, 1, CAPTURE, name)

    machine = opened()
    at_once = [tick(0, 0, 30), capture(0, 0, b"a"), capture(0, 0, b"b"), capture(0, 0, b"a"), tick(0, 1, 40)]
    alone = [tick(1, 0, 10), capture(1, 0, b"a"), tick(1, 1, 20), capture(1, 1, b"b"), tick(1, 2, 40)]
    machine.arrived([*at_once, *alone])
    turns = [machine.take(True) for _ in range(2)]
    position, waiting = machine.save()
    machine = LiveRobin(machine.setting, position)  # the next batch
    machine.arrived(waiting)
    turns += taken(machine)
    told = [[row.payload for row in turn.barriers] for turn in turns]
    assert told == [[], [b"a", b"a"], [], [b"b", b"b"], [], []]


def test_time_merge_gives_the_events_of_a_turn_to_its_sort_and_keeps_marks():
    seen = []

    def merge(rows):
        seen.append([row.payload for row in rows])
        return sorted(rows, key=lambda row: row.payload)

    machine = opened(TimeMerge, merge=merge)
    machine.arrived([data(0, 0, 4, b"c"), data(0, 1, 8, b"d"), tick(0, 2, 10)])
    machine.arrived([data(1, 0, 9, b"a"), data(1, 1, 12, b"b")])
    (turn,) = taken(machine)
    assert seen == [[b"a", b"b", b"c", b"d"]]
    assert [row.payload for row in turn.rows] == [b"a", b"b", b"c", b"d", b""]
