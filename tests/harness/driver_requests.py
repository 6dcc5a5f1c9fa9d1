"""What other threads ask of the drivers of a job, all the while."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driver_shape import Chain
from driver_world import Driver, World

from keyshift.experiment.commands import Cancel, MoveBy, Rate, Scale

KINDS = ("scale", "scale_and_wait", "plan", "hottest", "cancel", "rate", "query")
QUERY_DIES = 0.15  # the probability that it does when that is drawn


@dataclass
class Request:
    """Something that was asked of a driver, and when (monotonic seconds). ``error``: that it was answered with."""

    driver: Driver
    what: str
    at_s: float
    answered: bool = False
    error: BaseException | None = None


class Requests:
    """All of a run, until it is ``over``."""

    def __init__(self, seed: int, chain: Chain, world: World, over: threading.Event) -> None:
        self._chain, self._world, self._over = chain, world, over
        self._rng = random.Random(f"requests {seed}")
        self.made: list[Request] = []
        threading.Thread(target=self._make, name="harness requests", daemon=True).start()

    def _make(self) -> None:
        rng = self._rng
        while not self._over.wait(rng.expovariate(1 / self._chain.requests_s)):
            for driver in self._world.living:
                if driver.job is not None and driver.job.ready.is_set() and rng.random() < 0.7:
                    what = rng.choice(KINDS)
                    self.ask(driver, what, self._act(driver, what))

    def _act(self, driver: Driver, what: str) -> Callable[[], Any]:
        job, rng, chain = driver.job, self._rng, self._chain
        assert job is not None
        stage, slots = rng.choice(job.spec.workload.stages).name, rng.randint(1, chain.shape.slots)
        strategy, rate = rng.choice(("fluid", "all_at_once")), chain.rate * (0.5 + rng.random())
        dies = rng.random() < QUERY_DIES
        acts: dict[str, Callable[[], Any]] = {
            "scale": lambda: job.do(Scale(slots=slots, stage=stage)),
            "scale_and_wait": lambda: job.do(Scale(slots=slots, stage=stage), wait=True),
            "plan": lambda: job.do(MoveBy(strategy=strategy, target=slots, stage=stage)),
            "hottest": lambda: job.do(MoveBy(strategy="hot_first", target=slots, stage=stage)),  # asks the slots first
            "cancel": lambda: job.do(Cancel()),
            "rate": lambda: job.do(Rate(rate=rate)),
            "query": driver.kill_query if dies else lambda: None,
        }
        return acts[what]

    def ask(
        self, driver: Driver, what: str, act: Callable[[], Any], got: Callable[[Any], None] = lambda answer: None
    ) -> Request:
        """Do it in a thread of its own; ``got`` hears the answer."""
        request = Request(driver, what, time.monotonic())
        self.made.append(request)

        def ask() -> None:
            try:
                got(act())
            except BaseException as error:
                request.error = error
            request.answered = True

        threading.Thread(target=ask, name=f"harness {what}", daemon=True).start()
        return request
