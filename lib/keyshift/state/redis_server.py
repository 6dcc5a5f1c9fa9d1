"""The server that ``remote`` and ``hybrid`` keep state in: the one at an address, or one for the run."""

import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from keyshift.model.errors import BadInput, ServiceUnavailable, service_errors
from keyshift.program import end, ending_with_us
from keyshift.redis_program import OLDEST, PASSWORD, redis_configuration, redis_program, too_old, version_of
from keyshift.state.settings import Settings
from keyshift.waiting import wait_until

_HOST = "127.0.0.1"
_ANSWER_S, _CHECK_S, _START_S = 20.0, 3.0, 20.0
_MODE = "standalone"  # with one hash slot for all names
_LOOK_S, _PAUSE_S = 0.1, 1.0  # how often our own is looked at, and how long another one waits to take its place


class RemoteSettings(Settings):
    """Where the server is."""

    redis: str = Field(
        default="",
        pattern=r"^$|^[^\s:/]+:\d{1,5}$",
        description=f"address of a Redis server (host:port, its password in {PASSWORD}); empty: the one that the "
        "profile names, else one for the run alone",
    )
    round_trip_ms: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="milliseconds that each exchange of values with the server takes longer, as if it were on another "
        "machine; that a state is renamed, as it is handed over, does not",
    )

    def in_place(self, redis: str) -> Self:  # noqa: D102
        return self if self.redis else self.model_copy(update={"redis": redis})


def connected(settings: RemoteSettings, answer_s: float = _ANSWER_S, begin: Callable[[Any], None] | None = None) -> Any:
    """A client, which calls ``begin`` with each new connection, if there is one, to make it ready.

    Raises ServiceUnavailable if there is no address.
    """
    import redis

    if not settings.redis:
        raise ServiceUnavailable("no server for the state: it is started with a run")
    host, port = settings.redis.rsplit(":", 1)
    return redis.Redis(
        host,
        int(port),
        password=settings.secret or None,
        socket_timeout=answer_s,
        redis_connect_func=begin,  # type: ignore[arg-type]  # which gets the connection, whatever its type says
    )


def unsafe(about: dict[str, Any]) -> str:
    """Say why state cannot be kept on the server that tells this ``about`` itself (INFO); empty if it can."""
    if about.get("role") != "master":
        return "it is a replica, which has what another server has"
    if (policy := about.get("maxmemory_policy")) != "noeviction":
        return f"its maxmemory-policy is {policy}, with which it may drop state: set noeviction"
    if (mode := about.get("redis_mode", _MODE)) != _MODE:
        return f"its redis_mode is {mode}, in which no hash can be renamed: name a {_MODE} server"
    if too_old(version := str(about.get("redis_version", ""))):
        return f"its redis_version is {version}: at least {OLDEST} is needed"
    return "" if about.get("run_id") else "it does not tell its run_id, so nobody would notice that it has lost state"


def require(settings: RemoteSettings, here: bool) -> None:
    """Refuse a server that a run cannot use: BadInput or ServiceUnavailable, one line.

    ``here``: slots are on this machine, so that they could reach a server that is started on it.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    if not settings.redis:
        if not here:
            raise BadInput(
                "redis = '': executors in pods cannot reach a server of this machine; set redis=host:port, or "
                "services.redis in the profile"
            )
        if too_old(version := version_of(program := redis_program())):
            raise ServiceUnavailable(
                f"{program} has version {version}: at least {OLDEST} is needed; put a newer redis-server on the PATH, "
                "or set redis=host:port"
            )
        return
    try:
        with closing(connected(_with_password(settings), _CHECK_S)) as client:
            client.set_retry(Retry(NoBackoff(), 0))  # nothing has begun that would have to outlast it
            if trouble := unsafe(client.info()):
                raise BadInput(f"redis = {settings.redis}: {trouble}")
    except (redis.AuthenticationError, redis.ResponseError) as error:
        raise BadInput(f"redis = {settings.redis}: {error}; set {PASSWORD} in the environment") from error
    except (redis.RedisError, OSError) as error:
        raise ServiceUnavailable(f"redis = {settings.redis} cannot be reached: {error}") from error


@contextmanager
def served(settings: RemoteSettings, job: str, folder: Path | None) -> Iterator[RemoteSettings]:
    """The settings for the slots of ``job``, while it runs. A server of its own ends afterwards; see ``clean``."""
    if not settings.redis:
        require(settings, folder is not None)
        with _embedded() as (address, password):
            yield settings.model_copy(update={"redis": address}).with_secret(password)
        return
    yield _with_password(settings)


def clean(settings: RemoteSettings, job: str) -> None:
    """Remove what the slots of ``job`` have left on a server that others run. Raises ServiceUnavailable."""
    import redis

    if not settings.redis:
        return
    errors = service_errors((redis.RedisError, OSError), lambda error: f"redis = {settings.redis}: {error}")
    with closing(connected(_with_password(settings))) as client, errors:
        for name in client.scan_iter(f"keyshift:{job}/*", count=1000):
            client.unlink(name)


def _with_password(settings: RemoteSettings) -> RemoteSettings:
    return settings.with_secret(os.environ.get(PASSWORD, ""))


@contextmanager
def _embedded() -> Iterator[tuple[str, str]]:
    """A server on this machine: its address and password. It keeps nothing on disk, and ends with the block.

    If it dies, another one takes its place: it has no state, and the job goes on from a snapshot.
    """
    program, password = redis_program(), secrets.token_urlsafe(24)
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = probe.getsockname()[1]
    configuration = redis_configuration(_HOST, port, password)
    over, died = threading.Event(), threading.Event()

    def keep_up() -> None:
        while not over.is_set():
            with suppress(OSError), _process(program, configuration) as server:
                while server.poll() is None and not over.wait(_LOOK_S):
                    pass
            died.set()
            over.wait(_PAUSE_S)

    keeper = threading.Thread(target=keep_up, name="keyshift-redis", daemon=True)
    keeper.start()
    try:
        settings = RemoteSettings(redis=f"{_HOST}:{port}").with_secret(password)
        if not wait_until(lambda: died.is_set() or _answers(settings), _START_S, 0.02) or died.is_set():
            raise ServiceUnavailable(f"{program} did not start; set redis=host:port to use another server")
        yield settings.redis, password
    finally:
        over.set()
        keeper.join()


@contextmanager
def _process(program: Path, configuration: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, which ends with the block, or with us."""
    # In a session of its own: Ctrl-C ends it through us, after the job. The password is in no file and no command.
    server = subprocess.Popen(
        [program, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        assert server.stdin is not None
        server.stdin.write(configuration.encode())
        server.stdin.close()
        with ending_with_us([server.pid]):
            yield server
    finally:
        end(server, 10)


def _answers(settings: RemoteSettings) -> bool:
    import redis

    with suppress(redis.RedisError, OSError), closing(connected(settings, _CHECK_S)) as client:
        return bool(client.ping())
    return False
