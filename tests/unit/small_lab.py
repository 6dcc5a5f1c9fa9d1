"""A lab that is none, for whoever opens one."""

from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import pytest

L = TypeVar("L")


def opens(monkeypatch: pytest.MonkeyPatch, where: ModuleType, lab: L) -> L:
    """From now on ``open_lab`` of the module ``where`` opens ``lab``, whatever is to run in it. Gives it back."""

    @contextmanager
    def opened(specs: Any, profile: Any, say: Any = None, **_: Any) -> Any:
        yield lab

    monkeypatch.setattr(where, "open_lab", opened)
    return lab
