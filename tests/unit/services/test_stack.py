"""The embedded stack without its services: folders, processes, Java, jars and the MinIO program."""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest

from keyshift import folders
from keyshift.folders import Cancelled
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.progress import Say, silent
from keyshift.services import go_programs, jars, processes
from keyshift.services import stack as stacks
from keyshift.services.embedded import EmbeddedService, Ports
from keyshift.services.go_programs import go_program
from keyshift.services.kafka import Kafka
from keyshift.services.minio import PROGRAM, MinIO
from keyshift.services.service import ALONE, HOST, Argv, Env, Service, ServiceNode
from keyshift.services.stack import DEFAULT_PORTS, SERVICES, STORE, Stack
from waits import until

DEADLINE_S = 60.0


def refuse_lock(path: Path, words: str = "^", error: type[Exception] = ServiceUnavailable, **how: object) -> None:
    how = {"say": silent, "deadline_s": 0} | how
    with pytest.raises(error, match=words), folders.locked(path, "the build", **how):
        pytest.fail("it is locked")


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The only folder on PATH that may hold java, go or minio."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "nice", "sleep", "mkdir", "cat", "chmod", "uname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(go_programs, "find_spec", lambda _: None)  # without pip nothing comes from the network
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Folders


def test_the_state_folder_is_the_argument_then_the_variable_then_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path / "variable"))
    assert folders.state_folder(tmp_path / "argument") == (tmp_path / "argument").resolve()
    assert folders.state_folder() == (tmp_path / "variable").resolve()
    monkeypatch.delenv("KEYSHIFT_HOME")
    assert folders.state_folder().name == "keyshift"


def test_a_full_disk_is_named_with_what_is_free_and_needed_before_anything_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * folders.MIB))
    stack = Stack(tmp_path)
    words = rf"{re.escape(str(tmp_path))} is too full: 5 MiB .*free, 1024 MiB needed.*KEYSHIFT_HOME"
    with pytest.raises(ServiceUnavailable, match=words):
        stack.up()
    assert not stack.running()
    assert {entry.name for entry in tmp_path.iterdir()} == {"lock"}


def test_where_no_run_has_room_any_more_what_is_there_can_be_read_and_deleted(tmp_path, lives, monkeypatch):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    stack = Stack(tmp_path)
    with stack.used(needs=STORE):
        assert lives == {*STORE}
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * folders.MIB))
    with stack.used(room_bytes=64 * folders.MIB):
        assert lives == {*SERVICES}
    with pytest.raises(ServiceUnavailable, match="1024 MiB needed"), stack.used():
        pass


def test_on_a_disk_on_which_nobody_can_be_written_down_the_folder_is_named(tmp_path, lives, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    stack = Stack(tmp_path)
    with stack.used():
        monkeypatch.setattr(folders.os, "fsync", full)
        monkeypatch.setattr(Path, "touch", full)
        for use in (stack.up, stack.used(needs=STORE).__enter__):
            words = rf"^cannot write to {re.escape(str(tmp_path / 'users'))}: No space left on device; free some of it"
            with pytest.raises(ServiceUnavailable, match=words):
                use()
    assert not lives


def test_who_waits_for_a_lock_in_vain_is_told_who_holds_it(tmp_path):
    with folders.locked(tmp_path / "lock", "the build", silent, deadline_s=1):
        refuse_lock(tmp_path / "lock", rf"the build is still busy in process {os.getpid()}")
        cancel = threading.Event()
        cancel.set()
        refuse_lock(tmp_path / "lock", error=Cancelled, deadline_s=60, cancel=cancel)
    with folders.locked(tmp_path / "lock", "the build", silent, deadline_s=0):
        pass  # free again


def test_on_a_full_disk_services_are_stopped_all_the_same(tmp_path, launched, full):
    process = launched("exec sleep 600")
    stack = Stack(tmp_path)
    (tmp_path / "pids" / "service.json").rename(tmp_path / "pids" / "kafka.json")
    full()
    stack.down(wipe=True)
    assert not _alive(process.pid)
    with folders.locked(tmp_path / "lock", "the build", silent, deadline_s=0):
        refuse_lock(tmp_path / "lock", "the build is still busy in process")


def test_what_cannot_be_locked_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "lock"):
        refuse_lock(path, f"^cannot lock {re.escape(str(path))}: (Is|Not|File) ")

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", none)
    refuse_lock(tmp_path / "lock", "lock: No locks available; ", deadline_s=60)


