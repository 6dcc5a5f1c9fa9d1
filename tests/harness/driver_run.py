"""One job and all the drivers that it has in its life: ``run(seed)``. See ``driver_world`` and ``driver_shape``.

A driver is killed, paused, interrupted, or told to stop, or something befalls it at a call into a service; another one
resumes the job, or two do at once. Other threads ask for something all the while. In the end one stops it.
"""

import contextlib
import json
import random
import re
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver_shape import Chain, Life, draw_chain
from driver_stand_ins import installed
from driver_world import Deletion, Driver, World
from flaky_flight import Failures
from one_run import Outcome
from places import DriverDied, Fault, at
from promises import Input, Promise, broken, promised

from keyshift.control import background
from keyshift.control.forgetting import forget
from keyshift.errors import KeyshiftError, QueryDied
from keyshift.executor.snapshotter import MARK
from keyshift.lab.live_run import NotRunning
from keyshift.lab.live_spec import live_spec
from keyshift.results.manifest import Manifest, validate

NAME = "job"
ANSWER_S = 15.0  # in which every request is answered
ENDS_S = 15.0  # for a driver to end that has to
STOPS_S = 40.0  # for a stop, by far
LAST_S = 0.2  # that the last driver is left alone
LAST = 4  # drivers, at the most, until one stops the job that nothing befalls
JUDGED = 8  # promises of each run, with the last of each driver
SETTLES_S = 5.0  # until threads have ended
REQUESTS = ("scale", "scale_and_wait", "plan", "cancel", "rate", "query", "propose", "hottest")


@dataclass
class Request:
    """Something that was asked of a driver. ``error``: that it was answered with."""

    driver: Driver
    what: str
    at_s: float
    answered: bool = False
    error: BaseException | None = None


def run(seed: int, **pinned: Any) -> Outcome:
    """One chain of drivers; ``pinned``: see ``driver_shape.draw_chain``."""
    chain = draw_chain(seed, **pinned)
    outcome = Outcome(seed, chain, pinned)  # type: ignore[arg-type]
    failures = Failures(seed, chain.shape.fails, chain.shape.flight_s)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        world = World(seed, chain.shape, Path(folder).resolve())
        with installed(world, failures, chain.answer_s):
            Run(outcome, chain, world).go()
            for client in failures.clients:
                client.close()
    return outcome


