"""Many runs at once, each in one of a few processes: most of a run is waiting.

To repeat a seed, or to look for seeds that fail:

    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 17   # with all that is said of retries
    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 0-499 --fails 0.2 --kind push --workload windowcount

The same for a live job and its drivers (``driver_run``), of some ends of lives, faults and calls only:

    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 17 --driver
    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 0-499 --driver --ends kill --does die
"""

import argparse
import atexit
import faulthandler
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any

import driver_run
import one_run
from driver_shape import DOES, ENDS
from one_run import Outcome
from places import CALLS
from shape import KINDS, WORKLOADS

RUN_S = 300.0  # in which every run ends, by far


class Pool:
    """Processes that make runs; to be used with ``with``."""

    def __init__(self, processes: int | None = None) -> None:
        self._crashes = tempfile.TemporaryDirectory()
        self._pool = ProcessPoolExecutor(
            processes or 2 * (os.cpu_count() or 1),
            multiprocessing.get_context("spawn"),
            _begin_process,
            (self._crashes.name,),
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        """Processes do not end by themselves: servers wait there for clients that died with their driver."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
        self._crashes.cleanup()

    def submit(self, function: Any, *arguments: Any, **named: Any) -> "Future[Any]":
        """A function of a module, in one of the processes."""
        return self._pool.submit(function, *arguments, **named)

    def run(self, seeds: Iterable[int], of: Callable[..., Outcome] = one_run.run, **pinned: Any) -> Iterator[Outcome]:
        """The outcomes of these seeds, in their order; ``of``: ``one_run.run``, or that of ``driver_run``."""
        asked = [(seed, self.submit(of, seed, **pinned)) for seed in seeds]
        for seed, future in asked:
            try:
                yield future.result(RUN_S * len(asked))
            except TimeoutError:
                yield Outcome(seed, None, pinned, {"hangs": "no outcome"})
            except BrokenExecutor as error:
                raise RuntimeError(f"a process crashed: {self.crashes() or 'it left no trace'}") from error

    def crashes(self) -> str:
        """Where each process was that a signal ended."""
        return "\n".join(file.read_text() for file in sorted(Path(self._crashes.name).iterdir()))


def _begin_process(crashes: str) -> None:
    """What is tried again says so, and in these runs much is; and Flight's threads do not survive an orderly end.

    ``crashes``: the folder for where it was when it crashed.
    """
    faulthandler.enable(Path(crashes, str(os.getpid())).open("w"))  # noqa: SIM115 - for as long as the process lives
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    atexit.register(os._exit, 0)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=_seeds, nargs="+")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--workload", choices=WORKLOADS)
    parser.add_argument("--strategy")
    parser.add_argument("--ordering")
    parser.add_argument("--fails", type=float)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--driver", action="store_const", const=driver_run.run)
    for name, known in (("ends", ENDS), ("does", DOES), ("calls", CALLS)):
        parser.add_argument(f"--{name}", nargs="+", choices=sorted({*known}))
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    processes, seeds = given.pop("processes", None), [seed for some in given.pop("seeds") for seed in some]
    run = given.pop("driver", one_run.run)
    if len(seeds) == 1:
        sys.stdout.write(f"{run(*seeds, **given)}\n")
        sys.stdout.flush()
        os._exit(0)
    bad = []
    with Pool(processes) as pool:
        for outcome in pool.run(seeds, run, **given):
            if outcome.problems:
                bad.append(outcome.seed)
                sys.stdout.write(f"{outcome}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(seeds) - len(bad)} good, {len(bad)} bad: {bad}\n")


if __name__ == "__main__":
    main()
