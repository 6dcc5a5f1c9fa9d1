"""Many runs at once, each in one of a few processes: most of a run is waiting.

To repeat a seed, or to look for seeds that fail:

    PYTHONPATH=lib:tests .venv/bin/python tests/harness/many_runs.py 17   # with all that is said of retries
    PYTHONPATH=lib:tests .venv/bin/python tests/harness/many_runs.py 0-499 --fails 0.2 --workload windowcount

The same for a live job and its drivers (``driver_run``), of some ends of lives, faults and calls only:

    PYTHONPATH=lib:tests .venv/bin/python tests/harness/many_runs.py 17 --driver
    PYTHONPATH=lib:tests .venv/bin/python tests/harness/many_runs.py 0-499 --driver --ends kill --does die
"""

import argparse
import faulthandler
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, TimeoutError
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import driver_run
import one_run
from driver_shape import DOES, ENDS
from one_run import Outcome
from pebble import ProcessExpired, ProcessPool
from places import CALLS
from shape import KINDS, WORKLOADS

RUN_S = 300.0  # in which every run ends, by far
IMPORTED = ["keyshift.control.process"]  # with nearly all that a run needs


class Pool:
    """Processes that make runs; to be used with ``with``. Each makes one, so that a run that is bad, hangs or crashes
    changes no other one. What takes long to import is imported once, in the process from which they are forked.
    """

    def __init__(self, processes: int | None = None) -> None:
        self._crashes = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._pool = ProcessPool(
            processes or 2 * (os.cpu_count() or 1),
            max_tasks=1,
            initializer=_begin_process,
            initargs=(self._crashes.name,),
            context=context,
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()
        self._pool.join()
        self._crashes.cleanup()

    def submit(self, function: Any, *arguments: Any, seconds: float = RUN_S, **named: Any) -> "Future[Any]":
        """A function of a module, in a process that is ended if it takes more ``seconds``."""
        return self._pool.schedule(function, arguments, named, seconds)

    def run(self, seeds: Iterable[int], of: Callable[..., Outcome] = one_run.run, **pinned: Any) -> Iterator[Outcome]:
        """The outcomes of these seeds, in their order; ``of``: ``one_run.run``, or that of ``driver_run``.

        The runs begin now, whoever asks for their outcomes when.
        """
        return self._outcomes([(seed, self.submit(of, seed, **pinned)) for seed in seeds], pinned)

    def _outcomes(self, asked: "list[tuple[int, Future[Any]]]", pinned: dict[str, Any]) -> Iterator[Outcome]:
        for seed, future in asked:
            try:
                yield future.result()
            except TimeoutError:
                yield Outcome(seed, None, pinned, {"hangs": f"no outcome within {RUN_S:g} s"})
            except ProcessExpired as error:
                yield Outcome(seed, None, pinned, {"crash": Path(self._crashes.name, str(error.pid)).read_text()})


def _begin_process(crashes: str) -> None:
    """What is tried again says so, and in these runs much is; and Flight's threads do not survive an orderly end.

    ``crashes``: the folder for where it was when it crashed.
    """
    faulthandler.enable(Path(crashes, str(os.getpid())).open("w"))  # noqa: SIM115 - for as long as the process lives
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    Finalize(None, os._exit, (0,), exitpriority=0)


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
    parser.add_argument("--slots-per-process", type=int)
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
