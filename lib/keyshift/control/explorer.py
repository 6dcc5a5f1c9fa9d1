"""Buttons and a live picture for a job in the background, in JupyterLab.

A press is answered by a thread of its own, so the page never waits; what the job refuses is shown in one line.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from html import escape
from typing import Any, ClassVar

import ipywidgets as widgets
from IPython.display import Image, display

from keyshift.analysis.plots.live import LiveFigure
from keyshift.control.watched import LOOK_S, WatchedJob
from keyshift.experiment.commands import COMMANDS, Command, command
from keyshift.experiment.parts import AUTO, RunPart
from keyshift.lab.live.status import Status
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.planner import strategies
from keyshift.registry import named_values
from keyshift.workloads import workloads


class Explorer:
    """The page with buttons and a picture. ``values``: of the job that is started, where nothing else was chosen.

    Shows the job of this name at once if it runs, else how it ended. ``looking``: whether a thread looks at it. Raises
    BadInput for an unknown workload or strategy.
    """

    _watching: ClassVar[dict[str, "Explorer"]] = {}  # by job: a cell that runs again makes another page

    def __init__(self, job: WatchedJob, values: Mapping[str, Any]) -> None:
        workloads.get(values["workload"])  # in words that a list of choices does not have
        strategies.get(values["strategy"])
        self.job, self._values = job, dict(values)
        self.looking = False
        self._busy = threading.Lock()  # while the job starts or stops
        self._workload = widgets.Dropdown(options=workloads.names(), value=values["workload"], description="workload")
        self._strategy = widgets.Dropdown(options=strategies.names(), value=values["strategy"], description="strategy")
        self._rate = widgets.Text(value=str(values["rate"]), description="events/s", continuous_update=False)
        self._start = self._button("start", "success", self._begin)
        self._stop = self._button("stop", "danger", self._end)
        self._asks = {verb: self._button(verb, "", partial(self._ask, verb)) for verb in COMMANDS}
        self._given = {verb: self._fields(kind) for verb, kind in COMMANDS.items()}
        self._status, self._said = widgets.HTML(), widgets.HTML()
        self._picture = widgets.Image(format="png")
        first = widgets.HBox([self._workload, self._strategy, self._rate, self._start, self._stop])
        rows = [widgets.HBox([button, *self._given[verb].values()]) for verb, button in self._asks.items()]
        self._page = widgets.VBox([first, *rows, self._status, self._said, self._picture])

    def show(self) -> None:
        """Show the page in the output of the cell."""
        self.say(self.job.how())
        self._enable()
        display(self._page)
        if self.job.runs:
            self._watch()

    def say(self, line: str) -> None:
        """Show one line below the buttons."""
        self._said.value = escape(line)

    def _button(self, name: str, style: str, act: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=name, button_style=style)
        button.add_class(f"keyshift-{name}")
        button.on_click(lambda _: threading.Thread(target=self._answered, args=(act,), daemon=True).start())
        return button

    def _answered(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KeyshiftError as error:
            self.say(str(error))
        finally:
            self._enable()

    def _enable(self) -> None:
        runs = self.job.runs
        self._start.disabled = runs
        for button in (self._stop, *self._asks.values()):
            button.disabled = not runs

    def _alone(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise BadInput("the job starts or stops already")

    def _begin(self) -> None:
        self._alone()
        try:
            self._start.disabled = True
            chosen = {"workload": self._workload, "strategy": self._strategy, "rate": self._rate}
            given = named_values(f"{name}={widget.value}" for name, widget in chosen.items())
            self.job.start(self._values | given, self.say)
        finally:
            self._busy.release()
        self.say(self.job.how())
        self._watch()

    def _fields(self, kind: type[Command]) -> dict[str, widgets.ValueWidget]:
        """Make an input for each field of a command, but for settings, which are for the command line."""
        likely = {"slots": self._values["slots_max"], "target": self._values["slots_max"], "strategy": "matched"}
        likely |= {"rate": RunPart().rate if self._values["rate"] == AUTO else self._values["rate"]}
        made = {}
        for name, field in kind.model_fields.items():
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            shown = {"value": str(likely.get(name, "" if default is None else default)), "description": name}
            if name == "strategy":
                made[name] = widgets.Dropdown(options=strategies.names(), **shown)
            elif name != "settings":
                made[name] = widgets.Text(placeholder=field.description or "", continuous_update=False, **shown)
        return made

    def _ask(self, verb: str) -> None:
        written, fields = self._given[verb].items(), COMMANDS[verb].model_fields
        # Nothing was written means None, and not another default, such as a fault.
        given = {name: widget.value for name, widget in written if widget.value or fields[name].default is not None}
        wanted = command(verb, given)
        self.job.do(wanted)
        self.say(str(wanted))

    def _end(self) -> None:
        self._alone()
        try:
            self.job.stop(self.say)
        finally:
            self._busy.release()
        self.say(self.job.how())

    def _watch(self) -> None:
        """Start a thread that looks until the job has ended, wherever it is stopped, or another page looks at it."""
        self._watching[self.job.name] = self
        if not self.looking:
            self.looking = True
            threading.Thread(target=self._look_on, daemon=True).start()

    def _look_on(self) -> None:
        history = self.job.history
        figure = LiveFigure(history)
        try:
            while self._watching[self.job.name] is self and self.job.runs:
                if self.job.history is not history:  # another one was started since the last look
                    history = self.job.history
                    figure = LiveFigure(history)
                begin = time.monotonic()
                self._status.value = f"<pre>{escape(line_of(self.job.look()))}</pre>"
                self._picture.value = figure.png()
                time.sleep(max(0.1, LOOK_S - (time.monotonic() - begin)))
        except KeyshiftError:  # it has ended between two looks
            pass
        finally:
            self.looking = False
        if self._watching[self.job.name] is not self:
            return
        if not self._busy.locked():  # nobody here has stopped it
            self.say(self.job.how())
        self._enable()


def live_picture() -> Callable[[WatchedJob], None]:
    """Give what ``play`` takes: a picture in the output of the cell, which is drawn anew for each look at a job."""
    place = display({"text/plain": ""}, raw=True, display_id=True)
    figure_of = cache(LiveFigure)

    def show(job: WatchedJob) -> None:
        place.update(Image(figure_of(job.history).png()))

    return show


def line_of(status: Status) -> str:
    """A status in one line."""
    if not status["stages"]:
        return str(status["state"])
    owners = ", ".join(f"{name}: {stage['slots']} slots" for name, stage in status["stages"].items())
    numbers = [f"{status['running_s']:.0f} s", status["activity"], f"{status['rate']:g} events/s offered"]
    numbers.append(f"{status['results_per_s']} results/s")
    if status["p99_ms"] is not None:
        numbers.append(f"P50 {status['p50_ms']:.0f} ms, P99 {status['p99_ms']:.0f} ms")
    return " | ".join([*numbers, owners, f"deaths {status['deaths']}"])
