import threading
import time
from types import SimpleNamespace

import pytest
from small_job import CONFIG

from keyshift.model.errors import MigrationFailed, ServiceUnavailable
from keyshift.worker.exits import Sink
from keyshift.worker.slot import task as slot_task
from keyshift.worker.slot.measures import Measures
from keyshift.worker.slot.task import SlotTask


class Core(SimpleNamespace):
    """Of a slot in which something waits; remembers what it is asked to do."""

    def __init__(self):
        machine = SimpleNamespace(expected={0}, wanted=[0])
        super().__init__(machine=machine, queued_bytes=0, waits=True, full=False, settled=False, watermark=0, done=[])

    def __getattr__(self, name):
        if name not in ("on_rows", "drain", "end_of_input"):
            raise AttributeError(name)
        return lambda *_: self.done.append(name)

    def take_results(self):
        return []


@pytest.fixture
def slot():
    made = object.__new__(SlotTask)
    made.slot, made._lock, made._trouble, made._marker = 1, threading.Lock(), None, None
    made._deadline, made._progress, made._sealing, made._to_say = 0.0, (), False, []
    made._snapshots = SimpleNamespace(busy=False)
    made._coordination = SimpleNamespace(check=lambda: None)
    made._clients, made._host = SimpleNamespace(moved_at=0.0), SimpleNamespace(server=SimpleNamespace(moved_at=0.0))
    made._config, made._core, made.exit = CONFIG, Core(), Sink(CONFIG)
    made._effects = SimpleNamespace(carry_out=lambda: None)
    made._waits, made._closed = threading.Event(), threading.Event()
    made._measures = Measures(1, None)
    return made


def test_a_slot_that_would_not_hear_of_a_step_ends(slot):
    def lost():
        raise ServiceUnavailable("away")

    slot._coordination = SimpleNamespace(check=lost)
    for call in (lambda: slot.on_rows([]), slot.wait):
        with pytest.raises(ServiceUnavailable):
            call()


@pytest.mark.parametrize("who", ["comes", "goes", "units"])
def test_behind_its_input_a_slot_waits_as_long_as_something_comes_or_goes(slot, who):
    """A large unit takes its time, and so do many."""
    assert not slot.settled()
    slot._deadline = time.monotonic() - 1
    match who:
        case "comes":
            slot._host.server.moved_at += 1
        case "goes":
            slot._clients.moved_at += 1
        case "units":
            slot._core.machine.expected = set()
    slot.settled()
    assert slot.wait() == []
    slot._deadline = time.monotonic() - 1
    slot.settled()
    with pytest.raises(MigrationFailed, match="nothing has come or gone for 30 s"):
        slot.wait()
    assert slot._core.done == ["end_of_input", "drain"]


def test_what_can_be_done_is_done_without_a_row(slot, monkeypatch):
    """Another slot may have stopped the routers until this one has done it."""
    monkeypatch.setattr(slot_task, "ASIDE_S", 0.001)
    drained = threading.Event()
    slot._core.drain = lambda *_: drained.set()
    with slot._turn():
        pass
    worker = threading.Thread(target=slot._go_on)
    worker.start()
    assert drained.wait(60)
    slot._end()
    worker.join()
    assert slot._trouble is None


def test_trouble_beside_the_rows_is_told(slot, monkeypatch):
    monkeypatch.setattr(slot_task, "ASIDE_S", 0.001)
    error = ValueError("a bug")

    def fails(*_):
        raise error

    slot._core.drain = fails
    slot._waits.set()
    slot._beside(slot._go_on)
    assert slot._trouble is error
