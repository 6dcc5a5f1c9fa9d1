"""Messages to other slots: each step says how long they are gathered. Units: what somebody waits for goes first."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

from keyshift.model.keys import Mode
from keyshift.protocol.slot import Request
from keyshift.worker.flight.messages import Answer, Shipment
from keyshift.worker.state.departures import Departures
from waits import until


def made(**clients):
    """Departures of slot 1, and their failures. ``clients``: what they call."""
    failures, core = [], SimpleNamespace(acknowledged=lambda unit: None)
    background, host = SimpleNamespace(failed=failures.append), SimpleNamespace(server=SimpleNamespace(address="here"))
    shared = SimpleNamespace(slot=1, clients=SimpleNamespace(**clients), background=background, host=host)
    return Departures(shared, SimpleNamespace(of=lambda slot: "there"), lambda: nullcontext(core), None), failures


def test_how_long_requests_are_gathered_is_said_by_their_step():
    told = []
    departures, failures = made(tell=lambda address, said: told.append(said))
    for version, interval_ms in ((2, 3_600_000), (3, 0)):
        mode = Mode(transfer="fetch", fetch_interval_ms=interval_ms)
        departures.tell(0, [Request(7, 0, version, 0, 0)], mode)
        until(lambda: len(told) == version - 1)  # noqa: B023
    departures.close()
    assert not failures


def test_a_unit_that_somebody_waits_for_goes_before_others_wherever_it_goes():
    pushed, goes_on = {0: [], 2: []}, threading.Event()

    def push(address, slot, home, shipments, sent, acknowledged):
        for shipment in shipments:
            pushed[slot].append(shipment.unit)
            assert goes_on.wait(60)
            acknowledged([Answer(shipment.unit, True)])

    departures, failures = made(push=push)
    for slot, first, *others in ((0, 10, 11, 12), (2, 20, 21, 22)):
        departures.send(slot, [Shipment(first)])
        until(lambda: pushed[slot])  # noqa: B023
        departures.send(slot, [Shipment(unit) for unit in others])
        departures.hurry(others[-1])
    goes_on.set()
    until(lambda: all(len(units) == 3 for units in pushed.values()))
    departures.close()
    assert pushed == {0: [10, 12, 11], 2: [20, 22, 21]} and not failures
