"""A slot that works in turns: its time is that of its turns, whatever else happens in it."""

import pyarrow as pa
from small_job import TIMED

from keyshift.protocol.slot import Freeze
from keyshift.runtime.row import SAVEPOINT, Row
from keyshift.runtime.turn import Turn
from keyshift.state.memory import MemoryStore
from keyshift.state.timers import PROCESSING
from keyshift.worker.slot.cores import Shape, make_core

MS = 1000


def test_a_savepoint_whose_state_comes_late_is_at_the_time_of_its_turn():
    """Replicas write the same, however long the state of a step was on its way in one of them."""
    stage = TIMED.make_stage()
    store = MemoryStore("", stage.operator().state_schema, None)
    core = make_core(0, stage, store, Shape(1, 4, 1 << 20, in_turns=True), {}, [], [0, 1], 1)
    core.begin([1])
    barrier = Row(SAVEPOINT, 0, 1, 7, 0, b"last")
    core.deliver(Turn(3, (barrier,), (), 1000 * MS, 1000 * MS, 1000 * MS, 0))
    states = [store.unit(unit) for unit in (0, 1)]
    for unit, state in enumerate(states):
        state.timers.reach(1000 * MS, 1000 * MS)
        state.timers.set(PROCESSING, 1040 * MS, 0)
        assert not any(isinstance(each, Freeze) for each in core.take_effects())
        core.arrived(unit, 0, 0, None, state, None)
        core.drain(60_000 * MS, lambda: True)  # as whoever brings state does
    assert any(isinstance(each, Freeze) for each in core.take_effects())
    assert not any(isinstance(each, pa.RecordBatch) for each in core.take_results()), "no key has fallen idle"
    assert [(len(state.timers), state.timers.clock) for state in states] == [(1, 1000 * MS)] * 2
