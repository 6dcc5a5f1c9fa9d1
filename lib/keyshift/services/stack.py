"""The embedded stack: Kafka, ZooKeeper and MinIO as processes of this user on this machine, in one state folder.

``Stack().up(say)`` starts what does not run and returns the endpoints; ``down`` ends everything; ``status`` tells.
Everything a stack knows is in its folder, so any process may ask, and any may end what another started:

    data/ conf/ logs/ pids/    one entry per service
    ports.json                 the ports of the last start, taken again at the next if they are free
    credentials.json           of MinIO
    users/                     who uses the services; see ``services.users``
    lock                       held by ``up`` and ``down``
"""

import json
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from keyshift import folders
from keyshift.endpoints import Endpoints
from keyshift.folders import MIB, Cancelled, Say, silent
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.registry import unknown
from keyshift.services import processes
from keyshift.services.jars import require_java
from keyshift.services.kafka import Kafka
from keyshift.services.minio import BUCKET, MinIO
from keyshift.services.service import HOST, Service
from keyshift.services.users import Users
from keyshift.services.zookeeper import ZooKeeper
from keyshift.waiting import wait_until

PORT_ATTEMPTS = 5
DEFAULT_PORTS = Kafka.default_ports | ZooKeeper.default_ports | MinIO.default_ports
ROOM_BYTES = 1024 * MIB
LOCK_DEADLINE_S = 3600.0  # the other ``up`` may be building MinIO on a slow machine
REMEDY = "set KEYSHIFT_HOME to another folder"
PATIENCE_S = 10.0  # before a live service counts as unhealthy: a busy machine answers late


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What ``keyshift status`` shows of one service. ``since_s`` is its uptime."""

    name: str
    state: str  # "running", "stopped" or "unhealthy" (its process lives, but does not answer as it should)
    address: str
    pid: int | None
    since_s: float | None
    rss_mib: float | None
    log: Path


class Stack:
    """The embedded stack of one state folder.

    ``home``: the folder (default: $KEYSHIFT_HOME, else the user's state folder). ``ports``: wanted ports by name (see
    DEFAULT_PORTS), used when a service is started; where one is taken by somebody else a free one is chosen.
    Raises BadInput for an unknown port name or an impossible number.
    """

    def __init__(self, home: Path | None = None, ports: Mapping[str, int] | None = None) -> None:
        for name, port in (ports or {}).items():
            if name not in DEFAULT_PORTS:
                raise unknown("port", name, list(DEFAULT_PORTS))
            if not 1 <= port <= 65535:
                raise BadInput(f"port {name}={port} is impossible; choose one from 1 to 65535")
        self._home = folders.state_folder(home)
        self._wanted = dict(ports or {})
        self._minio = MinIO(self._home)
        self._services: list[Service] = [Kafka(self._home), ZooKeeper(self._home), self._minio]
        self._choosing = threading.Lock()
        self._users = Users(self._home)

    @property
    def home(self) -> Path:
        """The state folder."""
        return self._home

    def up(self, say: Say = silent) -> Endpoints:
        """Start what does not run, leave alone what runs well, restart what is unhealthy. May be called at any time.
        The services stay until ``down``.

        ``say`` gets progress lines, one at a time, also from other threads. Raises ServiceUnavailable, with the last
        lines of the log if a service did not start; then, as on Ctrl-C, everything this call started is ended.
        """
        with self._lock_for_start(say):
            endpoints = self._up(say)
            self._users.keep()
            return endpoints

    @contextmanager
    def used(self, say: Say = silent) -> Iterator[Endpoints]:
        """As ``up``, for as long as the block lasts: the last who uses services that are not to stay stops them."""
        with self._lock_for_start(say):
            if not self.running():
                self._users.forget()
            me = self._users.add()
            try:
                endpoints = self._up(say)
            except BaseException:
                self._users.remove(me)
                raise
        try:
            yield endpoints
        finally:
            with self._lock(say):
                self._users.remove(me)
                if not self._users.wanted():
                    self._users.forget()
                    self._stop(self._services, say)

    @contextmanager
    def _lock_for_start(self, say: Say) -> Iterator[None]:
        folders.require_room(self._home, 0, REMEDY)
        with self._lock(say):
            yield

    def _up(self, say: Say) -> Endpoints:
        missing = [service for service in self._services if self._state(service, PATIENCE_S)[0] != "running"]
        if missing:
            folders.require_room(self._home, ROOM_BYTES, REMEDY)
            require_java()  # now, and not after minutes of building
            self._start(missing, say)
        return self._endpoints()

    def down(self, wipe: bool = False, say: Say = silent) -> None:
        """End all services and wait until their ports are free; ``wipe`` also deletes data, logs and credentials."""
        if not self._home.exists():
            return
        with self._lock(say):
            self._users.forget()
            self._stop(self._services, say)
            if wipe:
                for name in ("data", "conf", "logs", "pids", "jobs"):
                    shutil.rmtree(self._home / name, ignore_errors=True)
                for name in ("ports.json", "credentials.json"):
                    (self._home / name).unlink(missing_ok=True)
                say(f"deleted the data in {self._home}")

    def status(self) -> list[ServiceStatus]:
        """The state of each service; takes some seconds where one does not answer."""
        return [self._status(service) for service in self._services]

    def endpoints(self) -> Endpoints:
        """Where the services are. Raises ServiceUnavailable naming the first one that does not run, and the remedy."""
        for service in self._services:
            state, problem = self._state(service, PATIENCE_S)
            if state != "running":
                reason = f" ({problem}; log: {service.log})" if problem else ""
                raise ServiceUnavailable(
                    f"{service.title} at {self._address(service)} is {state}{reason}; start it with `keyshift up`"
                )
        return self._endpoints()

    def used_by_others(self) -> list[int]:
        """The processes of other commands that use the services now."""
        return self._users.others()

    def restart(self, name: str, away_s: float = 0.0, say: Say = silent) -> None:
        """End a service, and start it again where it was, ``away_s`` seconds later at the earliest.

        Raises BadInput if there is no such service, ServiceUnavailable if it does not come back.
        """
        service = self._service(name)
        with self._lock(say):
            self._stop([service], say)
            time.sleep(away_s)
            self._start([service], say)

    def pid(self, name: str) -> int:
        """The process of a service. Raises BadInput if there is no such service, ServiceUnavailable if it is down."""
        service = self._service(name)
        if (process := processes.find(service.pid_file)) is None:
            raise ServiceUnavailable(f"{service.title} does not run; start it with `keyshift up`")
        return process.pid

    def _service(self, name: str) -> Service:
        services = {service.name: service for service in self._services}
        if name not in services:
            raise unknown("service", name, list(services))
        return services[name]

    def running(self) -> bool:
        """Whether any process of this stack is alive."""
        return any(processes.find(service.pid_file) for service in self._services)

    @contextmanager
    def _lock(self, say: Say) -> Iterator[None]:
        with folders.locked(self._home / "lock", "keyshift up or down", say, LOCK_DEADLINE_S):
            yield

    def _endpoints(self) -> Endpoints:
        kafka, zookeeper, minio = (self._address(service) for service in self._services)
        access_key, secret_key = self._minio.credentials()
        return Endpoints(kafka, zookeeper, minio, access_key, secret_key, bucket=BUCKET)

    # Starting

    def _start(self, services: list[Service], say: Say) -> None:
        """Start services side by side; when one fails, or on Ctrl-C, end those that were started."""
        cancel, speaking = threading.Event(), threading.Lock()

        def say_alone(line: str) -> None:
            with speaking:
                say(line)

        with _postponed_signals(cancel), ThreadPoolExecutor(len(services)) as pool:
            starts = [pool.submit(self._start_one, service, say_alone, cancel) for service in services]
            done, pending = wait(starts, return_when=FIRST_EXCEPTION)
            failure = next((error for start in done if (error := start.exception())), None)
            if failure or cancel.is_set():
                cancel.set()
                wait(pending)
                self._stop(services, say)
                raise failure or Cancelled

    def _start_one(self, service: Service, say: Say, cancel: threading.Event) -> None:
        program = service.fetch(say, cancel)
        if cancel.is_set():
            raise Cancelled
        if unwell := processes.find(service.pid_file):
            say(f"{service.title}: process {unwell.pid} does not answer as it should, restarting it")
            processes.stop([unwell], deadline_s=5.0)  # it may not even hear the signal
        started = time.monotonic()
        for _ in range(PORT_ATTEMPTS):
            ports = self._choose_ports(service, say)
            command, env = service.configure(program, ports, cancel)
            processes.launch(command, env, self._home, service.log, service.pid_file)
            problem = self._problem(service, service.deadline_s, cancel)
            if cancel.is_set():
                raise Cancelled
            lost = processes.find(service.pid_file) is None and not all(map(_is_free, ports.values()))
            if not lost:  # else somebody took one between our choice and its start: another stack that starts as well
                break
        if problem:
            raise ServiceUnavailable(
                f"{service.title} did not start: {problem}. Last lines of {service.log}:\n{processes.tail(service.log)}"
            )
        say(f"{service.title}: ready at {self._address(service)} after {time.monotonic() - started:.1f} s")

    def _choose_ports(self, service: Service, say: Say) -> dict[str, int]:
        """A free port for each it needs: the one asked for, else that of the last start, else the default, else any."""
        with self._choosing:  # two services must not choose the same
            saved = self._saved_ports()
            taken = {port for name, port in saved.items() if name not in service.default_ports}
            chosen: dict[str, int] = {}
            for name, default in service.default_ports.items():
                first = self._wanted.get(name, saved.get(name, default))
                free = (p for p in _candidates(first, default) if p not in taken and _is_free(p))
                port = next(free, None)
                if port is None:
                    raise ServiceUnavailable(f"no free port for {name} from {default} on; name one that is free")
                if port != first:
                    say(f"{service.title}: port {first} is taken, using {port}")
                chosen[name] = port
                taken.add(port)
            folders.write_whole(self._home / "ports.json", json.dumps(saved | chosen, indent=1))
            return chosen

    # Asking

    def _saved_ports(self) -> dict[str, int]:
        try:
            saved = json.loads((self._home / "ports.json").read_text())
            return {name: int(saved[name]) for name in DEFAULT_PORTS if name in saved}
        except (OSError, ValueError, TypeError):
            return {}

    def _port(self, service: Service) -> int:
        name, default = next(iter(service.default_ports.items()))
        return self._saved_ports().get(name, self._wanted.get(name, default))

    def _address(self, service: Service) -> str:
        return f"{HOST}:{self._port(service)}"

    def _problem(self, service: Service, deadline_s: float, cancel: threading.Event | None = None) -> str | None:
        """Wait until the service is well: None. Else what is wrong: it died, or was not well within the deadline."""
        port = self._port(service)
        problem: str | None = None

        def decided() -> bool:
            nonlocal problem
            process = processes.find(service.pid_file)
            problem = _problem_now(service, process, port)
            return problem is None or process is None or (cancel is not None and cancel.is_set())

        return problem if wait_until(decided, deadline_s, 0.2) else f"{problem}, for {deadline_s:.0f} s"

    def _state(self, service: Service, patience_s: float) -> tuple[str, str | None]:
        if processes.find(service.pid_file) is None:
            return "stopped", None
        problem = self._problem(service, patience_s)
        return ("unhealthy", problem) if problem else ("running", None)

    def _status(self, service: Service) -> ServiceStatus:
        state, _ = self._state(service, patience_s=3.0)
        pid = since_s = rss_mib = None
        if process := processes.find(service.pid_file):
            try:
                since_s, rss_mib = time.time() - process.create_time(), process.memory_info().rss / MIB
                pid = process.pid
            except psutil.NoSuchProcess:
                state, since_s = "stopped", None
        return ServiceStatus(service.name, state, self._address(service), pid, since_s, rss_mib, service.log)

    # Stopping

    def _stop(self, services: list[Service], say: Say) -> None:
        alive = {service: process for service in services if (process := processes.find(service.pid_file))}
        if alive:
            say(f"stopping {', '.join(service.title for service in alive)}")
        processes.stop(list(alive.values()))
        saved = self._saved_ports()
        ports = [saved[name] for service in alive for name in service.default_ports if name in saved]
        free = wait_until(lambda: all(map(_is_free, ports)), 5.0, 0.05)
        for service in services:
            service.pid_file.unlink(missing_ok=True)
        if not free:
            say(f"ports still taken, by somebody else: {', '.join(str(port) for port in ports if not _is_free(port))}")


def _problem_now(service: Service, process: psutil.Process | None, port: int) -> str | None:
    if process is None:
        return "its process ended"
    if not processes.listens(process, port):  # a stranger on that port could answer in its place
        return f"process {process.pid} does not listen on port {port}"
    try:
        service.check(port)
    except Exception as error:  # whatever the client raises means the same: not well, and this is why
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@contextmanager
def _postponed_signals(cancel: threading.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM only set ``cancel``; they take effect at the end of the block.

    Otherwise the second of two, while we end what was started, would leave the rest running. (`timeout -s INT` sends
    two; so does an impatient user.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread, and only it may handle them
        return
    received: list[int] = []

    def postpone(number: int, frame: object) -> None:
        received.append(number)
        cancel.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    postponed = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in postponed:
        signal.signal(number, postpone)
    try:
        yield
    except Cancelled:
        pass
    finally:
        for number in postponed:
            signal.signal(number, before[number])
        if received:
            signal.raise_signal(received[0])
    if received:
        raise KeyboardInterrupt  # the caller's handler did nothing: the services are gone all the same


def _candidates(first: int, default: int) -> Iterator[int]:
    yield first
    yield from range(default, min(default + 1000, 65536), 10)


def _is_free(port: int) -> bool:
    """Whether nobody listens on the port and we may."""
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((HOST, port)) == 0:  # a listener on all addresses does not everywhere forbid to bind on one
            return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections that linger do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
