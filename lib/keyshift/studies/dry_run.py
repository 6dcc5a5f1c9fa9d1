"""What a notebook or a batch of it needs, and how long a batch will take, without starting anything.

The cells of the notebook are executed up to the first one that would start a run, so that what is told is what the
notebook asks for, and what is refused is refused by what every start asks.
"""

import ast
import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from pydantic import ValidationError

from keyshift.lab.environment import Asked, NotStarted, nothing_starts, require_fit
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.needs import OF_A_SEARCH, Needs, Resources, executors, kept_bytes, needs_of, services, size
from keyshift.place.profile import load_profile
from keyshift.results.files import Files
from keyshift.services.jars import require_java
from keyshift.studies.batch import ExecutionRecord, PreparedBatch, counted, ended

# Of ``keyshift.suite``: behind the last cell that names one of these, a notebook starts nothing.
STARTS = {
    *("measure", "measure_beside_engines", "measure_beside_plain", "measure_highest_rates"),
    *("measure_rates_beside_engines", "open_lab", "play", "start_job"),
}


class Untold(BadInput):
    """A cell before the runs of a notebook fails, so that nobody knows what it would start. It may do so only here, as
    one that asks a service, or has a magic of IPython.
    """


def startable(notebook: Path, parameters: Mapping[str, Any], resources: Resources) -> Asked:
    """Find out what ``notebook`` would start with these ``parameters``. Raises as ``asked_of``, and KeyshiftError if
    this machine, with its ``resources``, cannot start it.
    """
    asked = asked_of(notebook, parameters)
    if asked.specs:
        require_java()
    for spec in (*asked.specs, *asked.jobs):
        require_fit(spec, asked.place, resources)
    return asked


def asked_of(notebook: Path, parameters: Mapping[str, Any]) -> Asked:
    """Find out what ``notebook`` would start with these ``parameters``; no runs if it starts none.

    A notebook that imports nothing of STARTS is not executed. Behind the first start, which leaves nothing here, only
    cells are that name another one: they may need what cells before it left. Raises KeyshiftError as the notebook
    would, and Untold if a cell before the runs, or one of these, fails otherwise, or for want of a service.
    """
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    found: list[Asked] = []
    names: dict[str, Any] = {"__name__": "__main__", "display": lambda *_, **__: None}
    try:
        starting = _starting([cell.source for cell in cells])
        with nothing_starts(), contextlib.chdir(notebook.parent), contextlib.redirect_stdout(io.StringIO()):
            for number, cell in enumerate(cells[: max(starting, default=-1) + 1]):
                if not found or number in starting:
                    try:
                        exec(compile(cell.source, notebook.name, "exec"), names)
                    except NotStarted as instead:
                        found.append(instead.asked)
                if "parameters" in cell.metadata.get("tags", []):
                    names |= deepcopy(dict(parameters))  # whose lists cells may change
    except (Exception, SystemExit) as error:
        if isinstance(error, KeyshiftError) and not isinstance(error, ServiceUnavailable):
            raise
        raise Untold(f"{notebook.name}: what it needs cannot be told, {type(error).__name__}: {error}") from error
    return reduce(_both, found) if found else Asked((), load_profile())


def _both(one: Asked, other: Asked) -> Asked:
    """Join what is asked for one after the other, in the place of the first."""
    also = tuple(dict.fromkeys((*one.also, *other.also)))
    largest = max(one.verdict_bytes, other.verdict_bytes)
    load_s, searched = one.load_s + other.load_s, one.searched or other.searched
    specs, jobs = (*one.specs, *other.specs), (*one.jobs, *other.jobs)
    return Asked(specs, one.place, also, load_s, largest, searched, jobs)


