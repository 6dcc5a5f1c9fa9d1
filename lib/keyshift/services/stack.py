"""The embedded stack: Kafka, ZooKeeper and MinIO as processes of this user on this machine, in one state folder.

``Stack().up(say)`` starts what does not run and returns the endpoints; ``down`` ends everything; ``status`` tells.
Everything a stack knows is in its folder, so any process may ask, and any may end what another started:

    data/ conf/ logs/ pids/    one entry per service
    ports.json                 the ports of the last start, taken again at the next if they are free
    nodes                      how many nodes Kafka and ZooKeeper had at the last start, if several
    credentials.json           of MinIO
    users/                     who uses the services; see ``services.users``
    lock                       held by ``up`` and ``down``, and while a service is away or stands for a while
"""

import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from keyshift import folders
from keyshift.endpoints import Endpoints
from keyshift.folders import MIB, REMEDY, Cancelled, write_whole
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.program import interrupts_wait
from keyshift.progress import Say, silent
from keyshift.services import limits, processes
from keyshift.services.embedded import EmbeddedService, Ports, ServiceStatus, is_free
from keyshift.services.jars import require_java
from keyshift.services.kafka import Kafka
from keyshift.services.minio import BUCKET, MinIO
from keyshift.services.service import HOST, ServiceNode
from keyshift.services.users import Users
from keyshift.services.zookeeper import SESSION_MS, ZooKeeper
from keyshift.waiting import wait_until

DEFAULT_PORTS = Kafka.default_ports | ZooKeeper.default_ports | MinIO.default_ports
ROOM_BYTES = 1024 * MIB
SERVICES = ("kafka", "zookeeper", "minio")
STORE = ("minio",)  # what who reads stored runs needs
NODE_BYTES = {"kafka": 300 * MIB, "zookeeper": 120 * MIB}  # one of three takes 190 and 100 when it has started
LOCK_DEADLINE_S = 3600.0  # the other ``up`` may be building MinIO on a slow machine
OURS = (
    *(f"data/{name}*" for name in SERVICES),  # beside them may be sets of parameters
    *("conf", "logs", "pids", "jobs", "ports.json", "credentials.json", "nodes", folders.WORK),
    # What commands leave there. People may have put more beside it, so these are names that are ours for sure.
    *("spark.log", "spark-*.log", "bare_copy.json", "load-cost-*.json", "report-*.html"),
    *(f"notebooks/*-{'[0-9]' * 8}T{'[0-9]' * 6}", f"batches/*/{'[0-9a-f]' * 16}"),  # executed ones
    *("batches/*.lock", "metrics/run-*.prom*"),
)
PATIENCE_S = 10.0  # before a live service counts as unhealthy: a busy machine answers late


