"""What every order protocol promises: replicas of a slot deliver the same turns, whatever comes when."""

import random
from collections.abc import Callable, Sequence

from keyshift.checks.replicas import H_US, Input, Replica, by_key, events_of, hear, is_capture, run_together
from keyshift.model.errors import ProtocolViolation, require
from keyshift.model.keys import Version
from keyshift.ordering import OrderProtocol, Position, Record
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, TICK, Row
from keyshift.runtime.turn import Turn


def check_ordering(protocol: OrderProtocol, examples: int = 40, seed: int = 1) -> None:
    """Try ``protocol``, which promises to agree, with replicas of one slot behind up to three routers. Raises
    ContractBroken.

    ``examples``: of inputs in which no frame closes two appointed epochs, and half as many in which one may.
    """
    for what, text in (("summary", protocol.summary), ("source", protocol.source)):
        require(bool(text.strip()) and "\n" not in text, f"{what} {text!r}: must be one line")
    require(protocol.agrees, "agrees = False: it promises no turns, so there is nothing to try")
    rng = random.Random(seed)
    for number in range(examples + examples // 2 + 1):
        given = Input.draw(rng, later=rng.random() < 0.3, close=number >= examples)
        _check_together(protocol, given, rng)
        _check_flood(protocol, given, rng)
        _check_missing_rows(protocol, given)
        _check_capture(protocol, given, rng)
        if not protocol.leads:
            _check_owners(protocol, given, rng)


def _check_together(protocol: OrderProtocol, given: Input, rng: random.Random) -> None:
    """Try three replicas, one of which goes on in another machine after each call."""
    rows = given.rows()
    habits = ((0.0, 0.0), (1.0, 0.0), (0.1, 0.3))
    replicas = [Replica(protocol, given, rows, random.Random(rng.random()), *habit) for habit in habits]
    log: list[Record] = []
    _guarded(lambda: run_together(replicas, rng, log))
    for number, replica in enumerate(replicas):
        passed, sent = replica.markers_passed, replica.markers_sent
        require(passed == sent, f"{passed} of {sent} rows passed by that are not for the core")
        _check_complete(replica, rows)
        _check_times(replica.turns)
        _check_same(replicas[0].turns, replica.turns, number)
    if protocol.leads:
        _check_log(protocol, given, rows, log, replicas[0].turns, rng)


def _guarded(run: Callable[[], None]) -> None:
    try:
        run()
    except ProtocolViolation as error:
        require(False, f"nothing was wrong, and the machine says: {error}")


def _check_same(first: Sequence[Turn], other: Sequence[Turn], number: int) -> None:
    for one, another in zip(first, other, strict=False):
        require(one == another, f"turn {one.number} differs between replicas 0 and {number}: {one} and {another}")
    require(len(first) == len(other), f"replica 0 has delivered {len(first)} turns, replica {number} {len(other)}")


def _check_complete(replica: Replica, rows: Sequence[Sequence[Row]]) -> None:
    """Require each event once, in the order of its channel, and that nothing waits for ever."""
    delivered = [row for turn in replica.turns for row in (*turn.barriers, *turn.rows)]
    for channel, sent in enumerate(rows):
        expected = [(offset, event) for _, offset, event in events_of(sent)]
        found = [(offset, event) for router, offset, event in events_of(delivered) if router == channel]
        if sorted(found) == sorted(expected):
            require(found == expected, f"channel {channel}: events are delivered in another order than they came")
        lost, twice = len(set(expected) - set(found)), len(found) - len(set(found))
        require(found == expected, f"channel {channel}: {lost} events are lost, {twice} are delivered twice")
        said = [row for row in sent if row.kind not in (DATA, TICK)]
        barriers = [row for row in delivered if row.router == channel and row in said]
        require(barriers == said, f"channel {channel}: not each barrier is delivered once")
    left, machine = replica.machine.waiting_bytes, replica.machine
    require(left == 0, f"all channels have passed epoch {machine.epoch}, all rows are here, and {left} bytes wait")
    at_barriers = [turn for turn in replica.turns if turn.barriers]
    for turn in at_barriers:
        routers = [row.router for row in turn.barriers]
        require(sorted(routers) == [*range(len(rows))], f"barriers behind turn {turn.number} are of routers {routers}")
        require(not turn.rows, f"barriers behind turn {turn.number} come with rows")


def _check_times(turns: Sequence[Turn]) -> None:
    number = time = clock = 0
    for turn in turns:
        follows = turn.number == number + (not turn.barriers)
        require(follows, f"turn {turn.number} comes behind turn {number}")
        require(turn.met == time, f"turn {turn.number} meets {turn.met}, and the turn before has reached {time}")
        require(turn.reached >= time and turn.reached % H_US == 0, f"turn {turn.number} reaches {turn.reached}")
        require(turn.clock >= clock, f"the clock of turn {turn.number} falls from {clock} to {turn.clock}")
        number, time, clock = turn.number, turn.reached, turn.clock


def _check_flood(protocol: OrderProtocol, given: Input, rng: random.Random) -> None:
    """Give one channel everything before the others have anything: that is taken, and counted as long as it waits."""
    rows = given.rows()
    replica = Replica(protocol, given, rows, rng, saves=0.0, noise=0.0)
    first = rng.randrange(len(rows))
    _guarded(lambda: replica.receive(first, len(rows[first])))
    size, waits = sum(len(row.payload) for row in rows[first]), replica.machine.waiting_bytes
    require(waits >= size, f"{size} bytes of one channel wait, and waiting_bytes is {waits}")
    _guarded(replica.deliver)
    if len(rows) > 1:
        require(not replica.turns, "a turn is delivered of one channel, and the others have said nothing")


def _check_missing_rows(protocol: OrderProtocol, given: Input) -> None:
    """Leave out a row: in a later stage that ends the replica; in the first one an offset means nothing."""
    channel = next((rows for rows in given.rows() if len(rows) > 3 and given.later), None)
    if channel is None:
        return
    setting = given.setting()
    machine = protocol.open(setting, Position.begin(setting, Version(1)))
    missing = channel[1].offset
    try:
        machine.arrived(row for row in channel if row.offset != missing)
    except ProtocolViolation:
        return
    require(channel[-1].offset == missing, f"turn {missing} of a sender is missing, and the machine goes on")


def _check_owners(protocol: OrderProtocol, given: Input, rng: random.Random) -> None:
    """Let two slots own the keys. Whether these change hands at the appointments or not, each key has its events in the
    same order: it depends on the log alone.
    """
    orders = []
    for moves in (False, True):
        turns = []
        for slot in range(2):
            rows = given.rows(lambda version, event: (event.key + version * moves) % 2 == slot)  # noqa: B023
            replica = Replica(protocol, given, rows, rng)
            run_together([replica], rng, [])
            turns += replica.turns
        orders.append(by_key(sorted(turns, key=lambda turn: turn.number)))
    require(orders[0] == orders[1], "the order of a key's events depends on the slot that owns it")


def _check_capture(protocol: OrderProtocol, given: Input, rng: random.Random) -> None:
    """Give one replica alone a capture: its turns are those of others, and whoever goes on from there has them, too."""
    captured = given.captured(rng)
    if captured is None:
        return
    plain, one = Replica(protocol, given, given.rows(), rng), Replica(protocol, captured, captured.rows(), rng)
    log: list[Record] = []
    _guarded(lambda: run_together([plain, one], rng, log))
    _check_same(plain.turns, [turn for turn in one.turns if not is_capture(turn)], 1)
    require(one.captured is not None, "a capture is not delivered")
    assert one.captured is not None
    behind = [_behind_capture(channel) for channel in one.rows]
    again = Replica(protocol, captured, behind, rng)
    again.machine, again.read = protocol.open(again.setting, one.captured), one.captured.log.offset + 1
    _guarded(lambda: _read(again, log) if protocol.leads else run_together([again], rng, []))
    at = next(number for number, turn in enumerate(one.turns) if is_capture(turn))
    _check_same(one.turns[at + 1 :], again.turns, 2)


def _behind_capture(rows: Sequence[Row]) -> list[Row]:
    """Rows of another incarnation of the router, which begins there."""
    at = next(number for number, row in enumerate(rows) if row.kind == CAPTURE)
    return [rows[at]._replace(kind=BARRIER, payload=b""), *rows[at + 1 :]]


def _check_log(
    protocol: OrderProtocol,
    given: Input,
    rows: list[list[Row]],
    log: Sequence[Record],
    turns: Sequence[Turn],
    rng: random.Random,
) -> None:
    """Read the log later: that delivers the same, whatever a deposed leader has added, and ends behind a gap."""
    last = max(record.term for record in log)
    begins, first = log.index(Record(last, 0)), min(record.term for record in log)
    late = list(log)
    if first < last:
        everything = tuple((channel, 1 << 60) for channel in range(len(rows)))
        late.insert(rng.randint(begins + 1, len(log)), Record(first, 1_000, 0, everything))
    reader = Replica(protocol, given, rows, rng, saves=0.0)
    _guarded(lambda: _read(reader, late))
    _check_same(turns, reader.turns, 3)
    for term, number in _followed(log)[:1]:
        torn = [record for record in log if record[:2] != (term, number)]
        try:
            _read(Replica(protocol, given, rows, rng, saves=0.0), torn)
        except ProtocolViolation:
            return
        require(False, f"record {number} of term {term} is missing in the log, and the machine goes on")


def _followed(log: Sequence[Record]) -> list[tuple[int, int]]:
    """Term and number of records that count, and behind which another one of their term does."""
    term = number = 0
    found = []
    for record in log:
        if record.number == 0 and record.term > term:
            term, number = record.term, 0
        elif record[:2] == (term, number + 1):
            number += 1
            if number > 1:
                found.append((term, number - 1))
    return found


def _read(reader: Replica, log: Sequence[Record]) -> None:
    for channel, rows in enumerate(reader.rows):
        reader.receive(channel, len(rows))
    reader.deliver()
    while reader.read < len(log):
        hear(reader, log, reader.rng.randint(1, 4))
        reader.deliver()
    reader.take_effects()