# Processes


def test_a_pid_file_finds_its_process_and_no_other_of_its_number_whatever_the_clock_says(tmp_path, monkeypatch):
    """The system tells when a process began by the clock of now."""
    processes.write_pid_file(tmp_path / "service.json", os.getpid())
    began = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began + 3600)
    assert processes.find(tmp_path / "service.json") == psutil.Process()
    known = processes.identity(os.getpid())
    assert known.pop("host") == platform.node()
    boot, _, ticks = known.pop("born").rpartition(" ")
    assert processes.living(**known, born=f"{boot} {int(ticks) + 1}") is None, "that one began at another moment"
    assert processes.living(**known, born=f"another {ticks}") is None, "the machine was started anew"
    assert processes.living(**known), "the system did not tell"
    assert processes.living(os.getpid(), began) is None, "nor then, and it began at another moment"


def test_a_service_whose_ports_are_not_known_has_no_way_through_a_relay(tmp_path):
    with pytest.raises(ServiceUnavailable, match="Kafka was started by an older keyshift; stop the services"):
        Stack(tmp_path).node("kafka").route()


WHOLE: dict = {"pid": 1, "created": 1, "born": "", "host": ""}
DAMAGED = [{"pid": "x"}, {"pid": -5}]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', *(json.dumps(WHOLE | each) for each in DAMAGED)])
def test_a_damaged_pid_file_finds_nothing(tmp_path, content):
    (tmp_path / "service.json").write_text(content)
    assert processes.find(tmp_path / "service.json") is None and not processes.elsewhere(tmp_path / "service.json")


@pytest.fixture
def launched(tmp_path):
    """Start a shell script as a service."""
    file = tmp_path / "pids" / "service.json"

    def start(script: str) -> psutil.Process:
        processes.launch(["sh", "-c", script], dict(os.environ), tmp_path, tmp_path / "service.log", file)
        found = processes.find(file)
        assert found is not None
        return found

    yield start
    if left := processes.find(file):
        left.kill()


