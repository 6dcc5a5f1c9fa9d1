"""The front door for notebooks and the command line: services, jars and Spark, opened together and closed together."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from keyshift.endpoints import Endpoints
from keyshift.lab.jars import jars, require_java
from keyshift.lab.run import Lab
from keyshift.lab.spec import RunSpec
from keyshift.lab.stack import Stack


def tell(line: str) -> None:
    """Progress for people: standard error, above any progress bar."""
    tqdm.write(line, file=sys.stderr)


@contextmanager
def open_services(say: Callable[[str], None] = tell) -> Iterator[Endpoints]:
    """The embedded services; those that were down are stopped again at the end, if all were."""
    stack = Stack()
    mine = not stack.running()
    try:
        yield stack.up(say)
    finally:
        if mine:
            stack.down(say=say)


@contextmanager
def open_lab(specs: list[RunSpec], say: Callable[[str], None] = tell) -> Iterator[Lab]:
    """A lab in which each of ``specs`` can run. Raises KeyshiftError before anything is started if Java is missing."""
    require_java()
    with (
        open_services(say) as endpoints,
        Lab(
            endpoints,
            jars("spark", say),
            Stack().home,
            max(spec.cores for spec in specs),
            specs[0].master,
            say,
        ) as lab,
    ):
        yield lab
