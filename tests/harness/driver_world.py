"""What outlives a driver (ZooKeeper, S3, Kafka and a disk, all in memory or a temporary folder), and drivers in it.

A driver is a thread that runs ``keyshift.control.process``, with the generator, the collector and Spark's tasks of its
job. What is not there is stood in for where it meets the library: the clients of the services, the start of a process
and the start of a query. Everything between these is the real code.
"""

import contextlib
import itertools
import json
import queue
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from engine import Bucket, Engine, Query
from memory_kafka import Broker, LoggedTopic
from nodes import Ensemble, Session, _Watch
from places import DriverDied, Fates, Fault, Place, at, here
from shape import Shape
from urllib3.exceptions import HTTPError

from keyshift.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.executor.config import JobConfig
from keyshift.executor.epoch import Epoch
from keyshift.lab.live_job import LiveJob

SESSION_S = 0.3  # at the most, until a dead driver's sessions expire
PARTS = ("driver", "spark", "generator", "collector")  # the processes of a driver; the last two end when it is gone


@dataclass
class Deletion:
    """Something that a driver took away: what a later one may need."""

    driver: "Driver"
    what: str
    journal: dict[str, Any] | None  # that was on disk then


class World:
    """All services and the disk of one run, and the drivers that use them."""

    def __init__(self, seed: int, shape: Shape, folder: Path) -> None:
        self.seed, self.shape, self.folder = seed, shape, folder
        self.rng = random.Random(f"world {seed}")
        self.ensemble, self.bucket, self.kafka = Ensemble(seed, shape.zookeeper_s), Bucket(), Broker()
        self.drivers: dict[int, Driver] = {}
        self.user = Place("user", Fates([]), lambda fault: None)  # of the commands
        self.coming: list[list[Fault]] = []  # the faults of the drivers that will be launched next
        self.on_journal: Callable[[dict[str, Any]], None] = lambda journal: None
        self.on_delete: Callable[[Deletion], None] = lambda deletion: None
        self.on_launch: Callable[[], None] = lambda: None
        self.on_begin: Callable[[str | None], None] = lambda restore: None  # an attempt, from this snapshot or savepoint
        self._pids = itertools.count(1)

    def launch(self, log: Path) -> "Driver":
        """The process of a job; stands in for ``background._launched``."""
        log.touch()
        self.on_launch()
        driver = Driver(self, next(self._pids), log, self.coming.pop(0) if self.coming else [])
        self.drivers[driver.pid] = driver
        driver.begin()
        return driver

    def journal(self) -> dict[str, Any] | None:
        """The one that is on disk; None if there is none."""
        for path in (self.folder / "jobs").glob("*.journal"):
            with contextlib.suppress(OSError, ValueError):
                return json.loads(path.read_text())  # type: ignore[no-any-return]
        return None

    def deletes(self, what: str) -> None:
        """A driver is about to take something away."""
        if (place := here()) is not None and place is not self.user:
            self.on_delete(Deletion(self.driver_of(place), what, self.journal()))

    def driver_of(self, place: Place) -> "Driver":
        """Whose process it is."""
        return next(driver for driver in self.drivers.values() if place in driver.places.values())

    def find(self, path: Path) -> object | None:
        """The process of a job's file, if it lives and can be seen; stands in for ``processes.find``."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            driver = self.drivers.get(json.loads(path.read_text())["pid"])
            return driver if driver and driver.status is None and not driver.elsewhere else None
        return None

    @property
    def living(self) -> list["Driver"]:
        """Drivers whose process has not ended."""
        return [driver for driver in self.drivers.values() if driver.status is None]


@dataclass(eq=False)
class Driver:
    """One process of a job, and what it has started. As ``subprocess.Popen``, so far as ``background`` uses it."""

    world: World
    pid: int
    log: Path
    faults: list[Fault]
    status: int | None = None  # of its exit
    crash: str = ""  # what is no error of ours
    elsewhere: bool = False  # on another machine that shares the disk: nobody here sees its process
    job: LiveJob | None = None
    executed: bool = False  # its run came to a verdict
    stdin: "Pipe" = field(default_factory=lambda: Pipe())
    helpers: list["Helper"] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    was_paused: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.fates = Fates(self.faults)
        self.places = {name: Place(f"{name} {self.pid}", self.fates, self._befall) for name in PARTS}
        self.engine = DriverEngine(self)
        self.killed = False
        self._killing = threading.Lock()

    def begin(self) -> None:
        """Run."""
        with at(self.place):
            thread = threading.Thread(target=self._run, name=f"harness driver {self.pid}", daemon=True)
            self.place.main = thread
            thread.start()

    @property
    def place(self) -> Place:
        """Its own process."""
        return self.places["driver"]

    def _run(self) -> None:
        from keyshift.control import process

        status = 0
        try:
            process.run()
        except DriverDied:
            status = -9
        except KeyboardInterrupt:
            status = 130
        except KeyshiftError as error:
            self._say(f"keyshift: {error}")
            status = 2 if isinstance(error, BadInput) else 3
        except BaseException as error:
            status, self.crash = 1, "".join(traceback.format_exception(error)[-6:])
        if self.killed:
            status = -9
        self.status = status
        self.stdin.close()
        self._end_helpers()
        self.over.set()

    def _say(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{line}\n")

    def _befall(self, fault: Fault) -> None:
        match fault.does:
            case "die":
                self.kill()
            case "pause":
                self.pause()
            case "interrupt":
                self.terminate()

    # -- what may happen to it -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """It is gone, and Spark's processes with it. Its sessions expire after a while."""
        with self._killing:
            if self.killed or self.status is not None:
                return
            self.killed = True
        for name in ("driver", "spark"):
            self.places[name].kill()
        self.engine.kill()
        self._end_helpers()
        self.stdin.close()
        for session in list(self.world.ensemble.sessions):
            if isinstance(session, DrivenSession) and session.place in self.places.values():
                expiry = threading.Timer(self.world.rng.random() * SESSION_S, session.lose)
                expiry.daemon = True
                expiry.start()

    def pause(self, only: str | None = None) -> None:
        """With Spark, and with generator and collector, or ``only`` one of these processes."""
        for name, place in self.places.items():
            if only in (None, name):
                place.pause()
        self.was_paused.set()

    def wake(self) -> None:
        """It goes on."""
        for place in self.places.values():
            place.wake()

    def expire(self) -> None:
        """ZooKeeper has not heard of it for too long."""
        for session in list(self.world.ensemble.sessions):
            if isinstance(session, DrivenSession) and session.place in self.places.values():
                session.expire()

    def _end_helpers(self) -> None:
        for helper in self.helpers:
            helper.commands.put({"stop": True})

    # -- as a process --------------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """The exit status; None while it lives."""
        return self.status

    def terminate(self) -> None:
        """As SIGTERM: its main thread is interrupted."""
        self.place.interrupted = True

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended."""
        if not self.over.wait(60.0 if timeout is None else timeout):
            raise AssertionError(f"driver {self.pid} does not end")


class Pipe:
    """Standard input of a driver, both ends."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def write(self, line: bytes) -> None:
        self._lines.put(line)

    def flush(self) -> None:
        """It is there at once."""

    def close(self) -> None:
        self._lines.put(b"")

    def readline(self) -> bytes:
        return self._lines.get()


