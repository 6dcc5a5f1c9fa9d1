"""What outlives a driver (ZooKeeper, S3, Kafka and a disk, all in memory or a temporary folder), and drivers in it.

A driver is a thread that runs ``keyshift.control.process``, with the generator, the collector and Spark's tasks of its
job. What is not there is stood in for where it meets the library: the clients of the services, the start of a process
and the start of a query. Everything between these is the real code.
"""

import contextlib
import itertools
import queue
import random
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from driver_services import DrivenSession, DriverEngine
from engine import HERE, Bucket
from memory_kafka import Broker
from nodes import Ensemble
from places import DriverDied, Fates, Fault, Place, at, here
from shape import Shape

from keyshift.control import files, process
from keyshift.control.files import Jobs
from keyshift.lab.live.job import LiveJob
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.model.messages import decode, encode
from keyshift.traffic.messages import Stop, TrafficCommand

NAME = "job"
SESSION_S = 0.3  # at the most, until a dead driver's sessions expire
PARTS = ("driver", "spark", "generator", "collector")  # the processes of a driver; the last two end when it is gone


class World:
    """All services and the disk of one run, and the drivers that use them."""

    def __init__(self, seed: int, shape: Shape, folder: Path) -> None:
        self.seed, self.shape, self.folder = seed, shape, folder
        self.rng = random.Random(f"world {seed}")
        self.ensemble, self.bucket, self.kafka = Ensemble(seed, shape.zookeeper_s), Bucket(), Broker()
        self.lost: set[str] = set()  # objects that S3 has lost
        self.drivers: dict[int, Driver] = {}
        self.user = Place("user", Fates([]), lambda fault: None)  # of the commands
        self.coming: list[list[Fault]] = []  # the faults of the drivers that will be launched next
        self.watcher: Any = None  # the ``Judge``, who hears what must be seen when it happens, from who does it
        self._pids = itertools.count(1)

    def launch(self, log: Path) -> "Driver":
        """The process of a job; stands in for ``background._launched``."""
        log.touch()
        driver = Driver(self, next(self._pids), log, self.coming.pop(0) if self.coming else [])
        self.watcher.launched(driver)
        self.drivers[driver.pid] = driver
        driver.begin()
        return driver

    def journal(self) -> dict[str, Any] | None:
        """The one that is on disk of the job that has the name; None if there is none."""
        return files._raw(Jobs(self.folder).journal(NAME)._path)

    def claimed(self, place: Place) -> None:
        """By a process of a driver."""
        self.watcher.claimed(place_driver(place))

    def deletes(self, what: str) -> None:
        """A driver is about to take something away."""
        if (place := here()) is not None and place is not self.user:
            self.watcher.deletes(place_driver(place), what, self.journal())

    def lose_objects(self) -> None:
        """S3 begins anew, with nothing in it."""
        self.lost |= {*self.bucket.objects.copy()}
        self.bucket.objects.clear()

    def inputs(self) -> dict[str, list[int]]:
        """How many records there are by now, by topic of events and partition."""
        topics = self.kafka.topics.copy().items()
        return {name: [*map(len, topic.partitions)] for name, topic in topics if name.endswith("-events")}

    def lose_input(self, ends: dict[str, list[int]]) -> None:
        """Kafka has only those of its events."""
        for name in ends:
            self.kafka.topics[name].cut(ends[name])
        self.watcher.input_lost(ends)

    def living_process(self, pid: int, created: float, born: str) -> object | None:
        """The process of a driver, if it lives and can be seen; stands in for ``processes.living``."""
        driver = self.drivers.get(pid)
        return driver if driver and driver.status is None and not driver.elsewhere else None

    @property
    def living(self) -> list["Driver"]:
        """Drivers whose process has not ended."""
        return [driver for driver in list(self.drivers.values()) if driver.status is None]

    @property
    def running(self) -> "Driver | None":
        """The newest driver that lives, and is not paused or elsewhere."""
        return ([None, *(each for each in self.living if not each.place.paused and not each.elsewhere)])[-1]


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
    stdin: "Pipe" = field(default_factory=lambda: Pipe())
    helpers: list["Helper"] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.fates = Fates(self.faults)
        self.places = {name: Place(f"{name} {self.pid}", self.fates, self._befall, self) for name in PARTS}
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

    @property
    def there(self) -> bool:
        """Whether it goes on."""
        return self.status is None and not self.place.paused

    @property
    def runs(self) -> bool:
        """Whether its job does, too."""
        return self.there and self.job is not None and self.job.state == "running"

    @property
    def sends(self) -> bool:
        """Whether its generator may still write into Kafka."""
        return any(each.name == "generator" and each._thread.is_alive() for each in self.helpers)

    @property
    def stands(self) -> bool:
        """Whether it does nothing, and ZooKeeper has what it has registered, as if it lived."""
        with (ensemble := self.world.ensemble).lock:
            owners = [node.owner for node in ensemble.nodes.values()]
        has = any(isinstance(owner, DrivenSession) and owner.place is self.place for owner in owners)
        return self.place.paused and has

    def _run(self) -> None:
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
            case "lose":
                self.world.lose_objects()

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

    def kill_query(self) -> None:
        """A worker of Spark is killed."""
        if self.engine.query is not None and self.there:
            self.engine.query.die(RuntimeError("injected: a worker was killed"))

    def pause(self, only: str | None = None) -> None:
        """With Spark, and with generator and collector, or ``only`` one of these processes."""
        for name, place in self.places.items():
            if only in (None, name):
                place.pause()

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

    bodies: ClassVar[dict[str, Any]] = {}  # module -> type of its configuration, body

    def __init__(self, module: str, config: Any, reports: Any, heard: Any = None, more_env: Any = None) -> None:
        self.name = module.rsplit(".", 1)[-1]
        self.commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._error = ""
        place = here()
        assert place is not None
        driver = self._driver = place_driver(place)
        self.pid = 1000 * driver.pid + len(driver.helpers)
        driver.helpers.append(self)
        self._place, self._listener = driver.places[self.name], place
        kind, body = self.bodies[module]
        with at(self._place):
            self._thread = threading.Thread(
                target=self._run,
                args=(body, decode(kind, encode(config)), reports, heard),
                name=f"harness {self.name}",
                daemon=True,
            )
            self._thread.start()

    def _run(self, body: Any, config: Any, reports: Any, heard: Any) -> None:
        def said(report: Any) -> None:
            with contextlib.suppress(DriverDied):
                self._listener.check()
                heard(decode(reports, encode(report)))

        HERE.say = said
        try:
            body(config, self)
        except (KeyshiftError, OSError, Exception) as error:
            self._error = f"{type(error).__name__}: {error}"

    def next(self, timeout_s: float) -> Any:
        """As ``entry.CommandLines``."""
        self._place.check()
        try:
            line = self.commands.get(timeout=timeout_s) if timeout_s > 0 else self.commands.get_nowait()
        except queue.Empty:
            return None
        return decode(TrafficCommand, line)

    def tell(self, command: Any) -> None:
        self._listener.check()
        self.commands.put(encode(command))
        if not self._thread.is_alive():
            self.check()

    def check(self) -> None:
        self._listener.check()
        if self._error:
            raise ServiceUnavailable(f"the {self.name} process died: {self._error}")

    def stop(self) -> None:
        self.tell(Stop())
        self._thread.join(20.0)
        if self._thread.is_alive():
            raise ServiceUnavailable(f"the {self.name} process did not stop within 20 s")
        self.check()

    def kill(self) -> None:
        self._listener.check()
        self._place.kill()


def place_driver(place: Place) -> Driver:
    """Whose process it is."""
    assert isinstance(place.driver, Driver)
    return place.driver
