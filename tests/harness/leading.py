"""A job whose coordinator may die at any message that it sends or hears; another one goes on."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nodes import Ensemble, Session

from keyshift.driver.attempt import StageAttempt
from keyshift.model.errors import QueryDied, ServiceUnavailable
from keyshift.wire.epoch import Epoch
from keyshift.wire.nodes import Folder, Node

T = TypeVar("T")


class Died(Exception):
    """The process of a coordinator has ended."""


class MortalSession(Session):
    """The session of a coordinator that dies at a message with probability ``dies``."""

    def __init__(self, ensemble: Ensemble, root: str, dies: float, epoch: Epoch) -> None:
        super().__init__(ensemble, root, epoch)
        self._dies, self._fate = dies, random.Random(ensemble.rng.random())
        self.dead = threading.Event()

    def publish(self, node: Node[T], value: T) -> None:
        self._pass()
        super().publish(node, value)
        self._pass()

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], None]) -> Callable[[], None]:
        return super().watch_children(folder, lambda names: call(names) if self._lives() else None)

    def look(self) -> None:
        """Whether its coordinator is still there."""
        if self.dead.is_set():
            raise Died

    def _lives(self) -> bool:
        if self._fate.random() < self._dies and not self.dead.is_set():
            self.dead.set()
            self.lose("died with its coordinator")
        return not self.dead.is_set()

    def _pass(self) -> None:
        if not self._lives():
            raise Died


@dataclass
class Fate:
    """Of all coordinators of a job: each ``dies`` at a message with this probability. ``deaths``: so far."""

    ensemble: Ensemble
    dies: float
    deaths: int = 0


class MortalAttempt(StageAttempt):
    """``StageAttempt``, with coordinators that may die anywhere."""

    def __init__(self, fate: Fate, *arguments: Any) -> None:
        self._fate = fate
        super().__init__(*arguments)

    def _new_session(self, leads: bool) -> Any:
        config, fate = self.config, self._fate
        epoch = Epoch(config.job, config.epoch)
        if not leads:
            return Session(fate.ensemble, config.root, epoch)
        return MortalSession(fate.ensemble, config.root, fate.dies, epoch)

    def _lead(self) -> None:
        while True:
            session: Any = self._session
            try:
                return self.coordinator.lead(session.look)
            except (Died, ServiceUnavailable) as error:
                if not session.dead.is_set() or isinstance(error, QueryDied):
                    raise
                self._fate.deaths += 1
                self._succeed()
