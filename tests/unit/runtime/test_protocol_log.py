"""What a place remembers of the protocol, and the order of what all places remember."""

import json
import random

from keyshift.protocol.slot import Freeze, Installed, Open, Prepared, Request, Send
from keyshift.runtime.protocol_log import EVENTS, LogEvent, ProtocolLog, in_order, to_lines
from keyshift.wire.nodes import logs

LOG = logs("one")["slot-1"]


def test_events_get_the_time_of_their_turn_and_the_oldest_are_forgotten():
    log = ProtocolLog("slot-1")
    for version in range(EVENTS + 2):
        log.note("published", version=version)
        log.note("barrier", version=version)
        log.stamp(100 + version)
    assert len(log.events) == EVENTS and not log.new
    assert log.events[-1] == LogEvent(100 + EVENTS + 1, "slot-1", "barrier", (), EVENTS + 1)
    assert log.events[0] == LogEvent(100 + EVENTS // 2 + 2, "slot-1", "published", (), EVENTS // 2 + 2)


def test_where_several_stages_have_such_places_both_are_named_with_theirs():
    event = LogEvent(1, "slot-1", "send", (3,), 5, 1, "slot-2")
    assert event.within("counter-1")[1::5] == ("counter-1 slot-1", "counter-1 slot-2")
    assert event._replace(other="").within("counter-1").other == ""


def test_effects_are_noted_with_what_they_are_about():
    log = ProtocolLog("slot-1")
    effects = (
        Prepared(5),
        Send(3, 2, 5, None, 1),
        Send(4, 2, 5, frozenset({0}), 1),
        Send(4, 2, 5, frozenset(), 2),
        Open(4, 2, 5),
        Request(6, 0, 5, 1, 3),
        Installed(5, frozenset({9, 6})),
        Freeze("sp"),
    )
    for effect in effects:
        log.effect(effect)
    assert [event[2:] for event in log.new] == [
        ("prepared", (), 5, 0, ""),
        ("send", (3,), 5, 1, "slot-2"),
        ("lend", (4,), 5, 1, "slot-2"),
        ("return", (4,), 5, 2, "slot-2"),
        ("open", (4,), 5, 0, "slot-2"),
        ("request", (6,), 5, 3, "slot-0"),
        ("installed", (6, 9), 5, 0, ""),
        ("freeze", (), 0, 0, ""),
    ]


def test_an_acknowledgement_is_of_what_was_sent_last():
    log = ProtocolLog("slot-1")
    log.effect(Send(3, 2, 5, frozenset({0}), 1))
    log.acknowledged(3)
    log.effect(Open(3, 2, 5))
    log.acknowledged(3)
    assert [event[3:6] for event in log.new if event.event == "acknowledged"] == [((3,), 5, 1), ((3,), 5, 0)]


def test_what_has_travelled_goes_on_where_it_was():
    log, other = ProtocolLog("slot-1"), ProtocolLog("slot-1")
    log.note("arrived", [3], 5, 1)
    log.stamp(10)
    other.note("begin")
    other.remember(LOG.decode(LOG.encode(tuple(log.events))))
    other.stamp(11)
    assert list(other.events) == [LogEvent(10, "slot-1", "arrived", (3,), 5, 1), LogEvent(11, "slot-1", "begin")]
    lines = [json.loads(line) for line in to_lines(other.events).splitlines()]
    assert [LogEvent(**line | {"units": tuple(line["units"])}) for line in lines] == list(other.events)


# A step that moves unit 3 from slot 0 to slot 1, in one of the orders in which it may have happened.
MOVE = [
    ("coordinator", "publish", (3,), 5),
    ("slot-0", "published", (), 5),
    ("slot-1", "published", (), 5),
    ("slot-1", "prepared", (), 5),
    ("slot-0", "prepared", (), 5),
    ("coordinator", "switched", (3,), 5),
    ("router-0", "switch", (), 5),
    ("slot-0", "barrier", (), 5, 0, "router-0"),
    ("router-1", "switch", (), 5),
    ("slot-1", "barrier", (), 5, 0, "router-0"),
    ("slot-0", "barrier", (), 5, 0, "router-1"),
    ("slot-0", "lend", (3,), 5, 1, "slot-1"),
    ("slot-1", "arrived", (3,), 5, 1),
    ("slot-0", "acknowledged", (3,), 5, 1),
    ("slot-0", "open", (3,), 5, 0, "slot-1"),
    ("slot-1", "opened", (3,), 5),
    ("slot-1", "installed", (3,), 5),
    ("slot-0", "acknowledged", (3,), 5),
    ("slot-0", "released", (3,), 5),
    ("coordinator", "complete", (3,), 5),
]
EVENTS_OF_MOVE = [LogEvent(us, *what) for us, what in enumerate(MOVE)]
CAUSE_AND_EFFECT = [
    (("coordinator", "publish"), ("slot-0", "published")),
    (("slot-0", "prepared"), ("coordinator", "switched")),
    (("slot-1", "prepared"), ("coordinator", "switched")),
    (("coordinator", "switched"), ("router-0", "switch")),
    (("router-0", "switch"), ("slot-0", "barrier")),
    (("router-1", "switch"), ("slot-0", "lend")),
    (("slot-0", "lend"), ("slot-1", "arrived")),
    (("slot-1", "arrived"), ("slot-0", "acknowledged")),
    (("slot-0", "open"), ("slot-1", "opened")),
    (("slot-1", "installed"), ("coordinator", "complete")),
    (("slot-0", "released"), ("coordinator", "complete")),
]


def by_place(events, ahead_us):
    """The log of each place, whose clock is ahead by so much."""
    return [
        [event._replace(at_us=event.at_us + us) for event in events if event.place == place]
        for place, us in ahead_us.items()
    ]


def test_with_one_clock_events_are_in_the_order_of_time():
    places = {event.place for event in EVENTS_OF_MOVE}
    assert in_order(by_place(EVENTS_OF_MOVE, dict.fromkeys(sorted(places), 0))) == EVENTS_OF_MOVE


def test_whatever_clocks_say_a_cause_comes_before_its_effect():
    rng = random.Random(3)
    places = sorted({event.place for event in EVENTS_OF_MOVE})
    for _ in range(200):
        ordered = in_order(by_place(EVENTS_OF_MOVE, {place: rng.randrange(-30, 30) for place in places}))
        first = {}
        for number, event in enumerate(ordered):
            first.setdefault((event.place, event.event), number)
        for cause, effect in CAUSE_AND_EFFECT:
            assert first[cause] < first[effect], ordered
        for place in places:
            assert [e[2:] for e in ordered if e.place == place] == [e[2:] for e in EVENTS_OF_MOVE if e.place == place]


def test_where_no_order_fits_nothing_is_lost():
    """A log that has forgotten its beginning may seem to wait for what came later."""
    one = [LogEvent(1, "slot-0", "arrived", (3,), 5, 1), LogEvent(2, "slot-0", "send", (4,), 5, 1)]
    two = [LogEvent(3, "slot-1", "arrived", (4,), 5, 1), LogEvent(4, "slot-1", "send", (3,), 5, 1)]
    assert in_order([one, two]) == [*one, *two]