def _starting(sources: Sequence[str]) -> list[int]:
    """The numbers of the cells that import one of STARTS, name it once more behind that, or may do so, as what is below
    the magic of a whole cell.
    """
    found, names = list[int](), set[str]()
    for number, source in enumerate(sources):
        if source.lstrip().startswith("%%"):
            here = any(name in source for name in ("keyshift.suite", *names))
        else:
            nodes = [*ast.walk(ast.parse(TransformerManager().transform_cell(source)))]
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "keyshift.suite"]
            imported = {each.asname or each.name for node in imports for each in node.names if each.name in STARTS}
            names |= imported
            here = bool(imported or names & {node.id for node in nodes if isinstance(node, ast.Name)})
        found += [number] * here
    return found


class Estimate(NamedTuple):
    """``seconds``, found from ``of`` earlier executions of the same set; 0: from the parameters, and of load alone."""

    seconds: float
    of: int


def estimate(loads_s: Sequence[float], earlier: Sequence[tuple[float, float]]) -> Estimate:
    """Estimate how long executions take whose runs have so many seconds of load each.

    ``earlier``: load of other executions of the set, and what they took, both in seconds. They took a multiple of their
    load, whose median counts: executions of one set may have ten times the load of others. Where there is no load, as
    in a notebook without runs, all are alike.
    """
    if not earlier:
        return Estimate(sum(loads_s), 0)
    if all(loads_s) and all(load_s for load_s, _ in earlier):
        return Estimate(sum(loads_s) * median(took_s / load_s for load_s, took_s in earlier), len(earlier))
    return Estimate(len(loads_s) * median(took_s for _, took_s in earlier), len(earlier))


@dataclass(frozen=True)
class Forecast:
    """What a batch needs, and how long it takes. ``runs``, ``estimate`` and ``needs`` are of executions that are to do
    and possible here; ``refused`` says which are not, by the reason, and ``untold`` of which nobody knows their runs
    and needs, which are in the estimate alone. ``read``: whether records of earlier executions could be read.
    ``kept_bytes``: what a notebook has of all its runs when it ends, in the largest execution, about. ``searched``:
    whether some search the highest rate.
    """

    batch: str
    notebook: str
    executions: int
    to_do: int
    runs: int
    estimate: Estimate
    needs: Needs
    executors: str
    services: list[str]
    refused: dict[str, list[int]]
    untold: dict[str, list[int]]
    read: bool
    kept_bytes: int
    searched: bool

    def row(self) -> dict[str, Any]:
        """The forecast for programs."""
        told = asdict(self)
        needs, (seconds, of) = told.pop("needs"), told.pop("estimate")
        return told | {"seconds": round(seconds, 1), "from_earlier": of} | needs

    def lines(self) -> Iterator[str]:
        """The forecast for people."""
        about = f"batch {self.batch}: {counted(self.executions, 'execution')} of {self.notebook}, {self.to_do} to do"
        yield f"{about}, with {'at least ' if self.untold else ''}{counted(self.runs, 'run')}{self._duration()}"
        if self.runs:
            cores = f"{self.needs.cores} cores of Spark (tasks at once)"
            memory = f"{size(self.needs.memory)} of memory before the first event"
            verdict = f"about {size(self.needs.verdict_bytes)} more in the driver for a verdict"
            verdict += " on a run that is no search" if self.searched else ""
            kept = f"{size(self.kept_bytes)} for the latencies of all runs of an execution"
            yield f"  needs {cores}, {memory}, {verdict} and {kept}; {self.executors}"
            yield f"  services: {', '.join(self.services)}"
        if self.searched:
            yield f"  {OF_A_SEARCH}"
        for reason, numbers in self.refused.items():
            yield f"  cannot run here, execution {', '.join(map(str, numbers))}: {reason}"
        for reason, numbers in self.untold.items():
            yield f"  execution {', '.join(map(str, numbers))}: {reason}"

    def _duration(self) -> str:
        seconds, of = self.estimate
        if not self.to_do:
            return ""
        if of:
            return f"; about {duration(seconds)}, from what {counted(of, 'execution')} of this set took"
        why = "none of this set has ended well yet" if self.read else "records of earlier ones were not read"
        if not seconds:
            return f"; nobody knows how long ({why})"
        return f"; about {duration(seconds)} of load by the parameters ({why}), starts and verdicts on top"


