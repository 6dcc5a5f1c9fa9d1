"""Questions to routers and slots, published in ZooKeeper; each answers with a node of its own."""

import contextlib
import queue
from collections.abc import Callable
from typing import TypeVar

from keyshift.model.errors import MigrationFailed
from keyshift.waiting import wait_until
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import Folder

T = TypeVar("T")
LOOK_S = 0.2  # between two calls of ``check``


def answers(
    coordination: Coordination,
    folder: Folder[T],
    wanted: set[str],
    what: str,
    deadline_s: float,
    check: Callable[[], None],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, T]:
    """The nodes in ``folder``, as soon as all that are ``wanted`` are there.

    The deadline is for silence: it begins anew with each answer, and while what ``progress`` gives changes. Raises
    MigrationFailed, naming ``what`` was asked and who is missing, after it; and what ``check`` raises.
    """
    answered: queue.Queue[set[str]] = queue.Queue()

    def changed(names: list[str]) -> bool:
        answered.put(set(names))
        return not wanted <= set(names)  # then nobody has to look any more

    coordination.watch_children(folder, changed)
    missing = wanted

    def all_there() -> bool:
        nonlocal missing
        check()
        with contextlib.suppress(queue.Empty):
            missing = wanted - answered.get(timeout=LOOK_S)
        return not missing

    if not wait_until(all_there, deadline_s, 0.0, lambda: (missing, progress())):
        raise MigrationFailed(f"{what}: {', '.join(sorted(missing))} did not answer within {deadline_s:g} s")
    return coordination.read_below(folder)
