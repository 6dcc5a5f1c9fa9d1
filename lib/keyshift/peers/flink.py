"""Flink on this machine, as long as a block lasts: a job manager, a task manager and the gateway that takes SQL.

A session cluster in standalone mode. It serves one comparison (``peers.flink_job``), so it is no part of the stack, and
``keyshift up`` does not start it. Every address is one of loopback.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from keyshift.folders import MIB, REMEDY, require_disk_space, work_folder, write_whole
from keyshift.model.errors import ServiceUnavailable
from keyshift.peers.flink_client import FlinkClient
from keyshift.program import ending_with_us, interrupts_wait
from keyshift.progress import Say
from keyshift.services import processes
from keyshift.services.jars import jars, require_java
from keyshift.services.service import HOST, JVM
from keyshift.waiting import wait_until

START_S = 120.0  # from the start of its processes until they answer, on a busy machine
ROOM_BYTES = 512 * MIB  # for the savepoints of one run
TASK_HEAP_MIB = 512
LOOK_MS = 20  # how old an answer about a job may be: without it three seconds

# What Flink's own scripts open to it of Java 17.
_EXPORTS = ("java.rmi/sun.rmi.registry", "java.security.jgss/sun.security.krb5")
_OPENS = ["lang", "lang.reflect", "net", "io", "nio", "text", "time", "util"]
_OPENS += ["util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"]
MODULES = [f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS]
MODULES += [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENS]
MODULES += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]

# What computes gets both compilers, as Flink starts it; what only controls the job is started like our services.
_FULL_JVM = [option for option in JVM if "TieredStopAtLevel" not in option]
_RUNTIME = "org.apache.flink.runtime"
ROLES = {  # options of Java, and the class with its arguments
    "jobmanager": (
        [*JVM, "-Xmx256m"],
        [f"{_RUNTIME}.entrypoint.StandaloneSessionClusterEntrypoint", "--configDir", "conf"],
    ),
    "taskmanager": (
        [*_FULL_JVM, f"-Xmx{TASK_HEAP_MIB}m", "-XX:MaxDirectMemorySize=256m"],
        [f"{_RUNTIME}.taskexecutor.TaskManagerRunner", "--configDir", "conf"],
    ),
    "gateway": ([*JVM, "-Xmx256m"], ["org.apache.flink.table.gateway.SqlGateway"]),
}


def configuration(folder: Path, slots: int, ports: Mapping[str, int], checkpoint_s: float = 0.0) -> dict[str, Any]:
    """Give what is in ``conf/config.yaml``. ``ports``: rpc, rest and gateway; ``folder``: of savepoints and
    checkpoints; ``checkpoint_s``: see ``flink``.
    """
    gateway = "sql-gateway.endpoint.rest"
    adaptive = {
        "jobmanager.scheduler": "adaptive",
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 s",  # a run is shorter than its 30 s
        "execution.checkpointing.interval": f"{round(checkpoint_s * 1000)} ms",
        "restart-strategy.type": "none",  # a job that fails stays so, as without checkpoints
    }
    return (adaptive if checkpoint_s else {}) | {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": ports["rpc"],
        "jobmanager.bind-host": HOST,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": ports["rest"],
        "rest.bind-port": str(ports["rest"]),
        f"{gateway}.address": HOST,
        f"{gateway}.bind-address": HOST,
        f"{gateway}.port": ports["gateway"],
        f"{gateway}.bind-port": str(ports["gateway"]),
        "web.submit.enable": False,  # no programs by way of the web page
        "web.refresh-interval": LOOK_MS,
        "execution.target": "remote",
        "sql-gateway.session.idle-timeout": "0 s",  # none: a run may be long
        "state.backend.type": "hashmap",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (folder / "savepoints").as_uri(),
        "jobmanager.memory.process.size": "768m",
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.cpu.cores": float(os.cpu_count() or 1),
        # Without its scripts nobody computes these from a whole: each has to be there.
        "taskmanager.memory.framework.heap.size": "64m",
        "taskmanager.memory.task.heap.size": f"{TASK_HEAP_MIB - 64}m",
        "taskmanager.memory.framework.off-heap.size": "64m",
        "taskmanager.memory.task.off-heap.size": "64m",
        "taskmanager.memory.managed.size": "0m",
        "taskmanager.memory.network.min": "64m",
        "taskmanager.memory.network.max": "64m",
        "taskmanager.memory.jvm-metaspace.size": "192m",
        "taskmanager.memory.jvm-overhead.min": "64m",
        "taskmanager.memory.jvm-overhead.max": "64m",
    }


@contextmanager
def flink(home: Path, slots: int, say: Say, checkpoint_s: float = 0.0) -> Iterator[FlinkClient]:
    """A cluster with so many slots, in a folder of its own below ``home``; nothing of it is left but its logs.

    ``checkpoint_s``: the interval of checkpoints. With it the scheduler is the adaptive one, which rescales jobs that
    run; with 0 there are none.
    Raises ServiceUnavailable, one line, if its jars or Java cannot be had, or with the end of a log if a process of it
    does not start.
    """
    java, classpath = require_java(), os.pathsep.join(str(jar) for jar in jars("flink", say))
    require_disk_space(home, ROOM_BYTES, REMEDY)
    stack = ExitStack()
    try:
        folder = stack.enter_context(work_folder(home, "flink-"))
        ports = dict(zip(("rpc", "rest", "gateway"), _free_ports(3), strict=True))
        write_whole(folder / "conf" / "config.yaml", yaml.safe_dump(configuration(folder, slots, ports, checkpoint_s)))
        (folder / "tmp").mkdir()
        env = os.environ | {"FLINK_CONF_DIR": str(folder / "conf")}
        started: dict[str, psutil.Process] = {}
        stack.callback(lambda: processes.stop([*started.values()]))
        for role, (options, program) in ROLES.items():
            pid_file = folder / f"{role}.json"
            temporary = f"-Djava.io.tmpdir={folder / 'tmp'}"  # what is uploaded goes there, too, and stays
            command = [java, temporary, *options, *MODULES, "-cp", classpath, *program]
            with interrupts_wait():  # one that came between would leave it running, or who ends it if we are killed
                processes.launch(command, env, folder, _log(home, role), pid_file)
                if process := processes.find(pid_file):
                    started[role] = process
                    stack.enter_context(ending_with_us([process.pid]))
        rest, gateway = (f"http://{HOST}:{ports[name]}" for name in ("rest", "gateway"))
        client = stack.enter_context(closing(FlinkClient(rest, gateway, folder / "savepoints")))
        _await(client, slots, home, folder)
        say(f"Flink {client.version()}: ready")
        yield client
    finally:
        with interrupts_wait():
            stack.close()


def _await(client: FlinkClient, slots: int, home: Path, folder: Path) -> None:
    def dead() -> list[str]:
        return [role for role in ROLES if processes.find(folder / f"{role}.json") is None]

    wait_until(lambda: dead() or client.ready(slots), START_S, 0.2)
    if not client.ready(slots):
        role = next(iter(dead()), "taskmanager")
        log = _log(home, role)
        raise ServiceUnavailable(
            f"Flink's {role} did not start in {START_S:g} s, or ended. Last lines of {log}:\n{processes.tail(log)}"
        )


def _log(home: Path, role: str) -> Path:
    return home / "logs" / f"flink-{role}.log"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
