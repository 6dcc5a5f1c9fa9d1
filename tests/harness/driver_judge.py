"""What must hold in the life of a job, whatever becomes of its drivers; some of it at any moment, some at the end."""

import contextlib
import json
import random
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from driver_requests import Request
from driver_shape import Chain
from driver_world import Driver, World
from one_run import Outcome
from places import DriverDied, at
from promises import MANIFEST, Input, Promise, broken, promised

from keyshift.driver.snapshotter import SNAPSHOT_PREFIX
from keyshift.experiment.live_spec import live_spec
from keyshift.model.errors import KeyshiftError
from keyshift.results.manifest import Manifest, validate

ANSWER_S = 15.0  # in which every request is answered
SETTLES_S = 20.0  # until threads have ended, or a driver has seen that one has
JUDGED = 8  # promises of a run, beside the last one of each driver
SNAPSHOTS = "keyshift-snapshots"  # the thread that takes them


class Judge:
    """Puts what it finds into the outcome."""

    def __init__(self, outcome: Outcome, chain: Chain, world: World) -> None:
        self._outcome, self._chain, self._world, self.seen = outcome, chain, world, outcome.seen
        self.problem = outcome.problem
        self._promises: dict[str, Promise] = {}
        self._last_of: dict[int, str] = {}  # driver -> the promise that it made last
        self._claimant: Driver | None = None
        self._stale = False  # the journal on disk is not of the driver whose job it is
        self.takes_over = False  # whoever is launched next, from a driver that stands
        self._standing: dict[int, list[Driver]] = {}  # driver -> those from which it may not take the job over
        self.ready: set[str] = set()  # runs of which somebody was told that the job is ready: they are to be kept
        world.watcher = self

    def await_(self, what: str, there: Callable[[], bool], within_s: float, check: str = "never") -> None:
        """Until it is there, or it is a problem that it is not."""
        deadline = time.monotonic() + within_s
        while not there():
            if time.monotonic() > deadline:
                return self.problem(check, what)
            time.sleep(0.01)

    # -- when it happens -----------------------------------------------------------------------------------------------

    def launched(self, driver: Driver) -> None:
        """It is about to be. None may be there of which one could know."""
        if self._world.running is not None:
            self.problem("two drivers", "one is launched, and another one runs")
        self._standing[driver.pid] = [] if self.takes_over else [each for each in self._world.living if each.stands]

    def begins(self, job: str, restore: str | None) -> None:
        """An attempt of ``job`` is about to, from this snapshot or savepoint; None: from the beginning of the input.

        Not before what the journal promises: what lies between may be gone from the input.
        """
        journal = self._world.journal()
        if journal is None or self._stale or journal["run_id"] != job:  # another one has its name, and its files
            return
        if self._world.lost:  # it has to go back
            return
        newest = max((snapshot["name"] for snapshot in journal["past"]["snapshots"]), default="")
        if (restore or SNAPSHOT_PREFIX).startswith(SNAPSHOT_PREFIX) and (restore or "") < newest:
            self.problem("went back", f"an attempt begins from {restore}, and the journal has {newest}")

    def claimed(self, driver: Driver) -> None:
        """The job is its own from now on, and journals of others are stale. Whoever takes nothing over waits for those
        that may live.
        """
        self._claimant = driver
        for other in self._standing[driver.pid]:
            if driver.job and other.job and other.job.run_id == driver.job.run_id and other.stands:
                self.problem("two drivers", f"driver {driver.pid} claims the job, and ZooKeeper hears {other.pid}")

    def kept(self, driver: Driver, journal: dict[str, Any]) -> None:
        """A journal of ``driver`` is on disk. What it names is there. It may be stale if its writer stood still between
        its last look and its write.
        """
        self._stale = driver is not self._claimant
        self.seen["stale journals"] += self._stale
        if self._stale or not journal["past"]["snapshots"]:
            return
        newest = journal["past"]["snapshots"][-1]["name"]
        if f"savepoints/{journal['run_id']}/{newest}/{MANIFEST}" in self._world.lost:
            return
        if newest not in self._promises:
            self._promises[newest] = promise = promised(self._world.bucket, journal, newest)
            if missing := promise.missing():
                self.problem("promise", f"the journal names {newest}, and {missing} is not there")
        self._last_of[driver.pid] = newest

    def deletes(self, driver: Driver, what: str, journal: dict[str, Any] | None) -> None:
        """``driver`` is about to take something away; ``journal``: that is on disk.

        Only a stop that succeeded may take away what a resume needs. A resume needs no half of a run.
        """
        if driver.job is None or driver.job.run_id not in self.ready or self._has_verdict(driver):
            return
        if what.startswith("runs/"):
            return
        who = f"driver {driver.pid}, whose run has no verdict,"
        if not what.startswith("savepoints/"):
            self.problem("deleted", f"{who} deletes {what}")
        elif journal and not self._stale:
            snapshots, begun = journal["past"]["snapshots"], journal["past"]["begun_from"]
            promise = self._promises.get(snapshots[-1]["name"]) if snapshots else None
            of_begun = begun and what.startswith(f"savepoints/{journal['run_id']}/{begun['name']}/")
            if of_begun or (promise and what in promise.needed()):
                self.problem("deleted", f"{who} deletes {what}, which the journal names")
            self.seen["savepoints removed"] += SNAPSHOT_PREFIX not in what

    def input_lost(self, ends: dict[str, list[int]]) -> None:
        """Topics of events end there now. What has read more than there is now is promised no more."""
        for name, promise in [*self._promises.items()]:
            [offsets] = (each["offsets"] for each in promise.journal["past"]["snapshots"] if each["name"] == name)
            left = ends.get(f"{promise.run}-events")
            if left and any(left[int(router)] < offset for router, offset in offsets.items()):
                del self._promises[name]
                self.seen["promises lost"] += 1
        self._last_of = {driver: name for driver, name in self._last_of.items() if name in self._promises}

    def _has_verdict(self, driver: Driver) -> bool:
        assert driver.job is not None
        return any(manifest.run_id == driver.job.run_id for manifest in self.stored())

    def stored(self) -> list[Manifest]:
        """The runs that have a verdict."""
        names = [name for name in self._world.bucket.objects.copy() if re.fullmatch("runs/[^/]+/manifest.json", name)]
        manifests = [validate(json.loads(self._world.bucket.objects[name])) for name in names]
        return [manifest for manifest in manifests if manifest.status != "died"]

    def see_snapshots(self, driver: Driver) -> None:
        """Whether a driver that goes on still takes them; it may need a while to see that it does not."""

        def taken_or_over() -> bool:
            taking = [thread.is_alive() for thread in driver.place.threads if thread.name == SNAPSHOTS]
            return any(taking) or not taking or not driver.runs

        what = f"driver {driver.pid} takes no more snapshots, and says nothing"
        self.await_(what, taken_or_over, SETTLES_S, "silent")

    # -- at the end ----------------------------------------------------------------------------------------------------

    def judge(self, stopped: Manifest | None, requests: list[Request]) -> None:
        """``stopped``: the run, if it came to a verdict."""
        if stopped is not None:
            self._judge_verdict(stopped)
        self._judge_promises()
        for request in requests:
            self._judge_request(request)
        if stopped is not None:
            self._judge_what_is_left(stopped.run_id)
        self._judge_threads()

    def _judge_verdict(self, manifest: Manifest) -> None:
        self.seen["stopped"] += 1
        assert manifest.verdict is not None and manifest.summary is not None
        verdict = manifest.verdict.model_dump()
        for kind, count in [*verdict.items(), *verdict["others"].items()]:
            if isinstance(count, int) and count:
                self.problem(kind, f"{count}: {manifest.verdict.examples}\n{manifest.notes}")
        self.seen["events"] += manifest.summary.events

    def _judge_promises(self) -> None:
        """Those that a driver made last, which another one goes on from, and some others."""
        chosen = {*self._last_of.values()}
        others, rng = sorted(self._promises.keys() - chosen), random.Random(self._outcome.seed)
        chosen |= set(rng.sample(others, min(JUDGED, len(others))))
        workload, inputs = live_spec(self._chain.values()).workload, dict[str, Input]()
        for name in sorted(chosen):
            promise = self._promises[name]
            if promise.run not in inputs:
                with at(self._world.user):
                    inputs[promise.run] = Input(workload, promise.run, self._chain.shape.routers, self._world.kafka)
            self.seen["promises judged"] += 1
            if line := broken(promise, inputs[promise.run]):
                self.problem("promise", f"{name}: {line}")
        self.seen["promises"] += len(self._promises)

    def _judge_request(self, request: Request) -> None:
        self.seen["requests"] += 1
        if request.driver.killed or isinstance(request.error, DriverDied):
            return
        if "unanswered" not in self._outcome.problems:
            within_s = max(0.5, request.at_s + ANSWER_S - time.monotonic())
            what = f"{request.what} of driver {request.driver.pid}"
            self.await_(what, lambda: request.answered, within_s, "unanswered")
        if request.error is not None:
            self.seen["refused"] += 1
            if not isinstance(request.error, KeyshiftError):
                self.problem("answer", "".join(traceback.format_exception(request.error)[-4:]))

    def _judge_what_is_left(self, run: str) -> None:
        """Nothing, but for the stored run."""
        world = self._world
        left: list[Iterable[str]] = [
            [node for node in world.ensemble.nodes if node.startswith(f"/keyshift/{run}")],
            [name for name in world.bucket.objects if name.startswith(f"savepoints/{run}/")],
            [topic for topic in world.kafka.topics if topic.startswith(run)],
            [path.name for path in (world.folder / "jobs").glob("job*")],
        ]
        for some in left:
            if found := sorted(some):
                self.problem("left behind", f"{len(found)}: {found[:5]}")

    def _judge_threads(self) -> None:
        """Those of drivers that have ended by themselves. Spark's workers are killed at the end."""
        deadline = time.monotonic() + SETTLES_S
        for driver in self._world.drivers.values():
            ended = not driver.killed and driver.status is not None
            for place in (driver.places[name] for name in ("driver", "generator", "collector") if ended):
                for thread in place.threads:
                    if thread is not threading.current_thread():
                        with contextlib.suppress(RuntimeError):  # it has not begun
                            thread.join(max(0.0, deadline - time.monotonic()))
                    if thread.is_alive():
                        self.problem("threads", f"{thread.name} of {place.name} does not end")