class Helper:
    """Generator and collector: the methods of ``JsonProcess``, over a thread that runs the real body of the process."""

    bodies: dict[str, tuple[Any, Callable[[Any, Any], None]]] = {}  # module -> type of its configuration, body

    def __init__(self, module: str, config: dict[str, Any], heard: Any = None, more_env: Any = None) -> None:
        self.name = module.rsplit(".", 1)[-1]
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._error = ""
        place = here()
        assert place is not None
        driver = self._driver = place_driver(place)
        self.pid = 1000 * driver.pid + len(driver.helpers)
        driver.helpers.append(self)
        self._place, self._listener = driver.places[self.name], place
        kind, body = self.bodies[module]
        config = json.loads(json.dumps(config))
        with at(self._place):
            self._thread = threading.Thread(
                target=self._run, args=(kind, body, config, heard), name=f"harness {self.name}", daemon=True
            )
            self._thread.start()

    def _run(self, kind: Any, body: Any, config: dict[str, Any], heard: Any) -> None:
        from engine import HERE

        def said(report: dict[str, Any]) -> None:
            with contextlib.suppress(DriverDied):
                self._listener._awake.wait()
                heard(json.loads(json.dumps(report)))

        HERE.say = said
        try:
            body(kind.model_validate(config), self)
        except (KeyshiftError, OSError, Exception) as error:
            self._error = f"{type(error).__name__}: {error}"

    def next(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """As ``entry.Commands``."""
        self._place.check()
        try:
            if timeout_s is not None and timeout_s <= 0:
                return self.commands.get_nowait()
            return self.commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def tell(self, command: dict[str, Any]) -> None:
        self._listener.check()
        self.commands.put(json.loads(json.dumps(command)))
        if not self._thread.is_alive():
            self.check()

    def check(self) -> None:
        self._listener.check()
        if self._error:
            raise ServiceUnavailable(f"the {self.name} process died: {self._error}")

    def stop(self) -> None:
        self.tell({"stop": True})
        self._thread.join(20.0)
        if self._thread.is_alive():
            raise ServiceUnavailable(f"the {self.name} process did not stop within 20 s")
        self.check()

    def kill(self) -> None:
        self._listener.check()
        self._place.kill()


def place_driver(place: Place) -> Driver:
    """Whose process it is."""
    driver = place._befall.__self__  # type: ignore[attr-defined]
    assert isinstance(driver, Driver)
    return driver


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


class DrivenSession(Session):
    """The session of one process, at whose calls something may happen."""

    def __init__(self, world: World, root: str, epoch: Epoch | None = None) -> None:
        place = here()
        assert place is not None
        self.place, self._world = place, world
        with self._calling("look"):
            super().__init__(world.ensemble, root, epoch)

    def _calling(self, call: str) -> contextlib.AbstractContextManager[None]:
        return self.place.calling(f"zookeeper {call}", self._broken)

    def _broken(self) -> Exception:
        """As after ``GIVE_UP_S`` without a connection: there is no session any more."""
        if hasattr(self, "_over"):
            self.lose("injected: was lost")
        return ServiceUnavailable("injected: ZooKeeper was away")

    def publish(self, path: str, value: Any) -> None:
        with self._calling("publish"):
            super().publish(path, value)

    def acknowledge(self, path: str, value: Any) -> None:
        with self._calling("acknowledge"):
            super().acknowledge(path, value)

    def register(self, path: str, value: Any) -> None:
        with self._calling("register"):
            super().register(path, value)

    def withdraw(self, path: str) -> None:
        with self._calling("withdraw"):
            if not path and self._ensemble.below(self.root):
                self._world.deletes(f"ZooKeeper's nodes of {self.root}")
            super().withdraw(path)

    def read(self, path: str) -> Any | None:
        with self._calling("read"):
            return super().read(path)

    def children(self, path: str) -> list[str]:
        with self._calling("children"):
            return super().children(path)

    def _watch(self, watch: _Watch) -> None:
        with self._calling("watch"):
            super()._watch(watch)

    def claim(self, job: str, first: bool = False) -> Epoch:
        with self._calling("claim"):
            return super().claim(job, first)

    def require_epoch(self) -> None:
        with self._calling("look"):
            super().require_epoch()

    def end_epoch(self) -> None:
        with self._calling("end"):
            super().end_epoch()

    def check(self) -> None:
        self.place.check()
        super().check()

    def close(self, prepare_next: bool = False) -> None:
        self.place.check()
        super().close(prepare_next)

    def _arrive(self) -> None:
        with contextlib.suppress(DriverDied):
            self.place.check()
            super()._arrive()

    def _look(self, watch: _Watch) -> None:
        self.place.check()
        super()._look(watch)

    def _succeed(self) -> None:
        with contextlib.suppress(DriverDied):
            self.place.check()
            super()._succeed()


# -- S3 ----------------------------------------------------------------------------------------------------------------


class Minio:
    """The client of one process."""

    def __init__(self, world: World) -> None:
        self._world, self._bucket, self._place = world, world.bucket, here()

    def _calling(self, call: str) -> contextlib.AbstractContextManager[None]:
        place = self._place or here()
        if place is None:
            return contextlib.nullcontext()
        return place.calling(f"minio {call}", lambda: HTTPError("injected: nobody answers"))

    def put_object(self, *arguments: Any, **named: Any) -> None:
        with self._calling("put"):
            self._bucket.put_object(*arguments, **named)

    def get_object(self, *arguments: Any, **named: Any) -> Any:
        with self._calling("get"):
            return self._bucket.get_object(*arguments, **named)

    def list_objects(self, *arguments: Any, **named: Any) -> Any:
        with self._calling("list"):
            return self._bucket.list_objects(*arguments, **named)

    def remove_object(self, bucket: str, name: str) -> None:
        with self._calling("remove"):
            if name in self._bucket.objects:
                self._world.deletes(name)
            self._bucket.remove_object(bucket, name)


# -- Spark -------------------------------------------------------------------------------------------------------------


class DriverEngine(Engine):
    """The Spark session of one driver, over the world's topics."""

    def __init__(self, driver: Driver) -> None:
        shape = driver.world.shape
        super().__init__(driver.world.seed, LoggedTopic(0), None, shape.batch_s, shape.moves, shape.slow_s)  # type: ignore[arg-type]
        self.driver, self.query = driver, None  # type: ignore[assignment]
        self.sparkContext = SimpleNamespace(applicationId="harness")

    def start_query(
        self, config: JobConfig, checkpoint: Any, batch_s: float, offsets: dict[int, int] | None = None
    ) -> Query:
        self.driver.world.on_begin(config.restore)
        kafka, self.workload = self.driver.world.kafka, config.make_workload()
        self.topic, self._out = kafka.topic(config.events_topic), kafka.topic(config.results_topic)
        with at(self.driver.places["spark"]):
            self.query = DrivenQuery(self, config, [(offsets or {}).get(router, 0) for router in range(config.routers)])
        return self.query

    def collect(self, slot: int, values: pa.Array, schema: pa.Schema) -> None:
        for value in values:
            with self.driver.places["spark"].calling("kafka result", lambda: RuntimeError("injected: Kafka is away")):
                self._out.append(slot, value.as_py())

    def stop(self) -> None:
        """The session."""
        self.kill()

    def kill(self) -> None:
        """The JVM is gone, and all its workers."""
        if self.query is not None:
            self.query.die(DriverDied("the JVM is gone"))
        self.end()


class DrivenQuery(Query):
    """Ends and stands still with the driver."""

    def _check(self) -> None:
        self._engine.driver.places["spark"].check()  # type: ignore[attr-defined]
        super()._check()
