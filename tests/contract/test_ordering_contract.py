"""Every registered order protocol that promises to agree makes replicas of a slot deliver the same turns."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordering_mutants import BlocksInFrontOfItsBarrier, CutsRecordsAtACapture, GoesOnOverAGap

from keyshift.checks import check_ordering
from keyshift.model.errors import ContractBroken
from keyshift.ordering import Ordering, OrderProtocol, Position, Propose, orderings
from keyshift.ordering.kazoo import Kazoo
from keyshift.ordering.live_robin import LiveRobin
from keyshift.registry import Registry
from keyshift.runtime.row import CAPTURE, DATA
from keyshift.runtime.turn import Turn

AGREE = [name for name, protocol in orderings.items() if protocol.agrees]


@pytest.mark.parametrize("name", AGREE)
def test_it_passes_the_check_that_anybody_can_call(name):
    check_ordering(orderings.get(name))


@pytest.mark.parametrize("name", AGREE)
@given(seed=st.integers(0, 2**32))
def test_it_passes_with_any_seed(name, seed):
    check_ordering(orderings.get(name), examples=1, seed=seed)


# -- a protocol of one's own -------------------------------------------------------------------------------------------


class Backwards(LiveRobin):
    """The last channel first, always."""

    def _in_turn(self):
        return self.channels[::-1]


def test_a_new_protocol_is_one_class_and_one_line():
    known: Registry[OrderProtocol] = Registry("order protocol")
    known.register("backwards", OrderProtocol(Backwards, "the last channel first", "this test"))
    check_ordering(known.get("backwards"))


class LosesAnEvent(LiveRobin):
    def _ordered(self, rows):
        first = next((row for row in rows[1:] if row.kind == DATA), None)  # a turn has one at the least
        return [row for row in rows if row is not first]


class TurnsAround(LiveRobin):
    """Events of a channel overtake each other."""

    def _ordered(self, rows):
        return rows[::-1]


class Swallows(LiveRobin):
    """What is not for the core is nobody's."""

    def take_effects(self):
        self._effects = [effect for effect in self._effects if isinstance(effect, Propose)]
        return super().take_effects()


class StandsStill(LiveRobin):
    """Delivers nothing once barriers came."""

    stands = False

    def take(self, ready):
        turn = None if self.stands else super().take(ready)
        self.stands = self.stands or bool(turn and turn.barriers)
        return turn


class NeverEnds(LiveRobin):
    """Has always another turn, if need be without anything in it."""

    def take(self, ready):
        return super().take(ready) or Turn(self.turn, (), (), 0, 0, 0, 0)


class Eager(LiveRobin):
    """Gives rows whether the slot is ready or not."""

    def take(self, ready):
        return super().take(True)


class WantsRowsBetweenBarriers(LiveRobin):
    """Barriers come only where each channel has gone on since those before."""

    before = ()

    def take(self, ready):
        here = [channel.watermark for channel in self.channels]
        if all(channel.stands for channel in self.channels) and any(map(int.__eq__, self.before, here)):
            return None
        turn = super().take(ready)
        if turn and turn.barriers:
            self.before = here
        return turn


class GoesBack(LiveRobin):
    """The clock falls now and then."""

    def take(self, ready):
        turn = super().take(ready)
        return turn._replace(clock=self.clock - (self.turn % 3) * 100_000) if turn and turn.rows else turn


class DependsOnTheOwner(LiveRobin):
    """A slot takes first from the channel that has most for it."""

    def _in_turn(self):
        return sorted(self.channels, key=lambda each: sum(len(element.row.payload) for element in each.waiting))


class CountsCaptures(LiveRobin):
    """What one replica has alone goes into its chain."""

    def take(self, ready):
        turn = super().take(ready)
        self.chain += bool(turn and turn.barriers) and turn.barriers[0].kind == CAPTURE
        return turn


class SavesNoChannel(LiveRobin):
    @property
    def position(self):
        position = super().position
        return replace(position, places=Position.begin(self.setting, position.places[0].version).places)


class Forgets(LiveRobin):
    def save(self):
        position, _ = super().save()
        return position, []


class ForgetsCaptures(Kazoo):
    def save(self):
        return Ordering.save(self)


class CountsNothing(LiveRobin):
    waiting_bytes = 0


class Believes(Kazoo):
    """Whoever writes is obeyed."""

    def _counts(self, record):
        return record.number > 900 or super()._counts(record)


def of(machine: type[Ordering], **changes) -> OrderProtocol:
    leads = issubclass(machine, Kazoo)
    return OrderProtocol(machine, "somebody's own order", "this test", leads=leads)._replace(**changes)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (orderings.get("none"), "agrees = False: it promises no turns, so there is nothing to try"),
        (of(LosesAnEvent), "events are lost, 0 are delivered twice"),
        (of(TurnsAround), "events are delivered in another order than they came"),
        (of(Swallows), "0 of [0-9]+ rows passed by that are not for the core"),
        (of(StandsStill), "events are lost|not each barrier is delivered once|bytes wait"),
        (of(NeverEnds), "a turn has neither rows nor barriers"),
        (of(Eager), "turn [0-9]+ has rows, and the slot was not ready for any"),
        (of(BlocksInFrontOfItsBarrier), "barriers wait behind turn [0-9]+ until the slot is ready for rows"),
        (of(WantsRowsBetweenBarriers), "events are lost|not each barrier is delivered once|bytes wait"),
        (of(GoesBack), "the clock of turn [0-9]+ falls from"),
        (of(DependsOnTheOwner), "order of a key's events depends on the slot that owns it|differs between replicas"),
        (of(CountsCaptures), "turn [0-9]+ differs between replicas 0 and 1"),
        (of(SavesNoChannel), "events are lost|delivered twice|nothing was wrong|differs between replicas"),
        (of(Forgets), "events are lost|nothing was wrong, and the machine says|not each barrier"),
        (of(CutsRecordsAtACapture), "differs between replicas 0 and 1|replica 0 has delivered [0-9]+ turns, replica 1"),
        (of(ForgetsCaptures), "a capture is not delivered"),
        (of(CountsNothing), "bytes of one channel wait, and waiting_bytes is 0"),
        (of(Believes), "differs between replicas 0 and 3|replica 0 has delivered [0-9]+ turns, replica 3|nothing was"),
        (of(GoesOnOverAGap), "record [0-9]+ of term [0-9]+ is missing in the log, and the machine goes on"),
        (of(LiveRobin, summary=""), "summary '': must be one line"),
        (of(LiveRobin, source="two\nlines"), "source 'two.*lines': must be one line"),
    ],
    ids=lambda value: value.open.__name__ if isinstance(value, OrderProtocol) else "",
)
def test_the_check_says_in_plain_words_what_a_protocol_does_not_keep(protocol, words):
    with pytest.raises(ContractBroken, match=words) as broken:
        check_ordering(protocol)
    assert "\n" not in str(broken.value)
