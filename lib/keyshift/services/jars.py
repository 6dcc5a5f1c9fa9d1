"""Java, and the jars that Spark, the embedded Kafka and Flink need: fetched once by the Ivy inside pyspark, checked
always.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from keyshift.folders import MIB, cache_folder, locked, require_disk_space, resource
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.progress import Say, silent
from keyshift.services.processes import run_to_end, tail

JAVA_VERSIONS = ("17", "21")  # long-term releases that Spark 4.3 and Kafka 4.1 both support
Conf = Literal["spark", "broker", "flink"]
# What is fetched together, by one run of Ivy. Flink's are large, and for one comparison: nobody else waits for them.
TOGETHER: list[list[Conf]] = [["spark", "broker"], ["flink"]]
CONFS: list[str] = [conf for some in TOGETHER for conf in some]


def require_java() -> str:
    """The ``java`` that Spark will start: that of $JAVA_HOME, else of PATH. Call it before starting Spark.

    Raises ServiceUnavailable if there is none, or if it is not one of JAVA_VERSIONS or lacks a module Spark needs.
    """
    return _found()[0]


def java_version() -> str:
    """The whole version of that ``java``, such as 21.0.9. Raises as ``require_java``."""
    return _found()[1]


def _found() -> tuple[str, str]:
    needed = f"Java {' or '.join(JAVA_VERSIONS)}"
    remedy = f"install {needed} (a JDK, or a full runtime) and set JAVA_HOME to its folder, or put its java on PATH"
    if home := os.environ.get("JAVA_HOME"):
        java, said = shutil.which("java", path=str(Path(home, "bin"))), f"JAVA_HOME={home} has no bin/java"
    else:
        java, said = shutil.which("java"), "no java on PATH and JAVA_HOME is not set"
    if java is None:
        raise ServiceUnavailable(f"{said}; {remedy}")
    return _inspected(java, remedy)


@functools.cache  # one look per path and process: a start of java takes 0.2 s
def _inspected(java: str, remedy: str) -> tuple[str, str]:
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "--list-modules"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceUnavailable(f"{java} cannot be run: {error}; {remedy}") from error
    settings = dict(re.findall(r"^ *([\w.]+) = (.*)$", answer.stderr, re.MULTILINE))
    version = settings.get("java.specification.version")
    if version is None:  # Java 8 does not even know the option
        said = (answer.stderr.strip() or answer.stdout.strip() or "nothing").splitlines()[0]
        raise ServiceUnavailable(f"{java} is too old or not a Java (it says: {said}); {remedy}")
    if version not in JAVA_VERSIONS:
        raise ServiceUnavailable(f"{java} is Java {version}; {remedy}")
    if "jdk.incubator.vector" not in answer.stdout:
        raise ServiceUnavailable(f"{java} is a cut-down runtime without the module jdk.incubator.vector; {remedy}")
    # The real binary: behind a wrapper script a pid file would name the wrapper.
    real = Path(settings.get("java.home", ""), "bin", "java")
    return str(real) if real.is_file() else java, settings["java.version"]


def pyspark_jars() -> Path:
    """The folder of jars that pyspark ships."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServiceUnavailable("pyspark is not installed; install keyshift with its dependencies")
    return Path(spec.origin).parent / "jars"


def jars(conf: Conf, say: Say = silent, cancel: threading.Event | None = None) -> list[Path]:
    """The jars of ``spark`` (the Kafka connector, for spark.jars), ``broker`` (the classpath of the embedded Kafka) or
    ``flink`` (that of its processes).

    Downloaded on first use (about a minute), later taken from the cache; checksums are verified every time.
    Raises ServiceUnavailable if they cannot be downloaded or have a wrong checksum.
    """
    folder, wanted = cache_folder() / "jars", _checksums([conf])
    if _wrong(folder, wanted):
        with locked(cache_folder() / "jars.lock", "the download of jars", say, deadline_s=900, cancel=cancel):
            if _wrong(folder, wanted):  # nobody did it while we waited
                _download(next(some for some in TOGETHER if conf in some), folder, say, cancel)
    return [folder / name for name in wanted]


