"""A batch: one notebook executed with many sets of parameters, one after the other; a restart goes on where it was.

An execution is known by a hash of the notebook's code, its parameters and the number of the repetition. When it has
ended, a record of it is put into the store, so a restart executes only what has no record yet, or failed.
"""

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import nbformat
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from tqdm import tqdm

from keyshift.folders import locked
from keyshift.model.errors import BadInput
from keyshift.objects import await_answer
from keyshift.place.profile import located
from keyshift.place.yaml_file import read_yaml
from keyshift.progress import silent
from keyshift.refusals import refusal
from keyshift.registry import unknown
from keyshift.results.anonymous import anonymous
from keyshift.results.files import Files
from keyshift.results.store import ResultStore
from keyshift.studies import notebook as notebooks

PREFIX = "batches"  # of the files of all batches
WITHOUT = "without --again if it had that"  # else it would begin anew
MAX_EXECUTIONS = 10_000  # at a minute each, a week; more is a typing error, surely
Execute = Callable[[Path, dict[str, Any], Path], notebooks.Executed]
WithStore = Callable[[], AbstractContextManager[object]]


class Batch(BaseModel):
    """The content of a batch file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern="^[a-z0-9-]+$", description="the batch's name: lower-case letters, digits and '-'")
    notebook: str = Field(description="a notebook beside the batch file, or in the notebooks folder")
    parameters: dict[str, JsonValue] = Field({}, description="parameters of every execution")
    grid: dict[str, Annotated[list[JsonValue], Field(min_length=1)]] = Field(
        {}, min_length=1, description="a list of values for each parameter; every combination is executed"
    )
    points: list[dict[str, JsonValue]] = Field(
        [], alias="list", min_length=1, description="sets of parameters, each executed beside those of the grid"
    )
    repetitions: int = Field(1, ge=1, le=1000, description="executions of each set of parameters")
    on_failure: Literal["continue", "stop"] = Field("continue", description="what happens after a failed execution")

    def sets(self) -> Iterator[dict[str, Any]]:
        """The sets of parameters: combinations of the grid, then those of the list; ``parameters`` alone if neither."""
        if self.grid or not self.points:
            for values in itertools.product(*self.grid.values()):
                yield self.parameters | dict(zip(self.grid, values, strict=True))
        for point in self.points:
            yield self.parameters | point


@dataclass(frozen=True, slots=True)
class NotebookExecution:
    """One set of parameters, once. ``number`` counts from 1, as people do."""

    number: int
    parameters: dict[str, Any]
    repetition: int
    id: str


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that was checked, and the executions it consists of."""

    batch: Batch
    notebook: Path
    executions: list[NotebookExecution]
    varying: list[str]
    code: list[str]  # of the notebook, by which executions are known

    def varied(self, execution: NotebookExecution) -> dict[str, Any]:
        """Those parameters of ``execution`` that are not the same in all; None for one that it leaves out."""
        values = {name: execution.parameters.get(name) for name in self.varying}
        return values | ({"repetition": execution.repetition} if self.batch.repetitions > 1 else {})


class ExecutionRecord(BaseModel):
    """The record of an execution that has ended. ``copy_at`` is the path of the executed notebook in the bucket.
    ``profile``: that of its place by name; empty if it is older than that.
    """

    batch: str
    notebook: str
    parameters: dict[str, JsonValue]
    repetition: int
    status: Literal["ok", "bad", "failed"]
    verdicts: dict[str, str]  # by run id
    error: str | None
    copy_at: str | None
    started_at: datetime
    finished_at: datetime
    profile: str = ""

    @property
    def minutes(self) -> float:
        """How long it took."""
        return (self.finished_at - self.started_at).total_seconds() / 60

    @property
    def reason(self) -> str:
        """The first line of the error; empty if there is none."""
        return (self.error or "").strip().partition("\n")[0]

    @property
    def verdict(self) -> str | None:
        """The verdicts in words, such as "2 ok, 1 bad"; None if the notebook made no run."""
        found = list(self.verdicts.values())
        return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in dict.fromkeys(found)) or None


