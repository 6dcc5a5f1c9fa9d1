"""One lab for the runs of several files."""

import contextlib
from pathlib import Path

import faulty_daemon
from keyshift.lab.run import Lab
from keyshift.place.profile import SparkProfile
from keyshift.services.jars import jars
from keyshift.services.stack import Stack


class SharedLab:
    """The first run of a Spark takes three times the CPU of the next ones, so each worker of pytest has one Spark.

    It is for runs of up to six routers and slots. There are cores for two queries: a slow machine still ends the tasks
    of one that died when the next one begins. Its slots have the fault that is named in ``fault_file``, if that is
    there, and its services may be hit.
    """

    def __init__(self, stack: Stack, home: Path) -> None:
        self.fault_file = home / "fault"
        self._stack, self._home, self._opened = stack, home, contextlib.ExitStack()
        self._lab: Lab | None = None

    def open(self) -> Lab:
        """The lab, started if it is not there."""
        if self._lab is None:
            conf = {
                "spark.python.daemon.module": faulty_daemon.__name__,
                "spark.executorEnv.PYTHONPATH": str(Path(faulty_daemon.__file__).parent),
                f"spark.executorEnv.{faulty_daemon.VARIABLE}": str(self.fault_file),
            }
            place, endpoints = SparkProfile(conf=conf), self._stack.endpoints()
            made = Lab(endpoints, jars("spark"), self._home, 12, lambda line: None, place, self._stack)
            self._lab = self._opened.enter_context(made)
        return self._lab

    def close(self) -> None:
        """A process has one Spark at a time: a test that starts one of its own closes this one first."""
        self._lab = None
        self._opened.close()
