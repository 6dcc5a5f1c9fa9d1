"""Progress for people: lines on standard error, or in a notebook one line that is overwritten in place."""

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tqdm import tqdm

Say = Callable[[str], None]
DISPLAY = "keyshift-progress-"  # how the ids of such lines begin, for who executes a notebook and shows them elsewhere


def silent(line: str) -> None:
    """A ``say`` that drops the line."""


def tell(line: str) -> None:
    """Print one line on standard error, above any progress bar; none if the terminal is gone."""
    with suppress(OSError):
        tqdm.write(line, file=sys.stderr)


@contextmanager
def progress(say: Say | None = None) -> Iterator[Say]:
    """Send progress to ``say``, else in a notebook to one line that is empty in the end, else to ``tell``."""
    if say is not None or not _in_notebook():
        yield say or tell
        return
    from IPython.display import display

    shown = display({"text/plain": ""}, raw=True, display_id=f"{DISPLAY}{uuid.uuid4().hex}")
    assert shown is not None  # there is one for whoever gives an id
    try:
        yield lambda line: shown.update({"text/plain": line}, raw=True)
    finally:
        shown.update({"text/plain": ""}, raw=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # a notebook has imported it; to import it takes longer than most commands
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
