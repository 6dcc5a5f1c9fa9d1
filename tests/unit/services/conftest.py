"""A stack whose services live without processes."""

import pytest

from keyshift.services import stack as stacks
from keyshift.services.embedded import EmbeddedService


@pytest.fixture
def lives(monkeypatch):
    """The names of the services that live. Nobody asks for Java."""
    names: set[str] = set()
    monkeypatch.setattr(stacks, "require_java", lambda: "java")
    monkeypatch.setattr(stacks.processes, "stop", names.difference_update)
    process = property(lambda service: service.name if service.name in names else None)
    monkeypatch.setattr(EmbeddedService, "process", process)
    state = lambda service, patience_s: ("running" if service.process else "stopped", None)  # noqa: E731
    monkeypatch.setattr(EmbeddedService, "state", state)
    monkeypatch.setattr(EmbeddedService, "reserve", lambda service, say: None)
    monkeypatch.setattr(EmbeddedService, "start", lambda service, say, cancel: names.add(service.name))
    return names
