"""What other threads want of the one that controls a job."""

import contextlib
import queue
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from keyshift.lab.live.status import JobState
from keyshift.model.errors import BadInput, QueryDied, ServiceUnavailable

ANSWER_S = 110.0  # for an answer: a job that recovers or restarts answers when it has
T = TypeVar("T")


class NotRunning(BadInput):
    """The job does not run yet, or any more: nothing can be done with it."""


class Inbox:
    """``ask`` is for any thread, ``serve`` for the controlling one. ``state``, ``doing``: of the job."""

    def __init__(self, state: Callable[[], JobState], doing: Callable[[], str]) -> None:
        self._state, self._doing = state, doing
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    def ask(self, act: Callable[[], T]) -> T:
        """Give or raise what ``act`` does, which the controlling thread calls at its next look.

        Raises ServiceUnavailable if there is no answer in ``ANSWER_S`` seconds; what has not begun by then never does.
        """
        answer: Future[T] = Future()
        self._waiting.put((answer, act))
        if self._state() is not JobState.RUNNING:
            self.refuse()
        wait([answer], ANSWER_S)
        if answer.cancel():
            doing = self._doing()
            raise ServiceUnavailable(f"the job did not come to it within {ANSWER_S:g} s, nothing was changed: {doing}")
        if not answer.done():
            raise ServiceUnavailable(f"the job is still at it after {ANSWER_S:g} s: its status will tell")
        return answer.result()

    def serve(self) -> None:
        """Do everything that waits. If the query is found dead, what waits behind that still is done."""
        for _ in range(self._waiting.qsize()):
            if waiting := self._next():
                self._answer(*waiting)

    def refuse(self) -> None:
        """Tell whoever still asks that nobody serves any more."""

        def refused() -> None:
            raise NotRunning(f"the job is not running: it is {self._state()}")

        while waiting := self._next():
            self._answer(waiting[0], refused)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with contextlib.suppress(queue.Empty):
            return self._waiting.get_nowait()
        return None

    def _answer(self, answer: Future[Any], act: Callable[[], Any]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(act())
        except BaseException as error:
            told = isinstance(error, Exception)
            answer.set_exception(error if told else NotRunning("the job was interrupted"))
            if isinstance(error, QueryDied) or not told:
                raise