def load_batch(file: Path, name: str = "") -> Batch:
    """Read a batch file. ``name``: see ``prepare``. Raises BadInput, one line, naming the value and what is allowed."""
    raw = read_yaml(f"batch file {str(file)!r}", file)
    if not isinstance(raw, dict):
        raise BadInput(f"batch file {str(file)!r}: expected `name: …`, `notebook: …` and what varies")
    try:
        return Batch.model_validate(raw | ({"name": name} if name else {}))
    except ValidationError as error:
        raise BadInput(f"{file.name}: {refusal(error.errors(), Batch)}") from None


def prepare(file: Path, folder: Path, name: str = "") -> PreparedBatch:
    """Read a batch file and check all that can be checked without executing anything.

    ``folder`` is where notebooks are that are not beside the file. ``name``: that of the batch, in place of the file's.
    Raises BadInput, one line: for the file itself, a notebook that is not there, a parameter that it does not have or
    of another kind, and sets that are the same.
    """
    batch = load_batch(file, name)
    grid = math.prod(len(values) for values in batch.grid.values()) if batch.grid else 0
    count = max(1, grid + len(batch.points)) * batch.repetitions
    if count > MAX_EXECUTIONS:
        raise BadInput(f"{file.name}: {count} executions; at most {MAX_EXECUTIONS}: shorten grid or repetitions")
    try:
        notebook = _find(batch.notebook, [file.parent, folder])
        sets = notebooks.checked_parameters(notebook, *batch.sets())
    except BadInput as refused:
        raise BadInput(f"{file.name}: {refused}") from None
    names = list(dict.fromkeys(name for values in sets for name in values))
    code = _code(notebook)
    executions: dict[str, NotebookExecution] = {}
    # Repetitions of a set are as far from each other as can be: what the machine does for a while hits all sets alike.
    for number, (repetition, parameters) in enumerate(itertools.product(range(1, batch.repetitions + 1), sets), 1):
        content = json.dumps([code, parameters, repetition], sort_keys=True)
        execution = NotebookExecution(number, parameters, repetition, sha256(content.encode()).hexdigest()[:16])
        point = json.dumps(json.loads(content, parse_float=_number))
        if same := executions.get(point):
            raise BadInput(
                f"{file.name}: executions {same.number} and {number} have the same parameters "
                f"({words(parameters) or 'none'}): leave one out, or use `repetitions`"
            )
        executions[point] = execution
    varying = [n for n in names if any(n not in values or values[n] != sets[0].get(n) for values in sets)]
    return PreparedBatch(batch, notebook, list(executions.values()), varying, code)