class Run:
    """Problems are in the outcome."""

    def __init__(self, outcome: Outcome, chain: Chain, world: World) -> None:
        self.outcome, self.chain, self.world, self.seen = outcome, chain, world, outcome.seen
        self._rng = random.Random(f"acts {outcome.seed}")
        self._ready = False  # whoever started it knows that it runs: it is to be kept
        self._stopped: Manifest | None = None
        self._promises: dict[str, Promise] = {}
        self._last_of: dict[int, str] = {}  # driver -> the promise that it made last
        self._requests: list[Request] = []
        self._over = threading.Event()
        self._woken: list[tuple[Driver, float]] = []
        world.on_journal, world.on_delete = self._kept, self._deleted
        world.on_launch, world.on_begin = self._launched, self._attempt_begins

    def go(self) -> None:
        """Everything."""
        for act in (self._ask, self._weather):
            threading.Thread(target=act, name=f"harness{act.__name__}", daemon=True).start()
        try:
            for number, life in enumerate(self.chain.lives):
                self._live(number, life)
            self._end()
            self._judge()
        except BaseException as error:
            self._problem(type(error).__name__, "".join(traceback.format_exception(error)[-4:]))
        finally:
            self._over.set()
            for driver in self.world.drivers.values():
                if driver.crash:
                    self._problem("crash", f"driver {driver.pid}: {driver.crash}")
                driver.kill()

    def _problem(self, check: str, what: Any) -> None:
        self.outcome.problems.setdefault(check, str(what))

    @property
    def _begun(self) -> bool:
        """Another driver can go on with it."""
        return self._ready or self.world.journal() is not None

    # -- one driver after the other ------------------------------------------------------------------------------------

    def _live(self, number: int, life: Life) -> None:
        driver = self._next(list(life.faults), life.twice and self._begun)
        if driver is None:
            return
        self.seen["lives"] += 1
        until = time.monotonic() + life.seconds
        while time.monotonic() < until and not driver.over.is_set() and not driver.was_paused.is_set():
            self._wake_some()
            time.sleep(0.01)
        if not driver.over.is_set() and not driver.place.paused:
            self._see_snapshots(driver)
            self._finish_off(driver, life)
        if driver.place.paused:
            self.seen["paused"] += 1
            driver.elsewhere = True
            if self._rng.random() < 0.7:
                driver.expire()
            self._woken.append((driver, time.monotonic() + life.woken_s))
        self.seen.update(f"{fault.does} {fault.call}" for fault in driver.fates.struck)

    def _see_snapshots(self, driver: Driver) -> None:
        """Whether a driver that goes on still takes them."""
        taking = [thread for thread in driver.place.threads if thread.name == "keyshift-snapshots"]

        def goes_on() -> bool:
            job = driver.job
            return not driver.over.is_set() and not driver.place.paused and job is not None and job.state == "running"

        if taking and not taking[-1].is_alive() and goes_on():
            deadline = time.monotonic() + SETTLES_S  # until the driver sees it, and ends or begins another attempt
            while goes_on() and not any(thread.is_alive() for thread in driver.place.threads if thread.name == taking[-1].name):
                if time.monotonic() > deadline:
                    self._problem("silent", f"driver {driver.pid} takes no more snapshots: {driver.job.status()}")
                    return
                time.sleep(0.01)

    def _finish_off(self, driver: Driver, life: Life) -> None:
        match life.ends:
            case "kill":
                driver.kill()
                self._await(f"driver {driver.pid} ends that was killed", driver.over.is_set, ENDS_S)
            case "pause":
                driver.pause("driver" if life.half else None)
            case "interrupt":
                driver.terminate()
                self._await(f"driver {driver.pid} ends that was interrupted", driver.over.is_set, ENDS_S)
            case "stop":
                self._stop(driver)

    def _next(self, faults: list[Fault], twice: bool = False) -> Driver | None:
        """The driver of the job from now on; None if there is none, because what befell it came too soon."""
        if self._stopped is not None or self._is_stored():
            return None
        if (driver := self._running()) is not None:
            driver.fates.faults += faults
            return driver
        known = set(self.world.drivers)
        self.world.coming = [faults, []]
        errors: list[BaseException] = []
        begin = self._resume if self.world.journal() else self._start
        threads = [threading.Thread(target=self._try, args=(begin, errors), daemon=True) for _ in range(1 + twice)]
        for thread in threads:
            thread.start()
        for thread in threads:
            deadline = time.monotonic() + STOPS_S
            while thread.is_alive() and time.monotonic() < deadline:
                self._wake_some()
                if any(driver.place.paused for driver in self._new(known)):
                    return self._new(known)[0]
                thread.join(0.01)
            if thread.is_alive():
                self._problem("never", f"{begin.__name__} gives no answer")
        for error in errors:
            if not isinstance(error, KeyshiftError):
                self._problem("begins", "".join(traceback.format_exception(error)[-3:]))
        self.errors = errors
        return next((driver for driver in self._new(known) if driver.status is None), None)

    def _new(self, known: set[int]) -> list[Driver]:
        return [driver for pid, driver in self.world.drivers.items() if pid not in known]

    def _running(self) -> Driver | None:
        """The newest driver that lives and is there."""
        living = [driver for driver in self.world.living if not driver.place.paused and not driver.elsewhere]
        return living[-1] if living else None

    def _try(self, begin: Callable[[], Any], errors: list[BaseException]) -> None:
        try:
            begin()
        except BaseException as error:
            errors.append(error)

    def _start(self) -> None:
        if (self.world.folder / "jobs" / f"{NAME}.leftovers").exists():
            self._forget()
        background.start(self.chain.values(), lambda line: None, NAME)
        self._ready = True

    def _resume(self) -> None:
        self.seen["resumes"] += 1
        elsewhere = any(driver.elsewhere for driver in self.world.living)
        background.resume(NAME, lambda line: None, take_over=elsewhere and self._rng.random() < 0.5)

    def _forget(self) -> None:
        """What is left of a driver that never came so far that another one can go on."""
        self.seen["forgotten"] += 1
        with at(self.world.user):
            forget(NAME, lambda line: None)

    def _wake_some(self, all_: bool = False) -> None:
        for driver, at_s in list(self._woken):
            if all_ or time.monotonic() > at_s:
                self._woken.remove((driver, at_s))
                driver.wake()
                self.seen["woken"] += 1

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self, driver: Driver) -> BaseException | None:
        """Ask it to stop; why it did not."""
        if driver.job is None:
            return None
        request = self._request(driver, "stop", driver.job.stop, self._remember)
        gone = driver.place
        self._await(f"driver {driver.pid} stops", lambda: request.answered or gone.dead or gone.paused, STOPS_S)
        if request.answered and not gone.paused:
            self._await(f"driver {driver.pid} ends that was stopped", driver.over.is_set, ENDS_S)
        return request.error

    def _remember(self, manifest: Manifest) -> None:
        self._stopped = manifest

    def _end(self) -> None:
        """Until it is stopped, by a driver that nothing befalls."""
        for driver in self.world.living:
            driver.fates.faults.clear()
            if driver.place.paused and driver not in [each for each, _ in self._woken]:
                self._woken.append((driver, 0.0))
        self._wake_some(all_=True)
        whys: list[Any] = []
        for _ in range(LAST):
            if self._stopped is not None or self._is_stored():
                break
            if not self._begun and not self.world.living and whys:
                self._problem("never began", whys)
                return
            driver = self._next([])
            if driver is None:
                whys.append(self.errors)
                continue
            driver.fates.faults.clear()
            self._await("a while", lambda until=time.monotonic() + LAST_S: time.monotonic() > until or driver.over.is_set(), ENDS_S)
            whys.append(self._stop(driver))
        if self._stopped is None:
            self._problem("lost job", f"{LAST} drivers could not stop it: {whys}")
        for driver in self.world.living:
            self._await(f"driver {driver.pid} ends, which has a successor", driver.over.is_set, ENDS_S, "two drivers")

    def _is_stored(self) -> bool:
        """Whether a driver that could not say so any more has stopped the job: then what it left can be forgotten."""
        for name, data in self.world.bucket.objects.copy().items():
            if re.fullmatch("runs/[^/]+/manifest.json", name) and (found := validate(json.loads(data))).status != "died":
                self.seen["stopped and not told"] += 1
                self._stopped = found
                for driver in self.world.living:
                    self._await(f"driver {driver.pid} ends whose run is stored", driver.over.is_set, ENDS_S)
                if (self.world.folder / "jobs" / f"{NAME}.json").exists():
                    self._forget()
                return True
        return False

    def _await(self, what: str, there: Callable[[], bool], within_s: float, check: str = "never") -> None:
        deadline = time.monotonic() + within_s
        while not there():
            if time.monotonic() > deadline:
                self._problem(check, what)
                return
            self._wake_some()
            time.sleep(0.01)

    # -- what others do meanwhile --------------------------------------------------------------------------------------

    def _ask(self) -> None:
        rng = random.Random(f"requests {self.outcome.seed}")
        while not self._over.wait(rng.expovariate(1 / self.chain.requests_s)):
            for driver in self.world.living:
                if driver.job is not None and driver.job.ready.is_set() and rng.random() < 0.7:
                    what = rng.choice(REQUESTS)
                    self._request(driver, what, self._act(driver, what, rng))

    def _act(self, driver: Driver, what: str, rng: random.Random) -> Callable[[], Any]:
        job = driver.job
        assert job is not None
        stage, slots = rng.choice(job.spec.workload.stages).name, rng.randint(1, self.chain.shape.slots)
        rate = self.chain.rate * (0.5 + rng.random())

        def query() -> None:
            if driver.engine.query is not None and not driver.place.paused:
                driver.engine.query.die(RuntimeError("injected: a worker was killed"))

        acts: dict[str, Callable[[], Any]] = {
            "scale": lambda: job.scale(stage, slots, wait=False),
            "scale_and_wait": lambda: job.scale(stage, slots),
            "plan": lambda: job.plan(rng.choice(("fluid", "all_at_once")), slots, stage=stage),
            "hottest": lambda: job.plan("hot_first", slots, stage=stage),
            "propose": lambda: job.begin(job.propose("fluid", slots, stage=stage)),
            "cancel": job.cancel,
            "rate": lambda: job.set_rate(rate),
            "query": query if rng.random() < 0.15 else lambda: None,
        }
        return acts[what]

    def _request(
        self, driver: Driver, what: str, act: Callable[[], Any], got: Callable[[Any], None] = lambda answer: None
    ) -> Request:
        request = Request(driver, what, time.monotonic())
        self._requests.append(request)

        def ask() -> None:
            try:
                got(act())
            except BaseException as error:
                request.error = error
            request.answered = True

        threading.Thread(target=ask, name=f"harness {what}", daemon=True).start()
        return request

    def _weather(self) -> None:
        """Sessions with ZooKeeper expire."""
        rng, mean_s = random.Random(f"weather {self.outcome.seed}"), self.chain.shape.expires_s
        while mean_s and not self._over.wait(rng.expovariate(1 / mean_s)):
            with self.world.ensemble.lock:
                session = rng.choice([*self.world.ensemble.sessions, None])
            if session is not None:
                self.seen["sessions expired"] += 1
                session.expire()

    # -- what must hold all the time -----------------------------------------------------------------------------------

    def _kept(self, journal: dict[str, Any]) -> None:
        """A journal is on disk."""
        if not journal["snapshots"]:
            return
        newest = journal["snapshots"][-1]["name"]
        if newest not in self._promises:
            self._promises[newest] = promise = promised(self.world.bucket, journal, newest)
            if missing := promise.missing():
                self._problem("promise", f"the journal names {newest}, and {missing} is not there")
        if self.world.living:
            self._last_of[self.world.living[-1].pid] = newest

    def _launched(self) -> None:
        """Another driver begins: none may be there of which one could know."""
        if self._running() is not None:
            self._problem("two drivers", "one is launched, and another one runs")

    def _attempt_begins(self, restore: str | None) -> None:
        """Not before what the journal promises: what lies between may be gone from the input."""
        journal = self.world.journal() or {"snapshots": []}
        newest = max((snapshot["name"] for snapshot in journal["snapshots"]), default="")
        if (restore or MARK).startswith(MARK) and (restore or "") < newest:
            self._problem("went back", f"an attempt begins from {restore}, and the journal has {newest}")

    def _deleted(self, deletion: Deletion) -> None:
        """Only a stop that succeeded may take away what a resume needs."""
        journal, what, driver = deletion.journal, deletion.what, deletion.driver
        if not self._ready or self._stored(driver):
            return
        who = f"driver {driver.pid}, whose run is not stored,"
        if not what.startswith("savepoints/"):
            self._problem("deleted", f"{who} deletes {what}")
        elif journal and journal["snapshots"] and what in self._needed(journal):
            self._problem("deleted", f"{who} deletes {what}, which the journal names")

    def _stored(self, driver: Driver) -> bool:
        """Whether the run of ``driver`` is in the store, with a verdict."""
        assert driver.job is not None
        manifest = self.world.bucket.objects.get(f"runs/{driver.job.run_id}/manifest.json")
        return manifest is not None and json.loads(manifest)["status"] != "died"

    def _needed(self, journal: dict[str, Any]) -> set[str]:
        promise = self._promises.get(journal["snapshots"][-1]["name"])
        return promise.needed() if promise else set()

    # -- what came of it -----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_verdict()
        self._judge_promises()
        self._judge_requests()
        self._over.set()
        if self._stopped is not None:
            self._judge_what_is_left()
        self._judge_threads()
        self.seen["promises"] += len(self._promises)

    def _judge_verdict(self) -> None:
        if (manifest := self._stopped) is None:
            return
        self.seen["stopped"] += 1
        assert manifest.verdict is not None
        verdict = manifest.verdict.model_dump()
        for kind, count in [*verdict.items(), *verdict["others"].items()]:
            if isinstance(count, int) and count:
                self._problem(kind, f"{count}: {manifest.verdict.examples}\n{manifest.notes}")
        self.seen["events"] += manifest.summary.events if manifest.summary else 0

    def _judge_promises(self) -> None:
        """Those that a driver made last, which another one goes on from, and some others."""
        chosen = {*self._last_of.values()}
        others = sorted(self._promises.keys() - chosen)
        chosen |= set(self._rng.sample(others, min(JUDGED, len(others))))
        workload, inputs = live_spec(self.chain.values()).workload, dict[str, Input]()
        for name in sorted(chosen):
            promise = self._promises[name]
            if promise.run not in inputs:
                with at(self.world.user):
                    inputs[promise.run] = Input(workload, promise.run, self.chain.shape.routers, self.world.kafka)
            self.seen["promises judged"] += 1
            if line := broken(promise, inputs[promise.run]):
                self._problem("promise", f"{name}: {line}")

    def _judge_requests(self) -> None:
        for request in self._requests:
            self.seen["requests"] += 1
            if request.driver.killed or isinstance(request.error, DriverDied):
                continue
            within_s = max(0.5, request.at_s + ANSWER_S - time.monotonic())
            if "unanswered" not in self.outcome.problems:
                what = f"{request.what} of driver {request.driver.pid}"
                self._await(what, lambda r=request: r.answered, within_s, "unanswered")
            if request.error is not None and not isinstance(request.error, KeyshiftError):
                self._problem("answer", "".join(traceback.format_exception(request.error)[-4:]))
            self.seen["refused"] += isinstance(request.error, (NotRunning, QueryDied))

    def _judge_what_is_left(self) -> None:
        if (self.world.folder / "jobs" / f"{NAME}.leftovers").exists():  # something kept it from being deleted
            self._forget()
        world, run = self.world, self._stopped.run_id  # type: ignore[union-attr]
        left: list[Iterable[str]] = [
            [node for node in world.ensemble.nodes if node.startswith(f"/keyshift/{run}")],
            [name for name in world.bucket.objects if name.startswith(f"savepoints/{run}/")],
            [topic for topic in world.kafka.topics if topic.startswith(run)],
            [path.name for path in (world.folder / "jobs").glob("job*")],
        ]
        for some in left:
            if found := sorted(some):
                self._problem("left behind", f"{len(found)}: {found[:5]}")
        stored = {name.split("/")[1] for name in world.bucket.objects if name.startswith("runs/")}
        if run not in stored:
            self._problem("unstored", "the run is not in the store")

    def _judge_threads(self) -> None:
        deadline = time.monotonic() + SETTLES_S
        for driver in self.world.drivers.values():
            if driver.killed or driver.status is None:
                continue
            for name in ("driver", "generator", "collector"):  # Spark's workers are killed at the end
                place = driver.places[name]
                for thread in place.threads:
                    with contextlib.suppress(RuntimeError):
                        thread.join(max(0.0, deadline - time.monotonic()))
                    if thread.is_alive():
                        self._problem("threads", f"{thread.name} of {place.name} does not end")
