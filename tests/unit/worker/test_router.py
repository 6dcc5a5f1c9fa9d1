"""What the router's task says to each slot, without Spark and ZooKeeper."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from small_behind import Behind
from small_job import CONFIG

from keyshift.clock import now_us
from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, SlotId, units_of
from keyshift.model.records import PodUsed
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.router import AWAKE_US, TICK_US
from keyshift.runtime.row import BARRIER, DATA, SAVEPOINT, SNAPSHOT, TICK
from keyshift.wire import nodes
from keyshift.wire.config import slot_schema
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ASSIGNMENT, ENDED_LOGS, LOG, RouterSaved, logs, saved
from keyshift.wire.spark_rows import PRIMER, received
from keyshift.wire.spark_rows import answered as batch_of
from keyshift.worker import attempt as worker_attempt
from keyshift.worker import router as routing
from keyshift.worker import tasks
from keyshift.worker import used as used_module
from keyshift.worker.router import RouterTask
from waits import Clock, until

SLOTS, FRAME_US, BEGIN_US = 3, 20_000, 1_000_000_000_000
CONFIG = replace(CONFIG, slots=SLOTS)
EVENTS = CONFIG.make_source().schema


def assignment(version: int, paused: tuple[int, ...] = (), snapshot: str = "") -> PublishAssignment:
    owner = tuple(SlotId(unit % SLOTS) for unit in range(CONFIG.key_groups * CONFIG.bins))
    return PublishAssignment(Assignment(version, owner), frozenset(paused), snapshot)


@pytest.fixture
def driver():
    """The participant that publishes."""
    driver = MemoryCoordination(Memory(), CONFIG.root)
    driver.begin()
    driver.publish(ASSIGNMENT, assignment(1))
    return driver


@pytest.fixture
def said(monkeypatch, driver):
    """Gives the task."""
    monkeypatch.setattr(routing, "Coordination", lambda _, root, secret: MemoryCoordination(driver.memory, root))
    return RouterTask(CONFIG)


def keys_of(slot: int) -> list[int]:
    """Keys of units that ``slot`` owns."""
    keys = np.arange(CONFIG.parameters["keys"])
    return keys[units_of(keys, CONFIG.key_groups, CONFIG.bins) % SLOTS == slot].tolist()


def frame(task: RouterTask, number: int, keys: list[int] = (), router: int = 0, epoch: int = 1) -> dict[int, list]:
    """The rows that each slot gets of frame ``number``."""
    columns = [pa.array(keys, pa.int64())] * len(EVENTS)
    facts = frames.Facts(BEGIN_US + number * FRAME_US, epoch)
    value = frames.encode(pa.RecordBatch.from_arrays(columns, schema=EVENTS), facts)
    got: dict[int, list] = {slot: [] for slot in range(SLOTS)}
    for slot, row in task.frame(router, number, pa.py_buffer(value)):
        got[slot] += received(batch_of([row]))
    return got


def kinds(rows: dict[int, list]) -> list[list[int]]:
    return [[row.kind for row in rows[slot]] for slot in range(SLOTS)]


def test_the_first_row_of_a_slot_stands_alone_and_comes_from_one_router_only(said):
    assert kinds(frame(said, 0)) == [[PRIMER, BARRIER, TICK]] * SLOTS
    assert kinds(frame(said, 1)) == [[TICK]] * SLOTS
    assert kinds(frame(RouterTask(CONFIG), 0, router=1)) == [[BARRIER, TICK]] * SLOTS


def test_a_router_whose_server_of_zookeeper_is_behind_begins_with_the_newest_assignment(driver, monkeypatch):
    then = dict(driver.memory.nodes)
    driver.publish(ASSIGNMENT, assignment(2))
    monkeypatch.setattr(routing, "Coordination", lambda _, root, secret: Behind(driver.memory, root, then))
    rows = frame(RouterTask(CONFIG), 0, router=1)
    assert [[row.version for row in of_slot if row.kind == BARRIER] for of_slot in rows.values()] == [[2]] * SLOTS


def test_every_slot_gets_its_events_and_only_those(said):
    keys = [keys_of(slot)[0] for slot in (2, 0, 2)]
    frame(said, 0)
    rows = frame(said, 1, keys)
    assert kinds(rows) == [[DATA], [TICK], [DATA]]
    for slot, positions in ((0, [1]), (2, [0, 2])):
        (row,) = rows[slot]
        events = pa.ipc.read_record_batch(row.payload, slot_schema(CONFIG.make_stage()))
        assert events["position"].to_pylist() == positions
        assert events["key"].to_pylist() == [keys[position] for position in positions]
        assert (row.router, row.version, row.offset, row.watermark) == (0, 1, 1, BEGIN_US + FRAME_US)


def test_events_that_a_deposed_driver_s_generator_offers_behind_those_of_a_later_one_go_nowhere(said):
    task = RouterTask(replace(CONFIG, epochs=(((0, 1), (3, 2), (6, 4)),)))
    keys = keys_of(0)[:1]
    taken = []
    for offset, epoch in enumerate((1, 1, 1, 2, 1, 2, 4, 2, 1, 4)):
        rows = frame(task, offset, keys, epoch=epoch)
        if any(rows.values()):
            taken.append(offset)
            assert DATA in kinds(rows)[0]
    assert taken == [0, 1, 2, 3, 5, 6, 9]
    assert task.watermark == BEGIN_US + 9 * FRAME_US
    frame(task, 10, keys, epoch=2)
    assert task.watermark == BEGIN_US + 9 * FRAME_US


def test_a_slot_without_events_hears_the_time_with_every_frame_after_a_switch_and_then_now_and_then(said, driver):
    awake = AWAKE_US // FRAME_US
    for number in range(awake + 1):
        assert TICK in kinds(frame(said, number))[1]
    heard = [number for number in range(awake + 1, awake + 31) if kinds(frame(said, number, keys_of(0)[:1]))[1]]
    every = -(-TICK_US // FRAME_US)
    assert np.diff(heard).tolist() == [every] * (len(heard) - 1)
    assert len(heard) == 30 // every

    driver.publish(ASSIGNMENT, assignment(2))
    assert kinds(frame(said, awake + 31))[1] == [BARRIER, TICK]
    assert kinds(frame(said, awake + 32))[1] == [TICK]


def test_what_is_kept_back_for_a_paused_slot_comes_first_when_the_pause_ends(said, driver):
    mine, others = keys_of(1)[:1], keys_of(0)[:1]
    frame(said, 0)
    driver.publish(ASSIGNMENT, assignment(2, paused=(1,)))
    rows = frame(said, 1, mine + others)
    assert kinds(rows) == [[BARRIER, DATA], [BARRIER, TICK], [BARRIER, TICK]]
    assert rows[1][-1].watermark == 0, "no time passes in a slot whose records are kept back"
    driver.publish(ASSIGNMENT, assignment(2))
    rows = frame(said, 2, mine)
    assert kinds(rows)[1] == [DATA, DATA]
    assert [row.offset for row in rows[1]] == [1, 2]


def test_behind_a_savepoint_nothing_is_forwarded_and_its_offset_is_said(said, driver):
    frame(said, 0)
    driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("s"))
    rows = frame(said, 1, keys_of(1)[:1])
    assert kinds(rows) == [[SAVEPOINT, TICK]] * SLOTS
    assert bytes(rows[0][0].payload) == b"s"
    assert driver.read_below(saved("s")) == {"router-0": RouterSaved(1, BEGIN_US + FRAME_US)}
    assert DATA not in kinds(frame(said, 2, keys_of(1)[:1]))[1]


def test_behind_a_snapshot_events_go_on(said, driver):
    frame(said, 0)
    driver.publish(ASSIGNMENT, assignment(2, snapshot="s"))
    key = keys_of(1)[:1]
    assert [row[0] for row in kinds(frame(said, 1, key))] == [SNAPSHOT] * SLOTS
    assert driver.read_below(saved("s")) == {"router-0": RouterSaved(1, BEGIN_US + FRAME_US)}
    assert DATA in kinds(frame(said, 2, key))[1]


def test_a_piece_of_a_frame_that_was_cut_does_not_turn_the_time_back(said):
    frame(said, 5)
    key = keys_of(0)[:1]
    piece = pa.RecordBatch.from_arrays([pa.array(key)] * len(EVENTS), schema=EVENTS)
    rows = [row for _, row in said.frame(0, 6, pa.py_buffer(frames.encode(piece)))]
    assert {row.watermark for row in received(batch_of(rows))} == {BEGIN_US + 5 * FRAME_US}


def test_a_router_tells_what_it_has_done_when_it_is_asked(said, driver):
    driver.publish(LOG, "early")
    assert driver.children(logs("early")) == [], "it does not know yet who it is"
    frame(said, 0, router=3)
    frame(said, 1, router=3)
    driver.publish(ASSIGNMENT, assignment(2))
    frame(said, 2, router=3)
    driver.publish(LOG, "one")
    ((place, events),) = driver.read_below(logs("one")).items()
    assert place == "router-3"
    assert [(e.event, e.version) for e in events] == [("switch", 1), ("switch", 2)]
    assert 0 < events[0].at_us <= events[1].at_us


def test_the_log_of_a_router_goes_on_in_the_next_batch(said, driver):
    for number, task in enumerate((said, RouterTask(CONFIG)), start=1):
        frame(task, number)
        task.close()
        until(lambda: len(driver.read(ENDED_LOGS["router-0"]) or ()) == number)  # noqa: B023
    assert driver.children(ENDED_LOGS) == ["router-0"]


def test_a_router_in_a_pod_tells_what_the_pod_uses_until_its_batch_is_over(said, driver, monkeypatch):
    """A pod may have routers alone."""
    monkeypatch.setattr(used_module, "TOLD_S", 0.01)
    monkeypatch.setattr(used_module, "used", lambda host: PodUsed(host, now_us(), 2.5, 700_000, 0, 0))
    monkeypatch.setenv(used_module.POD_ADDRESS, "10.0.0.7")
    frame(said, 0, router=3)
    frame(said, 1, router=3)
    until(lambda: driver.read_below(nodes.USED))
    assert {name: told.host for name, told in driver.read_below(nodes.USED).items()} == {"router-3": "10.0.0.7"}
    (teller,) = [thread for thread in threading.enumerate() if thread.name == "keyshift-router-3-used"]
    said.close()
    teller.join(60)
    assert not teller.is_alive()


def test_a_router_that_would_not_hear_of_a_switch_ends(said):
    frame(said, 0)
    said.coordination.lose()
    with pytest.raises(ServiceUnavailable):
        frame(said, 1)


def test_a_router_that_has_no_room_waits_as_long_as_its_batch_lasts(monkeypatch):
    """Slots may be waiting for its end: another router has ended without switching, and says nothing any more."""
    clock, full = Clock(), SimpleNamespace(full=True, hand_over=lambda: None, close=lambda: None)
    full.frame, full.resume, full.in_batch, full.watch = lambda *_: [], lambda: ["kept"], list, Mock()
    monkeypatch.setattr(tasks, "time", clock)
    monkeypatch.setattr(tasks, "make_router", lambda config: full)
    rows = pa.RecordBatch.from_pydict({"partition": [0], "offset": [0], "value": [b"frame"]})
    given = list(tasks.router(CONFIG, batch_s=3.0)(iter([rows, rows])))
    assert clock.now == pytest.approx(3.0, abs=tasks.STALL_S)
    assert given == ["kept"], "at the end"


def test_a_router_that_has_no_room_ends_with_its_attempt(said, driver, monkeypatch):
    """A batch of a live job may take hours, and Spark tells it nothing."""
    monkeypatch.setattr(worker_attempt, "LOOK_S", 0.01)
    monkeypatch.setattr(RouterTask, "full", True)
    looks, children = [], MemoryCoordination.children
    root = MemoryCoordination(driver.memory, nodes.of_job(CONFIG.job))

    def ends_at_the_third_look(session, folder):
        looks.append(folder)
        if len(looks) == 3:
            root.withdraw(nodes.ALL)
        return children(session, folder)

    monkeypatch.setattr(MemoryCoordination, "children", ends_at_the_third_look)
    value = frames.encode(frames.empty(EVENTS), frames.Facts(BEGIN_US))
    rows = pa.RecordBatch.from_pydict({"partition": [0], "offset": [0], "value": [value]})
    with pytest.raises(ServiceUnavailable, match="attempt 0 of job job is over"):
        list(tasks.router(CONFIG, batch_s=60.0)(iter([rows])))
    assert len(looks) == 3