def total(batches: Sequence[Forecast]) -> str:
    """Total of batches, one after the other, in words. What is known of load alone counts as that: so it is least."""
    to_do, runs = (sum(getattr(batch, name) for batch in batches) for name in ("to_do", "runs"))
    least = sum(batch.estimate.seconds for batch in batches)
    some = "at least " if any(batch.untold for batch in batches) else ""
    return (
        f"in all {counted(len(batches), 'batch', 'batches')}: {counted(to_do, 'execution')} to do, with "
        f"{some}{counted(runs, 'run')}; {duration(least)} at the least"
    )


def duration(seconds: float) -> str:
    """A time in the unit that people would take."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def forecast(prepared: PreparedBatch, records: Files | None, resources: Resources, again: bool = False) -> Forecast:
    """Forecast what ``run_batch`` would do, and need. ``records``: of earlier executions, None if they cannot be read.

    Executions that failed are no measure: they may have ended early.
    """
    name, executions = prepared.batch.name, prepared.executions
    done = ended(prepared, records) if records and not again else {}
    open_ones = [each for each in executions if each.id not in done or done[each.id].status == "failed"]
    possible: dict[str, Asked] = {}
    refused, untold = dict[str, list[int]](), dict[str, list[int]]()
    for execution in executions:
        try:
            possible[_key(execution.parameters)] = startable(prepared.notebook, execution.parameters, resources)
        except KeyshiftError as error:
            reasons = refused
            if isinstance(error, Untold):  # what fails here may do well in a kernel
                reasons, possible[_key(execution.parameters)] = untold, Asked((), load_profile())
            if execution in open_ones:
                reasons.setdefault(str(error), []).append(execution.number)
    to_do = [possible[key] for each in open_ones if (key := _key(each.parameters)) in possible]
    earlier = _took(records, prepared) if records else []
    known = [(possible[key].load_s, took_s) for key, took_s in earlier if key in possible]
    specs = [spec for each in to_do for spec in each.specs]
    # The profile may be a parameter that varies.
    places = [*{repr(each.place): each.place for each in to_do if each.specs}.values()] or [load_profile()]
    needed = [_needs(each for each in to_do if each.place == place) for place in places]
    together = max((each.verdict_bytes for each in to_do), default=0)  # of all that is judged at once, not of a run
    needs = replace(reduce(or_, needed), verdict_bytes=together)
    return Forecast(
        name,
        prepared.notebook.name,
        len(executions),
        len(open_ones),
        sum(spec.run.repetitions for spec in specs),
        estimate([each.load_s for each in to_do], known),
        needs,
        "; or ".join(map(executors, places, needed)),
        services(places[0], needs, tuple(dict.fromkeys(also for each in to_do for also in each.also))),
        refused,
        untold,
        records is not None,
        max((sum(map(kept_bytes, each.specs)) for each in to_do), default=0),
        any(each.searched for each in to_do),
    )


def _needs(asked: Iterable[Asked]) -> Needs:
    return reduce(or_, (needs_of(spec) for each in asked for spec in (*each.specs, *each.jobs)), Needs())


def _key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


def _took(records: Files, prepared: PreparedBatch) -> Iterator[tuple[str, float]]:
    """Parameters and seconds of each execution of this set that has not failed, also with an earlier notebook."""
    name = prepared.batch.name
    for file in records.names(name):
        if file.endswith(".json"):
            with contextlib.suppress(ValidationError, BadInput):  # of an older keyshift; damaged, or forgotten by now
                record = ExecutionRecord.model_validate_json(records.read(name, file))
                if record.notebook == prepared.notebook.name and record.status != "failed":
                    yield _key(record.parameters), 60 * record.minutes
