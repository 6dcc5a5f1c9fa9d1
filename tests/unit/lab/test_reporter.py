from keyshift.lab.reporter import Reporter
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import Second

SECOND = Second(7, 1234, 5.25)


def test_a_second_is_a_line_with_rate_latency_and_phase_from_the_load_on():
    said = []
    display = Reporter(said.append)
    display.second(SECOND)
    assert said == [], "before the load there is nothing to tell"
    with display.bar(24.0, "fluid"):
        display.second(SECOND)
        display.enter(Doing(Activity.STEADY))
    display.second(SECOND._replace(p99_ms=17.0))
    assert said == [
        "    1234 results/s  p50     5.2 ms  warming up",
        "    1234 results/s  p50     5.2 ms  p99    17.0 ms  steady",
    ]
