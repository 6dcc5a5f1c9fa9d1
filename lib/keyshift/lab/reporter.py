"""What is shown of a run while it goes on: a line per second, and a bar for the time of the load."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from keyshift.model.notes import Activity, Doing
from keyshift.model.records import Second
from keyshift.progress import Say


class Reporter:
    """Shows a run. It shows nothing until ``bar`` is entered; a line has what is being done."""

    def __init__(self, say: Say) -> None:
        self.say, self.doing = say, Doing(Activity.WARMING_UP)
        self._bar: Any = None

    def enter(self, doing: Doing) -> None:
        """Show from now on that ``doing`` is done."""
        self.doing = doing

    @contextmanager
    def bar(self, seconds: float, title: str) -> Iterator[None]:
        """Show a bar for ``seconds``: inside, the load is offered."""
        with tqdm(total=round(seconds), unit="s", desc=title, leave=False, disable=None) as self._bar:
            yield

    def second(self, second: Second) -> None:
        """Show what came out in a second."""
        bar = self._bar
        if bar is None:
            return
        bar.update(min(1, bar.total - bar.n))
        values = [f"{second.results:6d} results/s"]
        values += [f"{q} {ms:7.1f} ms" for q, ms in (("p50", second.p50_ms), ("p99", second.p99_ms)) if ms is not None]
        self.say(f"  {'  '.join(values)}  {self.doing}")
