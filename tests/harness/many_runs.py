"""Many runs at once, each in one of a few processes: most of a run is waiting.

To repeat a seed, or to look for seeds that fail:

    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 17                 # what failed, with every trouble
    PYTHONPATH=lib .venv/bin/python tests/harness/many_runs.py 0 500 --fails 0.2 --kind push --workload windowcount
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError
from typing import Any

import one_run
from one_run import Outcome
from shape import KINDS, WORKLOADS, draw

RUN_S = 120.0  # in which every run ends, by far


class Pool:
    """Processes that make runs; to be used with ``with``."""

    def __init__(self, processes: int | None = None) -> None:
        self._pool = ProcessPoolExecutor(
            processes or 2 * (os.cpu_count() or 1), multiprocessing.get_context("spawn"), _be_quiet
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, function: Any, *arguments: Any, **named: Any) -> "Future[Any]":
        """A function of a module, in one of the processes."""
        return self._pool.submit(function, *arguments, **named)

    def run(self, seeds: Iterable[int], **pinned: Any) -> Iterator[Outcome]:
        """The outcomes of these seeds, in their order; see ``one_run.run``."""
        asked = [(seed, self.submit(one_run.run, seed, **pinned)) for seed in seeds]
        for seed, future in asked:
            try:
                yield future.result(RUN_S * len(asked))
            except TimeoutError:
                yield Outcome(seed, draw(seed, **pinned), pinned, {"hangs": "no outcome"})


def _be_quiet() -> None:
    """What is tried again says so, and in these runs much is."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("behind", type=int, nargs="?", help="the first seed that is not run")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--workload", choices=WORKLOADS)
    parser.add_argument("--strategy")
    parser.add_argument("--fails", type=float)
    parser.add_argument("--processes", type=int)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    first, behind, processes = given.pop("first"), given.pop("behind", None), given.pop("processes", None)
    if behind is None:
        sys.stdout.write(f"{one_run.run(first, **given)}\n")
        os._exit(0)
    bad = []
    with Pool(processes) as pool:
        for outcome in pool.run(range(first, behind), **given):
            if outcome.problems:
                bad.append(outcome.seed)
                sys.stdout.write(f"{outcome}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{behind - first - len(bad)} good, {len(bad)} bad: {bad}\n")


if __name__ == "__main__":
    main()