def test_a_service_whose_start_is_killed_before_it_can_be_found_ends(tmp_path):
    script = """
import os, signal
from keyshift.services import processes
from keyshift.services.processes import Path

def killed(pid_file, pid):
    Path("pid").write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)

processes.write_pid_file = killed
processes.launch(["sleep", "600"], dict(os.environ), Path(), Path("service.log"), Path("pids", "service.json"))
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path).returncode == -signal.SIGKILL
    until(lambda: not _alive(int((tmp_path / "pid").read_text())))


def test_a_service_that_ended_by_itself_is_not_found_and_leaves_no_zombie(tmp_path, launched):
    os.mkfifo(tmp_path / "go")
    process = launched("read line < go; exit 3")
    (tmp_path / "go").write_text("now\n")
    pid_file = tmp_path / "pids" / "service.json"
    until(lambda: processes.find(pid_file) is None and not psutil.pid_exists(process.pid))


def test_the_log_of_the_start_before_is_kept(tmp_path, launched):
    log = tmp_path / "service.log"
    for word in ("first", "second"):
        process = launched(f"echo {word}; exec sleep 600")
        until(lambda word=word: log.read_text() == f"{word}\n")
        processes.stop([process])
    assert (tmp_path / "service.log.1").read_text() == "first\n"


def test_listening_is_seen_of_the_right_process_and_port_only():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert processes.listens(psutil.Process(), port)
        with subprocess.Popen(["sleep", "600"]) as stranger:
            assert not processes.listens(psutil.Process(stranger.pid), port)
            stranger.kill()
    assert not processes.listens(psutil.Process(), port)


def test_a_tool_that_is_cancelled_takes_its_children_along(tmp_path):
    cancel, pid_file = threading.Event(), tmp_path / "grandchild"
    script = f"sleep 600 & echo $! > {pid_file}; wait"
    with ThreadPoolExecutor() as pool:
        tool = pool.submit(processes.run_to_end, ["sh", "-c", script], tmp_path / "log", cancel=cancel)
        until(lambda: pid_file.exists() and pid_file.read_text().strip())
        cancel.set()
        with pytest.raises(Cancelled):
            tool.result(DEADLINE_S)
    until(lambda: not _alive(int(pid_file.read_text())))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_tool_tells_its_exit_code_and_all_it_printed(tmp_path):
    assert processes.run_to_end(["sh", "-c", "echo out; echo err >&2; exit 7"], tmp_path / "log") == 7
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_the_tail_of_a_log_shows_causes_and_no_stack_frames(tmp_path):
    log = tmp_path / "log"
    frames = "\tat a.B.c(B.java:1)\n" * 30
    log.write_text(f"start\nRuntimeException: no\n{frames}Caused by: BindException: in use\n{frames}\t... 6 more\n\n")
    assert processes.tail(log, 2) == "RuntimeException: no\nCaused by: BindException: in use"
    log.write_text("")
    assert processes.tail(log) == "(the log is empty)"
    assert processes.tail(tmp_path / "none") == "(no log)"


# Another host in the same folder


@pytest.mark.parametrize("entry", ["pids/kafka-2.json", "users/7-ab"])
def test_services_of_another_host_in_the_folder_are_left_alone_and_named(tmp_path, entry, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(processes.platform, "node", lambda: "there")
    processes.write_pid_file(tmp_path / entry, os.getpid())
    told = json.loads((tmp_path / entry).read_text())
    stack = Stack(tmp_path)
    monkeypatch.setattr(processes.platform, "node", lambda: "here")
    assert not processes.elsewhere(tmp_path / entry), "the host has another name by now"
    folders.write_whole(tmp_path / entry, json.dumps(told | {"born": "another 1"}))
    words = rf"^process {os.getpid()} of host there .*KEYSHIFT_HOME.* pids and users in {re.escape(str(tmp_path))}$"
    for use in (stack.up, stack.used().__enter__, stack.down, lambda: stack.down(wipe=True)):
        with pytest.raises(ServiceUnavailable, match=words):
            use()
    assert (tmp_path / entry).exists() and (tmp_path / "data").exists()
    monkeypatch.setattr(processes.platform, "node", lambda: "there")
    stack.down(wipe=True)  # that machine was started anew
    assert not (tmp_path / "data").exists()


def test_services_of_a_container_with_this_ones_name_are_left_alone_as_long_as_they_live(tmp_path, launched):
    """Nobody finds them by the numbers of their processes, as these are others here."""
    process, file = launched("exec sleep 600"), tmp_path / "pids" / "service.json"
    told = json.loads(file.read_text())
    folders.write_whole(file, json.dumps(told | {"born": "another 1"}))
    stack = Stack(tmp_path)
    words = rf"^process {process.pid} of host {platform.node()}, in another container, has services in "
    for use in (stack.up, stack.used().__enter__, stack.down, lambda: stack.down(wipe=True)):
        with pytest.raises(ServiceUnavailable, match=words):
            use()
    assert file.exists()
    processes.stop([process])
    assert not processes.elsewhere(file)
    stack.down(wipe=True)
    assert not file.parent.exists()


def test_a_service_starts_though_something_that_the_one_before_has_left_holds_its_lock(tmp_path, launched):
    launched("sleep 600 & echo $! > left; wait")
    until(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text().strip())
    file = tmp_path / "pids" / "service.json"
    processes.stop([processes.find(file)])
    assert processes.elsewhere(file)
    process = launched("exec sleep 600")
    assert processes.find(file) == process and not processes.elsewhere(file)
    psutil.Process(int((tmp_path / "left").read_text())).kill()


# Java

SETTINGS = """
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
echo "    java.version = {version}.0.9" >&2
echo "{module}@{version}"
"""


def java(path: Path, version: str, module: str = "jdk.incubator.vector") -> Path:
    return program(path, SETTINGS.format(home=path.parent.parent, version=version, module=module))


@pytest.mark.parametrize("version", ["17", "21"])
def test_a_java_that_spark_supports_is_taken(tools, version):
    java(tools / "java", version)
    assert (jars.require_java(), jars.java_version()) == (str(tools / "java"), f"{version}.0.9")


def test_java_home_comes_before_path_and_behind_a_wrapper_is_the_real_java(tools, tmp_path, monkeypatch):
    fit = java(tmp_path / "jdk" / "bin" / "java", "17")
    program(tools / "java", f'exec {fit} "$@"')
    assert jars.require_java() == str(fit)
    java(tools / "java", "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert jars.require_java() == str(fit)


def test_a_missing_or_unfit_java_is_named_with_the_versions_that_fit(tools, tmp_path, monkeypatch):
    with pytest.raises(ServiceUnavailable, match=r"no java on PATH.*Java 17 or 21"):
        jars.require_java()
    java(tools / "java", "11")
    with pytest.raises(ServiceUnavailable, match="tools/java is Java 11; install Java 17 or 21"):
        jars.require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ServiceUnavailable, match=r"JAVA_HOME=.*old has no bin/java"):
        jars.require_java()
    program(tmp_path / "old" / "bin" / "java", "echo 'Unrecognized option: --list-modules' >&2; exit 1")
    with pytest.raises(ServiceUnavailable, match=r"too old or not a Java .*Unrecognized option.*Java 17 or 21"):
        jars.require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "cut"))
    java(tmp_path / "cut" / "bin" / "java", "17", module="java.base")
    with pytest.raises(ServiceUnavailable, match=r"without the module jdk\.incubator\.vector"):
        jars.require_java()


# Jars


def test_every_jar_has_a_checksum_and_all_configurations_are_listed():
    lines = jars.resource("jars.sha256").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  (spark|broker|flink)/[\w.-]+\.jar", line) for line in lines)
    names = {line.split()[1] for line in lines}
    assert len(names) == len(lines)
    spark, broker = ("spark/spark-sql-kafka", "spark/kafka-clients"), ("broker/kafka_2.13", "broker/log4j-slf4j-impl")
    for needed in (*spark, *broker, "flink/flink-runtime", "flink/flink-sql-gateway", "flink/log4j-slf4j-impl"):
        assert any(name.startswith(needed) for name in names)


@pytest.fixture
def ivy(cache, tmp_path, monkeypatch):
    """Three jars to resolve, and an Ivy that hands out ``contents``; ``runs``: of which configurations, each time."""
    contents = {"spark/a-1.jar": b"a", "broker/b-1.jar": b"b", "flink/c-1.jar": b"c"}
    repository = SimpleNamespace(contents=contents, runs=[])
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in repository.contents.items())
    (tmp_path / "jars.sha256").write_text(sums)

    def resolve(command: list[str], output: Path, cwd: Path, **how: object) -> int:
        confs = command[command.index("-confs") + 1 : command.index("-retrieve")]
        repository.runs.append(confs)
        for name, data in repository.contents.items():
            if name.partition("/")[0] in confs:
                (cwd / name).parent.mkdir()
                (cwd / name).write_bytes(data)
        return 0

    monkeypatch.setattr(jars, "resource", lambda name: tmp_path / name)
    monkeypatch.setattr(jars, "require_java", lambda: "java")
    monkeypatch.setattr(jars, "run_to_end", resolve)
    return repository


def test_jars_are_fetched_once_those_of_flink_when_they_are_asked_for_and_damaged_ones_again(ivy, cache):
    (cache / "jars-killed" / "spark").mkdir(parents=True)
    assert jars.jars("spark") == [cache / "jars" / "spark" / "a-1.jar"]
    assert [jar.read_bytes() for jar in jars.jars("broker")] == [b"b"]
    assert sorted(entry.name for entry in cache.iterdir()) == ["jars", "jars.lock"]
    assert not (cache / "jars" / "flink").exists()
    assert jars.jars("flink") == [cache / "jars" / "flink" / "c-1.jar"]
    assert ivy.runs == [["spark", "broker"], ["flink"]]
    (cache / "jars" / "spark" / "a-1.jar").write_bytes(b"damaged")
    assert jars.jars("spark")[0].read_bytes() == b"a"
    assert len(ivy.runs) == 3


def test_a_fetched_jar_with_another_checksum_is_refused_and_nothing_is_kept(ivy, cache):
    ivy.contents["broker/b-1.jar"] = b"altered"
    with pytest.raises(ServiceUnavailable, match=r"1 downloaded jars differ .*broker/b-1\.jar"):
        jars.jars("spark")
    assert not list((cache / "jars").rglob("*.jar"))


# The MinIO program

MINIO = "echo 'minio version DEVELOPMENT.GOGET'"
GO = """
case "$1" in
    version) echo "go version go{version} linux/amd64" ;;
    *) echo run >> "{runs}"; {build} ;;
