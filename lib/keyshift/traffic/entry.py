"""The inside of a process of ours, as the generator: configuration and commands come in line by line, reports go out.

The end of standard input means stop, so none outlives the process that started it. An error that it cannot get
over is one line on standard error and exit status 1.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kafka.errors import KafkaError
from pydantic import BaseModel, ConfigDict, ValidationError

from keyshift.model.errors import KeyshiftError
from keyshift.model.messages import decode
from keyshift.refusals import refusal
from keyshift.traffic.messages import Stop, TrafficCommand
from keyshift.traffic.process import keep_reports_apart
from keyshift.traffic.topics import Topic
from keyshift.workloads import Workload, model_of

C = TypeVar("C", bound=BaseModel)


class TrafficConfig(BaseModel):
    """What a generator or a collector is told first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: Topic
    workload: str
    parameters: dict[str, Any]
    parcel: str = ""  # of a workload that the library does not have
    trace: str = ""  # a folder, see ``keyshift.trace``; empty: no trace
    lines: bool = False  # one event or result per record, see ``traffic.lines``; else frames

    def make_workload(self) -> Workload:
        """The workload with its parameters. Raises BadInput or ValidationError."""
        return model_of(self.workload, self.parcel)(**self.parameters)


class CommandLines:
    """Lines of standard input, read by a thread of its own: a configuration, then commands of these ``kinds``."""

    def __init__(self, kinds: Any = TrafficCommand) -> None:
        self._kinds = kinds
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Unbuffered: the interpreter could not take the lock of a buffered reader away from this thread when it exits.
        try:
            with open(0, "rb", buffering=0, closefd=False) as raw:
                for line in raw:
                    self._lines.put(line)
        finally:
            self._lines.put(b"")

    def config(self, kind: type[C]) -> C:
        """Give the configuration, which comes first. Raises ValidationError."""
        config: C = decode(kind, self._lines.get())
        return config

    def next(self, timeout_s: float) -> Any:
        """The next command, or None if there is none within ``timeout_s``. Raises ValidationError if it is none."""
        try:
            line = self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
        except queue.Empty:
            return None
        return decode(self._kinds, line) if line else Stop()


def run(config_type: type[C], body: Callable[[C, CommandLines], None], kinds: Any = TrafficCommand) -> None:
    """Run ``body`` and exit; what Ctrl-C and the end of the terminal mean is up to who has started this process.
    ``kinds``: of its commands.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep_reports_apart()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters of it is raised, and ends in one line
    gc.collect()
    gc.freeze()  # what was imported is looked through no more: it took 76 ms, in which no event was sent
    commands = CommandLines(kinds)
    status = 1
    try:
        body(commands.config(config_type), commands)
        status = 0
    except ValidationError as error:  # without values: credentials are among them
        sys.stderr.write(f"{error.title}: {refusal(error.errors(include_input=False))}\n")
    except (KeyshiftError, KafkaError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()
    # Not sys.exit: kafka-python's threads may wait for a broker that is gone, and nothing is left to be written.
    os._exit(status)