class Stack:
    """The embedded stack of one state folder.

    ``home``: the folder (default: $KEYSHIFT_HOME, else the user's state folder). ``ports``: wanted ports by name (see
    DEFAULT_PORTS), used when a service is started; where one is taken by somebody else a free one is chosen.
    ``session_ms``: the shortest session that ZooKeeper has to hold, if it is started. ``nodes``: how many Kafka and
    ZooKeeper have each, 1 or 3; by default as many as at the last start, else one.
    """

    def __init__(
        self,
        home: Path | None = None,
        ports: Mapping[str, int] | None = None,
        session_ms: int = SESSION_MS,
        nodes: int | None = None,
    ) -> None:
        self.home = folders.state_folder(home)
        self.nodes = _nodes_before(self.home) if nodes is None else nodes
        self._minio = MinIO(self.home)
        of_all = Ports(self.home, ports or {})
        places = [ServiceNode(number, (HOST,) * self.nodes) for number in range(1, self.nodes + 1)]
        brokers = [Kafka(self.home, node=place) for place in places]
        servers = [ZooKeeper(self.home, session_ms=session_ms, node=place) for place in places]
        self._services = [EmbeddedService(service, of_all) for service in (*brokers, *servers, self._minio)]
        self._users = Users(self.home)

    def up(self, say: Say = silent) -> Endpoints:
        """Start what does not run, leave alone what runs well, restart what is unhealthy. May be called at any time.
        The services stay until ``down``.

        ``say`` gets progress lines, one at a time, also from other threads. Raises ServiceUnavailable if another host
        uses the folder, or with the last lines of the log if a service did not start; then, as on Ctrl-C, everything
        this call started is ended.
        """
        folders.require_disk_space(self.home, 0, REMEDY)
        with self.locked(say):
            _require_here(self.home)
            endpoints = self._up(say)
            self._users.keep()
            return endpoints

    @contextmanager
    def used(
        self, say: Say = silent, needs: Collection[str] = SERVICES, room_bytes: int = ROOM_BYTES
    ) -> Iterator[Endpoints]:
        """Do as ``up``, for as long as the block lasts: the last who uses services that are not to stay stops them.

        ``needs``: those of SERVICES that are started if they do not run. ``room_bytes``: what the disk has to have free
        for that, but for MinIO alone.
        """
        folders.require_disk_space(self.home, 0, REMEDY)
        with self.locked(say):
            _require_here(self.home)
            if not self.running():
                self._users.release()  # those that were to stay have died; who uses them may live, and recover
            me = self._users.add()
            try:
                endpoints = self._up(say, needs, room_bytes)
            except BaseException:
                self._users.remove(me)
                raise
        try:
            yield endpoints
        finally:
            with self.locked(say):
                self._users.remove(me)
                if not self._users.wanted():
                    self._users.forget()
                    self._stop(self._all(), say)

    def _up(self, say: Say, needs: Collection[str] = SERVICES, room_bytes: int = ROOM_BYTES) -> Endpoints:
        needed = [service for service in self._services if service.kind in needs]
        missing = [service for service in needed if service.state(PATIENCE_S)[0] != "running"]
        if missing:
            # MinIO alone is for who reads stored runs, and for who deletes some since the disk is full.
            if any(service.kind in NODE_BYTES for service in missing):
                folders.require_disk_space(self.home, room_bytes, REMEDY)
                require_java()  # now, and not after minutes of building
                self._require_nodes(missing)
            self._start(missing, say)
        return self._endpoints()

    def _require_nodes(self, missing: list[EmbeddedService]) -> None:
        """Make sure that so many nodes can run, and write the number down. Raises BadInput if other services of the
        folder run, ServiceUnavailable if memory is short.
        """
        before = _nodes_before(self.home)
        if before != self.nodes:
            if any(service.kind in NODE_BYTES for service in Stack(self.home, nodes=before).alive()):
                raise BadInput(
                    f"nodes = {self.nodes}: the services in {self.home} run with nodes = {before}; stop them with "
                    f"`keyshift down`, or {REMEDY}"
                )
            write_whole(self.home / "nodes", f"{self.nodes}\n")
        needed = sum(NODE_BYTES.get(service.kind, 0) for service in missing) if self.nodes > 1 else 0
        if needed > (free := limits.memory().free):
            raise ServiceUnavailable(
                f"nodes = {self.nodes}: Kafka and ZooKeeper need {needed // MIB} MiB of memory, and {free // MIB} MiB "
                "are free; take nodes: 1 in the profile, or end other programs"
            )

    def down(self, wipe: bool = False, say: Say = silent, require: Callable[[], None] = lambda: None) -> None:
        """End all services and wait until their ports are free; ``wipe`` also deletes data, logs,
        credentials, and what commands have left in the folder.

        ``require``: raises if they have to stay; called when nobody can begin to use them any more. Raises
        ServiceUnavailable if another host uses the folder.
        """
        if not self.home.exists():
            return
        with self.locked(say):
            _require_here(self.home)
            require()
            self._users.forget()
            self._stop(self._all(), say)
            if wipe:
                _wipe(self.home)
                say(f"deleted the data in {self.home}")

    def status(self) -> list[ServiceStatus]:
        """The state of each service; takes some seconds where one does not answer."""
        return [service.status() for service in self._services]

    def endpoints(self) -> Endpoints:
        """Return where the services are. Raises ServiceUnavailable naming the first one that does not run, and the
        remedy; one of three nodes may be away.
        """
        away: dict[str, int] = {}
        for service in self._services:
            state, problem = service.state(PATIENCE_S)
            if state != "running":
                away[service.kind] = away.get(service.kind, 0) + 1
                if len(service.node.hosts) - away[service.kind] >= service.node.majority:
                    continue
                reason = f" ({problem}; log: {service.log})" if problem else ""
                raise ServiceUnavailable(
                    f"{service.title} at {service.address} is {state}{reason}; start it with `keyshift up`"
                )
        return self._endpoints()

    def used_by_others(self, parents: bool = False) -> list[int]:
        """The processes of other commands that use the services now; see ``Users.others``."""
        return self._users.others(parents)

    def restart(
        self, name: str, away_s: float = 0.0, say: Say = silent, at_once: threading.Event | None = None
    ) -> None:
        """End a service, and start it again where it was, ``away_s`` seconds later, or as soon as ``at_once`` is set.

        Of several nodes it is the one that ``node`` names. Raises ServiceUnavailable if it does not come back.
        """
        service = self.node(name)
        with self.locked(say):
            self._stop([service], say)
            (at_once or threading.Event()).wait(away_s)
            self._start([service], say)

    def pid(self, name: str) -> int:
        """The process of a service. Raises ServiceUnavailable if it is down."""
        service = self.node(name)
        if (process := service.process) is None:
            raise ServiceUnavailable(f"{service.title} does not run; start it with `keyshift up`")
        return process.pid

    def pids(self) -> dict[int, str]:
        """The processes of the services that run, with their names."""
        return {process.pid: service.name for service in self._services if (process := service.process)}

    def node(self, name: str) -> EmbeddedService:
        """The service ``name``; of several nodes the first that lives, or that of the name, as ``kafka-2``."""
        found = [service for service in self._services if name in (service.kind, service.name)]
        return next((service for service in found if service.process), found[0])

    def alive(self) -> list[EmbeddedService]:
        """The services whose process lives, whether it is well or not."""
        return [service for service in self._services if service.process]

    def running(self) -> bool:
        """Whether any process of this state folder's services is alive."""
        return any(service.process for service in self._all())

    def locked(self, say: Say = silent, shared: bool = False) -> AbstractContextManager[None]:
        """Let nobody else start or end services inside; see ``folders.locked``."""
        return folders.locked(self.home / "lock", "keyshift up or down", say, LOCK_DEADLINE_S, shared=shared)

    def _all(self) -> list[EmbeddedService]:
        """Its services, and those that were started last, of which there may be another number of nodes."""
        if (before := _nodes_before(self.home)) == self.nodes:
            return self._services
        others = Stack(self.home, nodes=before)._services
        return [*self._services, *(service for service in others if service.kind in NODE_BYTES)]

    def _endpoints(self) -> Endpoints:
        kafka, zookeeper, minio = (
            ",".join(service.address for service in self._services if service.kind == kind) for kind in SERVICES
        )
        access_key, secret_key = self._minio.credentials()
        return Endpoints(kafka, zookeeper, minio, access_key, secret_key, bucket=BUCKET, replication=self.nodes)

    def _start(self, services: list[EmbeddedService], say: Say) -> None:
        """Start services side by side; when one fails, or on Ctrl-C, end those that were started."""
        cancel, speaking = threading.Event(), threading.Lock()

        def say_alone(line: str) -> None:
            with speaking:
                say(line)

        for service in services:
            service.reserve(say)
        try:
            with interrupts_wait(cancel.set), ThreadPoolExecutor(len(services)) as pool:
                starts = [pool.submit(service.start, say_alone, cancel) for service in services]
                done, pending = wait(starts, return_when=FIRST_EXCEPTION)
                failure = next((error for start in done if (error := start.exception())), None)
                if failure or cancel.is_set():
                    cancel.set()
                    wait(pending)
                    self._stop(services, say)
                    raise failure or Cancelled
        except Cancelled:  # whoever handles the signal has done nothing: the services are gone all the same
            raise KeyboardInterrupt from None

    def _stop(self, services: list[EmbeddedService], say: Say) -> None:
        alive = {service: process for service in services if (process := service.process)}
        if alive:
            say(f"stopping {', '.join(service.title for service in alive)}")
        processes.stop(list(alive.values()))
        ports = [port for service in alive for port in service.used_ports()]
        free = wait_until(lambda: all(map(is_free, ports)), 5.0, 0.05)
        for service in services:
            if service.process is None:  # nobody would find one that does not end
                processes.forget(service.pid_file)
        if not free:
            say(f"ports still taken, by somebody else: {', '.join(str(port) for port in ports if not is_free(port))}")


def _require_here(home: Path) -> None:
    """Raise ServiceUnavailable if a process of another host is, or was when it was killed, in the folder ``home``."""
    entries = [*(home / "pids").glob("*.json"), *Users(home).entries()]
    if there := next(filter(None, map(processes.elsewhere, entries)), ""):
        raise ServiceUnavailable(
            f"{there} has services in {home}, and those of two hosts would spoil each other's data: end it there, or "
            f"{REMEDY}; if that host is gone, delete the folders pids and users in {home}"
        )


def _nodes_before(home: Path) -> int:
    try:
        return int((home / "nodes").read_text())
    except (OSError, ValueError):
        return 1


def _wipe(home: Path) -> None:
    for path in [path for pattern in OURS for path in home.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for folder in (*home.glob("batches/*"), *(home / name for name in ("batches", "metrics", "notebooks", "data"))):
        with suppress(OSError):  # it is not there, or has something else
            folder.rmdir()
