"""Messages to other slots: each step says how long they are gathered."""

from contextlib import nullcontext
from types import SimpleNamespace

from keyshift.model.keys import Mode
from keyshift.protocol.slot import Request
from keyshift.worker.state.departures import Departures
from waits import until


def test_how_long_requests_are_gathered_is_said_by_their_step():
    told, failures = [], []
    server, clients = SimpleNamespace(address="here"), SimpleNamespace(tell=lambda address, said: told.append(said))
    background, host = SimpleNamespace(failed=failures.append), SimpleNamespace(server=server)
    shared = SimpleNamespace(slot=1, clients=clients, background=background, host=host)
    departures = Departures(shared, SimpleNamespace(of=lambda slot: "there"), nullcontext, None)
    for version, interval_ms in ((2, 3_600_000), (3, 0)):
        mode = Mode(transfer="fetch", fetch_interval_ms=interval_ms)
        departures.tell(0, [Request(7, 0, version, 0, 0)], mode)
        until(lambda: len(told) == version - 1)  # noqa: B023
    departures.close()
    assert not failures
