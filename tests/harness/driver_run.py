"""One job and all the drivers that it has in its life: ``run(seed)``. See ``driver_world`` and ``driver_shape``.

A driver is killed, paused, interrupted, or told to stop, or something befalls it at a call into a service; another one
resumes the job, or two do at once. Other threads ask for something all the while. In the end one stops it.
"""

import random
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driver_judge import Judge
from driver_requests import Requests
from driver_shape import Chain, Life, draw_chain
from driver_stand_ins import installed
from driver_world import NAME, Driver, World
from flaky_flight import Failures
from one_run import Outcome
from places import Fault, at

from keyshift.control import background
from keyshift.control.files import Jobs
from keyshift.control.forgetting import forget
from keyshift.model.errors import KeyshiftError
from keyshift.results.manifest import Manifest
from keyshift.waiting import wait_until

EXPIRED = 40  # sessions of a run, at the most
BEGINS_S = ENDS_S = 90.0  # for a driver to begin, and to end if it has to; on a machine that is full, too
STOPS_S = 120.0  # for a stop, by far
LAST_S = 0.2  # that the last driver is left alone
LAST = 4  # drivers that nothing befalls, at the most, until one stops the job
EXPIRES = 0.7  # the probability that the sessions of a driver that is paused do


def run(seed: int, **pinned: Any) -> Outcome:
    """One chain of drivers; ``pinned``: see ``driver_shape.draw_chain``."""
    chain = draw_chain(seed, **pinned)
    outcome = Outcome(seed, chain, pinned)
    failures = Failures(seed, chain.shape.fails, chain.shape.flight_s)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = World(seed, chain.shape, Path(folder).resolve())
        with outcome.measured(), installed(world, failures, chain.answer_s):
            Run(outcome, chain, world).go()
            for client in failures.clients:
                client.close()
    return outcome