esac
"""
BUILD = 'printf "#!/bin/sh\\n%s\\n" "echo minio version 1" > "$GOBIN/minio"; chmod 755 "$GOBIN/minio"'


@pytest.fixture
def roomy(monkeypatch):
    monkeypatch.setattr(go_programs, "BUILD_BYTES", 0)


def fake_go(tools: Path, build: str, version: str = "1.99.0") -> Path:
    runs = tools / "runs"
    program(tools / "go", GO.format(version=version, runs=runs, build=build))
    return runs


def test_minio_on_the_path_is_used_and_nothing_is_built(tools, cache):
    minio = program(tools / "minio", MINIO)
    assert go_program(PROGRAM) == minio
    assert not cache.exists()


def test_a_program_called_minio_that_is_another_is_passed_over(tools, cache, roomy):
    program(tools / "minio", "echo something else")
    fake_go(tools, BUILD)
    assert cache in go_program(PROGRAM).parents


def test_two_who_need_minio_at_once_build_it_once(tools, cache, roomy):
    runs = fake_go(tools, f"sleep 0.3; {BUILD}")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: go_program(PROGRAM), range(2))
    assert first == second
    assert go_program(PROGRAM) == first
    assert runs.read_text() == "run\n"
    assert not (cache / "minio-build").exists()


def test_a_build_that_fails_shows_the_end_of_its_log_and_leaves_no_program(tools, cache, roomy):
    fake_go(tools, "echo 'dial tcp: no route'; exit 1")
    with pytest.raises(ServiceUnavailable, match=r"(?s)check the network.*put a `minio`.*dial tcp: no route"):
        go_program(PROGRAM)
    assert not (cache / "minio").exists()


def test_a_build_that_is_cancelled_leaves_no_program_and_the_next_one_can_go_on(tools, cache, roomy):
    runs = fake_go(tools, f"{BUILD}; sleep 600")
    cancel = threading.Event()
    with ThreadPoolExecutor() as pool:
        build = pool.submit(go_program, PROGRAM, silent, cancel)
        until(runs.exists)
        cancel.set()
        with pytest.raises(Cancelled):
            build.result(DEADLINE_S)
    assert not (cache / "minio").exists()
    fake_go(tools, BUILD)
    assert go_program(PROGRAM).is_file()


def test_too_old_a_go_is_passed_over_for_the_one_from_the_package_index(tools, cache, roomy):
    fake_go(tools, "exit 1", version="1.23.9")
    inner = tools / "inner"
    program(inner, GO.format(version="1.26.6", runs=tools / "runs", build=BUILD))
    # Called as: uv pip install --python PYTHON --target FOLDER ...
    program(tools / "uv", f'mkdir -p "$6/go/bin"; cat {inner} > "$6/go/bin/go"; chmod 755 "$6/go/bin/go"')
    said: list[str] = []
    assert go_program(PROGRAM, said.append).is_file()
    assert any("no Go 1.24 or newer on PATH" in line for line in said)


def test_without_go_pip_and_uv_the_remedies_are_named(tools, cache, roomy):
    with pytest.raises(ServiceUnavailable, match=r"no Go 1\.24 or newer.*neither pip nor uv.*put a `minio`"):
        go_program(PROGRAM)


# The stack before it was ever started


def test_a_stack_that_never_ran_is_stopped_everywhere_and_asking_creates_nothing(tmp_path):
    stack = Stack(tmp_path / "home", ports={"minio": 12345})
    states = {status.service: (status.state, status.pid, status.address) for status in stack.status()}
    ports = DEFAULT_PORTS | {"minio": 12345}
    assert states == {name: ("stopped", None, f"127.0.0.1:{ports[name]}") for name in ("kafka", "zookeeper", "minio")}
    with pytest.raises(ServiceUnavailable, match=r"Kafka at 127\.0\.0\.1:19092 is stopped; start it with"):
        stack.endpoints()
    stack.down()
    assert not stack.running()
    assert not stack.home.exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"access_key": "a"}'])
def test_credentials_that_cannot_be_read_are_named_and_stay(tmp_path, content):
    file = tmp_path / "credentials.json"
    file.write_text(content)
    with pytest.raises(ServiceUnavailable, match=rf"in {re.escape(str(file))} cannot be read; remove the file"):
        MinIO(tmp_path).credentials()
    assert file.read_text() == content


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_twice_leaves_nothing_behind(tools, tmp_path, cache, number):
    server = tmp_path / "server"
    answer = SETTINGS.format(home=tmp_path, version="17", module="jdk.incubator.vector")
    program(tools / "java", f'case "$1" in -XshowSettings*) {answer};; *) echo $$ > {server}; exec sleep 600;; esac')
    script = "from keyshift.services.stack import Stack, Path; Stack(Path('home')).up()"
    program(tools / "minio", f"{MINIO}; [ $1 = --version ] || exec sleep 600")
    # Kafka waits for its jars, ZooKeeper and MinIO for an answer of their servers.
    with folders.locked(cache / "jars.lock", "jars", silent, deadline_s=5):
        run = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.DEVNULL)
        until(lambda: server.exists() and server.read_text().strip())
        stack = Stack(tmp_path / "home")
        until(stack.running)
        run.send_signal(number)
        run.send_signal(number)
        assert run.wait(DEADLINE_S) == -number
    assert not stack.running()
    assert not _alive(int(server.read_text()))


class Listener(Service):
    """A process that listens, and ends where it may not."""

    name, title, deadline_s = "listener", "Listener", DEADLINE_S
    default_ports: ClassVar = {"zookeeper": 19992, "kafka_relay": 19993}  # nobody listens at the second

    def __init__(self, home: Path, rivals: list[socket.socket] | None = None, node: ServiceNode = ALONE) -> None:
        super().__init__(home, node=node)
        self.rivals = rivals

    def fetch(self, say: Say, cancel: threading.Event) -> Argv:
        return [sys.executable, "-c"]

    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        if self.rivals:  # somebody else is quicker
            rival = self.rivals.pop()
            rival.bind((HOST, ports["zookeeper"]))
            rival.listen()
        serve = f"import socket; s = socket.create_server(('{HOST}', {ports['zookeeper']})); s.accept(); s.accept()"
        return [*program, serve], dict(os.environ)

    def check(self, port: int) -> None:
        pass


@pytest.fixture
def listening(tmp_path, monkeypatch):
    """Makes a stack that has a listener in place of Kafka."""

    def make(**how: object) -> Stack:
        monkeypatch.setattr(stacks, "Kafka", lambda home, node: Listener(home, **how))
        return Stack(tmp_path)

    return make


@pytest.mark.parametrize("times", [1, 2])
def test_a_port_that_another_takes_while_a_service_starts_is_given_up(listening, times):
    with ExitStack() as stack:
        rivals = [stack.enter_context(socket.socket()) for _ in range(times)]
        embedded, said = listening(rivals=(to_come := rivals.copy())), []
        stack.callback(embedded.down)
        embedded.restart("listener", say=said.append)
        service = embedded.node("listener")
        ours = int(service.address.split(":")[1])
        assert embedded.pid("listener") == service.process.pid
        assert not to_come
        assert ours not in {rival.getsockname()[1] for rival in rivals}
        assert processes.listens(service.process, ours)
        assert service.used_ports() == [ours, ours + 1], "the next one is whose the first is"
        assert sum("is taken" in line for line in said) == times


def test_a_service_for_which_no_port_is_free_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("keyshift.services.embedded.is_free", lambda port: False)
    with pytest.raises(ServiceUnavailable, match="no free port for zookeeper from 19992 on; name one that is free"):
        Ports(tmp_path, {}).choose(Listener(tmp_path), silent)


@pytest.mark.parametrize(
    ("wanted", "last", "ports"),
    [
        ({}, {}, [19102, 19103, 19104, 19105]),
        ({"kafka": 20001}, {}, [20001, 20002, 20003, 20004]),
        ({}, {"kafka_relay": 19094}, [19102, 19103, 19094, 19105]),
        ({"kafka": 65535}, {}, [65535, 19103, 19094, 19095]),
    ],
)
def test_the_port_of_a_relay_goes_with_that_of_clients_if_there_is_one(tmp_path, monkeypatch, wanted, last, ports):
    """Nobody listens there as long as no run has a relay: it would be that of another stack, too."""
    monkeypatch.setattr("keyshift.services.embedded.is_free", lambda port: port not in (19092, 19093))
    (tmp_path / "ports.json").write_text(json.dumps(last))
    assert list(Ports(tmp_path, wanted).choose(Kafka(tmp_path), silent).values()) == ports


@pytest.mark.parametrize("node", [ALONE, ServiceNode(1, (HOST,) * 3)])
def test_a_service_that_does_not_answer_is_started_again_at_its_ports(listening, monkeypatch, node):
    """Its own process has them until it is ended; other nodes would not find it at others."""
    monkeypatch.setattr(EmbeddedService, "state", lambda service, patience_s: ("unhealthy", "it does not answer"))
    embedded, said = listening(node=node), []
    with embedded.used(said.append, ["listener"]):
        service = embedded.node("listener")
        pid, address = service.process.pid, service.address
        with embedded.used(said.append, ["listener"]):
            assert (service.address, service.process.pid == pid) == (address, False)
    name = f"Listener{'' if node is ALONE else ' 1'}"
    assert f"{name}: process {pid} does not answer as it should, restarting it" in said
    assert not any("is taken" in line for line in said)


def test_what_commands_have_left_in_the_state_folder_is_wiped_and_what_a_user_has_put_there_stays(tmp_path):
    ours = [
        *("data/minio/x", "data/kafka-2/x", "logs/job-a.log", "jobs/a.json", "ports.json"),
        *("spark.log", "spark-1.log", "spark-spare-0.log", "keyshift-work/spark-ab12/x"),
        *("bare_copy.json", "load-cost-2.json", "load-cost-16.json", "report-small.html", "batches/small.lock"),
        *("metrics/run-ab12.prom", "metrics/run-cd34.prom.7.8"),
        *("notebooks/00_quickstart-20260101T101112/00_quickstart.ipynb", "batches/small/0123456789abcdef/notebooks/x"),
    ]
    theirs = [
        *("notebooks/mine.ipynb", "notebooks/mine-2026/a.ipynb", "spark-notes/a", "report.html", "costs.json"),
        "metrics/mine.prom",
        *("data/mine.yaml", "batches/small/mine.yaml", "batches/0123456789abcdef/a"),
    ]
    for name in (*ours, *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "load-cost-1.json").symlink_to(tmp_path / "costs.json")
    Stack(tmp_path).down(wipe=True)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*theirs, "lock"}
    for name in theirs:
        (tmp_path / name).unlink()
    (tmp_path / ours[-1]).parent.mkdir(parents=True)
    (tmp_path / ours[0]).parent.mkdir(parents=True)
    Stack(tmp_path).down(wipe=True)
    for folder in ("batches", "data", "metrics"):
        assert not (tmp_path / folder).exists(), "nothing was in it but what was ours"


# Who uses it


def test_the_last_command_that_uses_services_stops_them(tmp_path, lives):
    first, second = Stack(tmp_path), Stack(tmp_path)
    with first.used() as endpoints:
        assert endpoints == first.endpoints() and lives == {*SERVICES}
        with second.used():
            pass
        assert first.running(), "the second must not stop what the first still uses"
    assert not first.running()
    with first.used():
        second_use = second.used()
        second_use.__enter__()
    assert second.running(), "whoever has started them may end first"
    second_use.__exit__(None, None, None)
    assert not second.running()
    assert not (tmp_path / "users").exists()


def test_services_that_were_started_to_stay_stay_until_they_are_stopped(tmp_path, lives):
    stack = Stack(tmp_path)
    with stack.used():
        stack.up()
    assert stack.running()
    with stack.used():
        pass
    assert stack.running()
    stack.down()
    with stack.used():
        assert stack.running()
    assert not stack.running()


def test_services_that_have_died_come_back_for_all_who_use_them_and_do_not_stay(tmp_path, lives):
    first, second = Stack(tmp_path), Stack(tmp_path)
    first.up()
    with first.used():
        lives.clear()
        with second.used():
            pass
        assert first.running(), "the first may live, and recover"
    assert not first.running()


def test_whether_services_may_stop_is_asked_when_nobody_can_begin_to_use_them_any_more(tmp_path, lives):
    stack = Stack(tmp_path)
    stack.up()

    def require():
        refuse_lock(tmp_path / "lock")  # for a run that would begin to use them
        raise BadInput("a run uses them")

    with pytest.raises(BadInput, match="a run uses them"):
        stack.down(wipe=True, require=require)
    assert stack.running()
    with stack.used():
        pass
    assert stack.running(), "they are to stay as before"


def test_a_command_that_was_killed_does_not_keep_services_running(tmp_path, lives, gone):
    stack = Stack(tmp_path)
    with stack.used():
        known = processes.identity(os.getpid())
        (tmp_path / "users" / f"{gone}-dead").write_text(json.dumps(known | {"pid": gone}))
    assert not stack.running()


def test_who_reads_the_store_starts_nothing_else_and_needs_no_java(tmp_path, lives, tools, monkeypatch):
    monkeypatch.setattr(stacks, "require_java", jars.require_java)
    stack = Stack(tmp_path)
    with stack.used(needs=STORE) as endpoints:
        assert lives == {"minio"}
    assert endpoints.minio and not lives
    with pytest.raises(ServiceUnavailable, match="Java"), stack.used():
        pass
    assert not lives


def test_a_start_that_fails_leaves_no_user(tmp_path, lives, monkeypatch):
    def fails(service: EmbeddedService, say: Say, cancel: threading.Event) -> None:
        raise ServiceUnavailable("no")

    monkeypatch.setattr(EmbeddedService, "start", fails)
    with pytest.raises(ServiceUnavailable, match="no"), Stack(tmp_path).used():
        pass
    assert not list((tmp_path / "users").iterdir())
