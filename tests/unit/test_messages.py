"""Between processes travel typed messages, never dictionaries whose schema is nowhere."""

import inspect
import re
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel
from typing_extensions import is_typeddict

import keyshift
from keyshift.control import background
from keyshift.experiment import commands
from keyshift.lab.live import status
from keyshift.lab.replicas import application
from keyshift.model import frames, markers, records
from keyshift.traffic import collector, generator
from keyshift.traffic import messages as traffic_messages
from keyshift.wire import config, nodes, savepoint
from keyshift.worker.flight import messages as flight_messages

ROOT = Path(keyshift.__file__).parent
MODULES = (
    *(frames, markers, records, nodes, config, savepoint, traffic_messages, generator, collector, flight_messages),
    application,
    *(background, commands, status),  # between a command and the driver
)
# Values by the names of a model that whoever wrote the workload or the backend has declared: it checks them.
BY_NAME = {("parameters", "JobConfig"), ("backend_settings", "JobConfig")} | {
    ("parameters", f"{process}Config") for process in ("Generator", "Collector", "Traffic")
}
BY_NAME |= {("values", "StartOrder"), ("settings", "MoveBy")}
BY_NAME |= {("changed", "SnapshotPart")}  # rows of the workload's own columns
# No messages: keyword arguments of a client or a model.
ARGUMENTS = {
    "traffic/topics.py": "def _client(topic: Topic) -> dict[str, Any]:",
    "traffic/traffic.py": "self._common: dict[str, Any] = {",
    "wire/client.py": "def _only_for(secret: str) -> dict[str, Any]:",
}


def untyped(hint: Any) -> bool:
    """Whether there is anything at all, or a dictionary of it, in ``hint``."""
    if hint is Any:
        return True
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is np.ndarray:  # of any shape
        return False
    if isinstance(kind, type) and not is_typeddict(kind) and issubclass(kind, dict) and not parts:
        return True
    return any(untyped(part) for part in parts)


def fields_of(kind: type) -> dict[str, Any]:
    message = is_dataclass(kind) or issubclass(kind, BaseModel) or hasattr(kind, "_fields") or is_typeddict(kind)
    return get_type_hints(kind) if message else {}


def messages() -> list[type]:
    found = {
        kind: None
        for module in MODULES
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__.startswith("keyshift.") and fields_of(kind)
    }
    return list(found)


def test_the_messages_are_found():
    names = {kind.__name__ for kind in messages()}
    assert {"StartOrder", "Migration", "Requested", "TakenBack", "Status", "MoveBy"} <= names
    assert {"Handover", "SetRate", "SecondDone", "Label", "GiveSealed", "Facts", "SlotMarker", "JobConfig"} <= names


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: kind.__name__)
def test_no_field_of_a_message_is_anything_or_a_dictionary_of_it(kind):
    found = {(name, kind.__name__) for name, hint in fields_of(kind).items() if untyped(hint)}
    assert found <= BY_NAME


def test_anything_and_a_dictionary_of_it_are_found_wherever_they_are():
    @dataclass
    class Message:
        plain: dict[str, Any]
        deep: tuple[list[dict[str, Any]], ...] | None
        bare: dict
        anything: Any
        some: list[Any] | None
        typed: dict[str, int]

    found = [name for name, hint in fields_of(Message).items() if untyped(hint)]
    assert found == ["plain", "deep", "bare", "anything", "some"]


def test_what_speaks_with_other_processes_handles_no_dictionary_of_anything():
    found = {
        (str(path.relative_to(ROOT)), line.strip())
        for package in ("traffic", "wire", "worker")
        for path in (ROOT / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\b([Dd]ict|Mapping)\[str, Any\]", line)
    }
    by_name = tuple(f"{name}: dict[str, Any]" for name, _ in BY_NAME)
    others = {each for each in found if not each[1].startswith(by_name)}
    assert others == set(ARGUMENTS.items())
