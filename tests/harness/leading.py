"""A job whose coordinator may die at any message that it sends or hears; another one goes on."""

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from nodes import Ensemble, Session

from keyshift.driver.attempt import StageAttempt, Unfinished
from keyshift.driver.job import Job
from keyshift.driver.stage import LedStage
from keyshift.model.errors import QueryDied, ServiceUnavailable
from keyshift.wire.config import JobConfig
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

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], bool | None]) -> None:
        super().watch_children(folder, lambda names: self._lives() and call(names))

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


class MortalAttempt(StageAttempt):
    """``StageAttempt``, with coordinators that may die anywhere."""

    def __init__(self, stage: "MortalStage", *arguments: Any) -> None:
        self._stage = stage
        super().__init__(*arguments)

    def _new_session(self, leads: bool) -> Any:
        config, stage = self.config, self._stage
        epoch = Epoch(config.job, config.epoch)
        if not leads:
            return Session(stage.ensemble, config.root, epoch)
        return MortalSession(stage.ensemble, config.root, stage.dies, epoch)

    def _lead(self) -> None:
        while True:
            session: Any = self._session
            try:
                return self.coordinator.lead(session.look)
            except (Died, ServiceUnavailable) as error:
                if not session.dead.is_set() or isinstance(error, QueryDied):
                    raise
                self._stage.deaths += 1
                self._succeed()


class MortalStage(LedStage):
    """``LedStage`` with such attempts."""

    def __init__(self, ensemble: Ensemble, dies: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ensemble, self.dies, self.deaths = ensemble, dies, 0

    def _new_attempt(self, left: Unfinished) -> MortalAttempt:
        return MortalAttempt(self, self.config, left, self.say, lambda phase: self.at_phase(self, phase))


class LedJob(Job):
    """``Job``, with mortal coordinators."""

    stages: list[MortalStage]

    def __init__(self, ensemble: Ensemble, dies: float, *arguments: Any) -> None:
        self._ensemble, self._dies = ensemble, dies
        super().__init__(*arguments)

    def _new_stage(self, config: JobConfig) -> MortalStage:
        return MortalStage(self._ensemble, self._dies, config, self.notes, self.check, self._say)

    @property
    def sessions(self) -> list[Any]:
        """The job's own."""
        return [stage.coordination for stage in self.stages]

    @property
    def deaths(self) -> int:
        """Of coordinators."""
        return sum(stage.deaths for stage in self.stages)