def _checksums(confs: Collection[str]) -> dict[str, str]:
    """Jar (``conf/file``) → sha256, of some configurations."""
    lines = resource("jars.sha256").read_text().splitlines()
    known = ((name, checksum) for checksum, name in (line.split() for line in lines))
    return {name: checksum for name, checksum in known if name.partition("/")[0] in confs}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wrong(folder: Path, wanted: dict[str, str]) -> list[str]:
    """The jars that are missing from ``folder`` or are not what they should be."""
    return [n for n, checksum in wanted.items() if not (folder / n).is_file() or _sha256(folder / n) != checksum]


def _download(confs: Sequence[str], folder: Path, say: Say, cancel: threading.Event | None) -> None:
    wanted = _checksums(confs)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob("jars-*"):  # by one that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="jars-") as scratch:
        _resolve(confs, Path(scratch), say, cancel)
        if wrong := _wrong(Path(scratch), wanted):
            shutil.rmtree(cache_folder() / "ivy", ignore_errors=True)  # what it holds cannot be trusted
            raise ServiceUnavailable(
                f"{len(wrong)} downloaded jars differ from cluster/jars.sha256, the first is {wrong[0]}; try again, "
                "and if it stays so, a mirror or proxy alters them: do not use them"
            )
        for name in wanted:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(scratch, name), folder / name)


def _resolve(confs: Sequence[str], scratch: Path, say: Say, cancel: threading.Event | None) -> None:
    """Run Ivy; the jars of ``confs`` are then in ``scratch/conf/file``."""
    java, ivy = require_java(), next(pyspark_jars().glob("ivy-*.jar"), None)
    if ivy is None:
        raise ServiceUnavailable(f"no ivy jar in {pyspark_jars()}; install pyspark again")
    require_disk_space(cache_folder(), 500 * MIB, "set KEYSHIFT_CACHE to another folder")
    say("jars: downloading with Ivy, once (about a minute)")
    log = cache_folder() / "ivy.log"

    def progress(passed_s: float) -> None:
        lines = log.read_text(errors="replace").splitlines()
        found, fetched = sum("\tfound " in x for x in lines), sum("[SUCCESSFUL ]" in x for x in lines)
        say(f"jars: {passed_s:.0f} s, {found} found, {fetched} fetched")

    user_folder = f"-Divy.default.ivy.user.dir={cache_folder() / 'ivy'}"  # else it uses ~/.ivy2
    pattern = "[conf]/[artifact]-[revision].[ext]"
    code = run_to_end(
        [java, user_folder, "-jar", ivy, "-ivy", resource("jars.xml"), "-confs", *confs, "-retrieve", pattern],
        output=log,
        cwd=scratch,
        cancel=cancel,
        progress=progress,
    )
    if code != 0:
        raise ServiceUnavailable(
            f"jars could not be downloaded (Ivy ended with {code}); check the network, behind a proxy set "
            f"JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT. Last lines of {log}:\n{tail(log)}"
        )


def _write_checksums() -> None:
    """Write cluster/jars.sha256 anew from what the coordinates resolve to: for a developer who changed them."""
    with tempfile.TemporaryDirectory() as scratch:
        _resolve(CONFS, Path(scratch), silent, None)
        found = sorted(Path(scratch).glob("*/*.jar"), key=lambda jar: (CONFS.index(jar.parent.name), jar.name))
        if not found:
            raise BadInput(f"{resource('jars.xml')} resolves to no jar")
        lines = [f"{_sha256(jar)}  {jar.relative_to(scratch)}\n" for jar in found]
    resource("jars.xml").with_name("jars.sha256").write_text("".join(lines))


if __name__ == "__main__":
    _write_checksums()