def _code(notebook: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def _number(text: str) -> int | float:
    """Read a number: 1000.0 is 1000."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _find(name: str, folders: list[Path]) -> Path:
    for folder in folders:
        if os.path.isfile(folder / name):  # not of Path, which raises for a name that is too long
            return folder / name
    there = [path.relative_to(folder).as_posix() for folder in folders for path in sorted(folder.rglob("*.ipynb"))]
    near = [path for path in there if Path(path).name == Path(name).name] or get_close_matches(name, there, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise BadInput(f"notebook = {name!r}: there is no such file in {' or '.join(map(str, folders))}{hint}")


def files_of(folder: Path, kinds: str) -> list[Path]:
    """The batch files below ``folder`` of a kind (smoke, small, paper …), or of several with commas between them, one
    kind behind the other. Raises BadInput for one of which there are none, or that is named twice.
    """
    named = {path: path.stem.rpartition("-")[2] for path in sorted(folder.rglob("*.yaml")) if "-" in path.stem}
    if not named:
        raise BadInput(f"--all {kinds}: no sets are below {folder}; go to the folder of the repository")
    wanted: list[str] = []
    for kind in kinds.split(","):
        if kind not in named.values():
            raise unknown(f"kind of sets below {folder.name}/", kind, sorted(set(named.values())))
        if kind in wanted:
            raise BadInput(f"--all {kinds}: {kind} is there twice; leave one out")
        wanted.append(kind)
    return [path for kind in wanted for path, of in named.items() if of == kind]


@contextmanager
def alone(batches: Sequence[PreparedBatch], home: Path) -> Iterator[None]:
    """Inside, let no other process with the state folder ``home`` execute one of them, or forget what it has executed.

    Raises ServiceUnavailable, naming both, if one does.
    """
    with ExitStack() as stack:
        for name in dict.fromkeys(each.batch.name for each in batches):
            stack.enter_context(locked(home / PREFIX / f"{name}.lock", f"batch {name}", silent, 0.0))
        yield


def run_batch(
    prepared: PreparedBatch,
    runs: ResultStore,
    records: Files,
    home: Path,
    say: Callable[[str], None],
    execute: Execute = notebooks.execute,
    seen: Callable[[PreparedBatch, dict[str, ExecutionRecord]], None] = lambda prepared, done: None,
    store: WithStore = nullcontext,
) -> dict[str, ExecutionRecord]:
    """Execute what has not ended well yet; returns the records there are then, by id.

    ``seen`` gets them at the begin, and whenever an execution has ended. Inside ``store`` the server of the store is
    there, also if it died in the execution.
    Executed notebooks go below ``home``, beside their runs in ``runs``, and with the record into ``records`` (a store
    with PREFIX). An execution that fails is recorded; one that is interrupted is not. Raises ServiceUnavailable.
    """
    batch, executions = prepared.batch, prepared.executions
    done = ended(prepared, records)
    open_ones = [e for e in executions if e.id not in done or done[e.id].status == "failed"]
    others = {e.profile for e in done.values() if e.status != "failed"} - {"", _profile()}
    say(
        f"batch {batch.name}: {counted(len(executions), 'execution')} of {prepared.notebook.name}, "
        f"{len(open_ones)} to do, {len(executions) - len(open_ones)} done before"
        f"{', some of them with profile ' if others else ''}{', '.join(sorted(others))}"
    )
    seen(prepared, done)
    try:
        # No bar where nobody sees it move, as in the log of a pod.
        for execution in tqdm(open_ones, desc=batch.name, unit="notebook", file=sys.stderr, disable=None):
            folder = home / PREFIX / batch.name / execution.id
            record = _run(prepared, execution, runs, records, folder, execute, store)
            done[execution.id] = record
            seen(prepared, done)
            say(_line(prepared, execution, record))
            if record.status == "failed" and batch.on_failure == "stop":
                say(f"batch {batch.name}: stopped, as on_failure says; the same command tries again, {WITHOUT}")
                break
    except KeyboardInterrupt:
        say(f"batch {batch.name}: interrupted; the same command goes on with what has not ended, {WITHOUT}")
        raise
    return done


def forget(prepared: PreparedBatch, records: Files) -> None:
    """Forget that its executions have ended: all are executed anew, also if that takes several calls. Runs stay."""
    records.remove(prepared.batch.name, [f"{execution.id}.json" for execution in prepared.executions])


def ended(prepared: PreparedBatch, records: Files) -> dict[str, ExecutionRecord]:
    """The records of its executions that there are, by id; none of one that is damaged: the same command executes that
    again. Raises BadInput for one that this keyshift cannot read.
    """
    name = prepared.batch.name
    there = set(records.names(name))
    found = {}
    for execution in prepared.executions:
        if (file := f"{execution.id}.json") in there:
            try:
                content = records.read(name, file)
            except BadInput:
                continue
            try:
                found[execution.id] = ExecutionRecord.model_validate_json(content)
            except ValidationError as error:
                raise BadInput(
                    f"the record {PREFIX}/{name}/{file} in the store cannot be read ({error.error_count()} faults): "
                    f"delete it, or run all `--again`"
                ) from None
    return found


def _run(
    prepared: PreparedBatch,
    execution: NotebookExecution,
    runs: ResultStore,
    records: Files,
    home: Path,
    execute: Execute,
    store: WithStore,
) -> ExecutionRecord:
    name, started = prepared.batch.name, datetime.now(UTC)
    executed, error, copy_at = None, None, None
    verdicts: dict[str, str] = {}
    try:
        if _code(prepared.notebook) != prepared.code:  # its record would say that the old code was executed
            raise BadInput(f"{prepared.notebook.name} was changed since the batch began; give the command again")
        executed = execute(prepared.notebook, execution.parameters, home)
        error = executed.error
        verdicts = {row["run_id"]: row["verdict"] for row in executed.rows}
    except Exception as failed:  # one that dies, for whatever reason (its kernel was killed), must not end the night
        error = error or f"{type(failed).__name__}: {failed}"
    with store():
        await_answer(lambda: records.names(name))  # that of others may be away for a while
        if executed:
            try:
                notebooks.keep(executed, runs)
            except Exception as failed:
                error = error or f"{type(failed).__name__}: {failed}"
            # Here too: a notebook that failed, or that measures nothing, has no run to be kept with.
            for file in (executed.notebook, executed.html):
                records.write(name, f"{execution.id}/{file.name}", file)
            copy_at = f"{PREFIX}/{name}/{execution.id}/{executed.notebook.name}"
        record = ExecutionRecord(
            batch=name,
            notebook=prepared.notebook.name,
            parameters=execution.parameters,
            repetition=execution.repetition,
            status=outcome(verdicts, error, executed is not None and executed.lacks_runs),
            verdicts=verdicts,
            error=error,
            copy_at=copy_at,
            started_at=started,
            finished_at=datetime.now(UTC),
            profile=_profile(),
        )
        # Others read the record; whoever waits here sees all.
        told = record.model_copy(update={"error": error and anonymous(error)})
        records.write(name, f"{execution.id}.json", told.model_dump_json(indent=2).encode())
    return record


def outcome(verdicts: dict[str, str], error: str | None, lacks_runs: bool) -> Literal["ok", "bad", "failed"]:
    """Say what came of an execution. One whose runs are all bad has not failed, though its notebook got no further:
    made again, it would get no further either. One that lacks runs has failed, whatever the others are.
    """
    good = [verdict == "ok" for verdict in verdicts.values()]
    if error is not None and (not good or any(good) or lacks_runs):
        return "failed"
    return "ok" if all(good) else "bad"


def _profile() -> str:
    return Path(located(None)).stem  # whose folder nobody else knows


def _line(prepared: PreparedBatch, execution: NotebookExecution, record: ExecutionRecord) -> str:
    varying = words(prepared.varied(execution))
    return (
        f"[{execution.number}/{len(prepared.executions)}] {varying}{': ' if varying else ''}"
        f"{record.status} after {record.minutes:.1f} min ({record.reason or record.verdict or 'no runs'})"
    )


def counted(number: int, one: str, many: str = "") -> str:
    """``1 run``, ``2 runs``; ``many`` if that is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def words(values: dict[str, Any]) -> str:
    """Parameters in one line; those that are None are left out."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items() if value is not None)


def table(prepared: PreparedBatch, done: dict[str, ExecutionRecord], errors: bool = False) -> list[dict[str, Any]]:
    """One row per execution: set, number, what varies, status ("not run" if none), verdict, minutes; with ``errors``
    the error, too, which may have many lines.
    """
    rows = []
    for execution in prepared.executions:
        record = done.get(execution.id)
        row = {"set": prepared.batch.name, "#": execution.number} | prepared.varied(execution)
        row |= {"status": record.status if record else "not run", "verdict": record.verdict if record else None}
        row |= {"minutes": round(record.minutes, 2) if record else None}
        rows.append(row | ({"error": record.error if record else None} if errors else {}))
    return rows


def exit_status(done: dict[str, ExecutionRecord]) -> int:
    """Return what the command ends with: 3 if an execution failed, else 1 if a verdict was bad, else 0."""
    statuses = {record.status for record in done.values()}
    return 3 if "failed" in statuses else int("bad" in statuses)