class Run:
    """Problems are in the outcome."""

    def __init__(self, outcome: Outcome, chain: Chain, world: World) -> None:
        self._outcome, self._chain, self._world, self._seen = outcome, chain, world, outcome.seen
        self._rng, self._over = random.Random(f"acts {outcome.seed}"), threading.Event()
        self._judge = Judge(outcome, chain, world)
        self._requests = Requests(outcome.seed, chain, world, self._over)
        self._stopped: Manifest | None = None
        self._ending = False
        self._errors: list[BaseException] = []  # of the last attempt to begin
        self._to_wake: list[tuple[Driver, float]] = []  # and when

    def go(self) -> None:
        """Everything."""
        self._outcome.beside(self._wake)
        self._outcome.beside(self._weather)
        try:
            for life in self._chain.lives:
                self._live(life)
            self._end()
            self._judge.judge(self._stopped, self._requests.made)
        except BaseException as error:
            self._judge.problem(type(error).__name__, "".join(traceback.format_exception(error)[-4:]))
        finally:
            self._over.set()
            for driver in self._world.drivers.values():
                if driver.crash:
                    self._judge.problem("crash", f"driver {driver.pid}: {driver.crash}")
                driver.kill()

    # -- one driver after the other ------------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        if self._is_over() or (driver := self._next(list(life.faults), life.twice)) is None:
            return
        self._seen["lives"] += 1
        if life.runs:
            wait_until(lambda: driver.runs or not driver.there, BEGINS_S, 0.01)
        wait_until(lambda: not driver.there, life.seconds, 0.01)
        kept, inputs = self._world.ensemble.kept(), self._world.inputs()
        wait_until(lambda: not driver.there, life.forgets_s + life.loses_s, 0.01)
        if driver.there:
            self._judge.see_snapshots(driver)
        if driver.there:
            self._finish_off(driver, life)
        if life.forgets_s:
            self._world.ensemble.go_back(kept)
        if life.loses_s:
            self._judge.await_(f"driver {driver.pid} sends no more", lambda: not driver.sends, ENDS_S)
            self._world.lose_input(inputs)
        if driver.place.paused:
            self._seen["paused"] += 1
            driver.elsewhere = True
            if self._rng.random() < EXPIRES:
                driver.expire()
            self._to_wake.append((driver, time.monotonic() + life.woken_s))
        self._seen.update(f"{fault.does} {fault.call}" for fault in driver.fates.struck)

    def _finish_off(self, driver: Driver, life: Life) -> None:
        match life.ends:
            case "kill":
                driver.kill()
            case "pause":
                return driver.pause("driver" if life.half else None)
            case "interrupt":
                driver.terminate()
            case "stop":
                self._stop(driver)
        ended = driver.over.is_set
        self._judge.await_(f"driver {driver.pid} ends: {life.ends}", lambda: ended() or driver.place.paused, ENDS_S)

    def _next(self, faults: list[Fault], twice: bool = False) -> Driver | None:
        """The driver of the job from now on; None if there is none, because what befell it came too soon."""
        if (driver := self._world.running) is not None:
            driver.fates.faults += faults
            return driver
        known, self._errors = set(self._world.drivers), []
        self._world.coming = [faults, []]
        begin, count = self._resume if self._world.journal() else self._start, 2 if twice and self._judge.ready else 1
        elsewhere = any(driver.elsewhere for driver in self._world.living)
        self._judge.takes_over = elsewhere and count == 1 and (self._ending or self._rng.random() < 0.5)
        threads = [threading.Thread(target=self._try, args=(begin,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()

        def launched() -> list[Driver]:
            return [driver for pid, driver in self._world.drivers.items() if pid not in known]

        def answered() -> bool:
            return not any(thread.is_alive() for thread in threads) or any(new.place.paused for new in launched())

        self._judge.await_(f"{begin.__name__} gives an answer", answered, BEGINS_S)
        for error in self._errors:
            if not isinstance(error, KeyshiftError):
                self._judge.problem("begins", "".join(traceback.format_exception(error)[-3:]))
        return next((driver for driver in launched() if driver.status is None), None)

    def _try(self, begin: Callable[[], None]) -> None:
        try:
            begin()
        except BaseException as error:
            self._errors.append(error)

    def _start(self) -> None:
        self._forget()
        _, told = background.start(self._chain.values(), lambda line: None, NAME)
        self._judge.ready.add(told["run_id"])

    def _resume(self) -> None:
        self._seen["resumes"] += 1
        background.resume(NAME, lambda line: None, take_over=self._judge.takes_over)

    def _forget(self, kinds: tuple[str, ...] = ("leftovers",)) -> None:
        """What is left of a job that nobody can go on with, if there is something; ``kinds`` of files that tell.

        Without an entry there is no such job to forget; a file that stays all the same is a problem at the end.
        """
        known, files = Jobs(self._world.folder).read(NAME), (self._world.folder / "jobs").glob(f"{NAME}.*")
        if known and any(path.suffix[1:] in kinds for path in files):
            self._seen["forgotten"] += 1
            with at(self._world.user):
                forget(NAME, lambda line: None)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self, driver: Driver) -> BaseException | None:
        """Ask it to stop; why it did not."""
        if driver.job is None:
            return None
        request = self._requests.ask(driver, "stop", driver.job.stop, self._remember)
        place = driver.place
        stopped = f"driver {driver.pid} stops"
        self._judge.await_(stopped, lambda: request.answered or place.dead or place.paused, STOPS_S)
        return request.error

    def _remember(self, manifest: Manifest) -> None:
        self._stopped = manifest

    def _is_over(self) -> bool:
        """Whether it is stopped; also if the driver that has done it could not say so any more."""
        if self._stopped is None and (stored := self._judge.stored()):
            self._seen["stopped and not told"] += 1
            self._stopped = stored[0]
        return self._stopped is not None

    def _end(self) -> None:
        """Until it is stopped, by a driver that nothing befalls."""
        self._ending = True
        for driver in self._world.living:
            driver.fates.faults.clear()
            if driver.place.paused:
                self._to_wake.append((driver, 0.0))
        whys: list[Any] = []
        while not self._is_over() and len(whys) < LAST:
            if (driver := self._next([])) is None:
                whys.append(self._errors)
                continue
            driver.fates.faults.clear()
            driver.over.wait(LAST_S)
            whys.append(self._stop(driver))
        if self._stopped is None:
            self._judge.problem("lost job", f"{LAST} drivers could not stop it: {whys}")
        for driver in self._world.living:
            self._judge.await_(f"driver {driver.pid} ends, which has a successor", driver.over.is_set, ENDS_S)
        if self._stopped is not None:
            self._forget(("leftovers", "journal"))  # what could not be deleted, or was not by who died

    # -- what happens meanwhile ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Paused drivers go on."""
        while not self._over.wait(0.01):
            for each in list(self._to_wake):
                driver, at_s = each
                if time.monotonic() > at_s:
                    self._to_wake.remove(each)
                    self._seen["woken"] += driver.place.paused
                    driver.wake()

    def _weather(self) -> None:
        """Until there was so much of it that a slow machine does nothing else."""
        expires_s = self._chain.shape.expires_s
        self._world.ensemble.weather(self._outcome.seed, expires_s, self._over, self._seen, EXPIRED)
