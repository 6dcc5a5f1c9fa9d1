import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyshift.lab.generator import Schedule

RATES = st.integers(1, 50_000) | st.floats(0.5, 50_000)
START_US = 1_700_000_000_000_000


@given(RATES, st.integers(1, 5), st.integers(0, 3))
def test_all_routers_together_offer_rate_times_seconds_events_within_the_load(rate, routers, seconds):
    schedule = Schedule(START_US, seconds, rate, routers)
    assert sum(schedule.total) == np.ceil(rate * seconds)
    for router, total in enumerate(schedule.total):
        times = schedule.times(router, 0, total)
        assert ((times >= START_US) & (times < START_US + seconds * 1_000_000 + 1)).all()


@given(RATES, st.integers(1, 5), st.lists(st.integers(-500_000, 2_500_000), max_size=20))
def test_every_event_is_due_in_the_frame_that_ends_at_or_after_its_time(rate, routers, frames):
    schedule = Schedule(START_US, 2, rate, routers)
    for router, total in enumerate(schedule.total):
        times = schedule.times(router, 0, total)
        for frame_us in (START_US + frame for frame in frames):
            due = schedule.due(router, frame_us)
            assert (times[:due] <= frame_us).all()
            assert (times[due:] >= frame_us).all()


def test_routers_take_turns_at_equal_distances():
    schedule = Schedule(START_US, 1, 1000, 4)
    times = np.sort(np.concatenate([schedule.times(router, 0, 250) for router in range(4)]))
    assert (times == START_US + np.arange(1000) * 1000).all()
