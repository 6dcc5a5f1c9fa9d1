"""What came of batches, as one file that opens anywhere: verdicts, conclusions, notes, figures, and what is missing."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import nbformat

from keyshift.analysis.conclusions import enumerated
from keyshift.model.errors import BadInput
from keyshift.results.anonymous import anonymous, anonymous_all, anonymous_value
from keyshift.results.files import Files
from keyshift.results.pages import page
from keyshift.studies.batch import ExecutionRecord, NotebookExecution, PreparedBatch, counted, words
from keyshift.studies.notebook import NOTES, outputs_of, shareable_text

NOT_RUN = "not run"
STATUSES = ("ok", "bad", "failed", NOT_RUN)
Done = Mapping[str, ExecutionRecord]  # of a batch, by the id of the execution
_TAG = re.compile(r"<(?=[\w/!?])")  # the begin of one, which Markdown leaves to the browser


def batch_report(
    title: str, batches: Sequence[tuple[PreparedBatch, Done]], records: Files, markdown: bool = False
) -> str:
    """The page of ``batches``, in this order. Figures, conclusions and notes come from the executed notebooks in
    ``records``. In HTML, or in Markdown without figures.

    Texts and parameters have passed ``anonymous``: others read it. Raises ServiceUnavailable.
    """
    batches = [_told(prepared, done) for prepared, done in batches]
    gaps = [gap for prepared, done in batches for gap in _gaps(prepared, done)]
    ended, every = sum(len(done) for _, done in batches), sum(len(prepared.executions) for prepared, _ in batches)
    return page(
        "keyshift.studies",
        "batches.md.jinja" if markdown else "batches.html.jinja",
        plain=lambda text: _TAG.sub("&lt;", text),
        title=title,
        told=f"{ended} of {counted(every, 'execution')} of {counted(len(batches), 'batch', 'batches')} have ended.",
        statuses=STATUSES,
        gaps=gaps,
        batches=[_batch(prepared, done, records) for prepared, done in batches],
    )


def status_of(done: Done, execution: NotebookExecution) -> str:
    """Say what came of an execution: one of STATUSES."""
    return done[execution.id].status if execution.id in done else NOT_RUN


def _told(prepared: PreparedBatch, done: Done) -> tuple[PreparedBatch, Done]:
    def told(text: str) -> str:  # as in the executed copy
        return shareable_text(text, prepared.notebook)

    shown = [replace(each, parameters=anonymous_all(each.parameters, told)) for each in prepared.executions]
    records = {
        name: record.model_copy(update={"error": record.error and anonymous(record.error)})
        for name, record in done.items()
    }
    return replace(prepared, executions=shown), records


def _gaps(prepared: PreparedBatch, done: Done) -> Iterator[str]:
    """A line for each execution that is not as it should be."""
    for execution in prepared.executions:
        status, record = status_of(done, execution), done.get(execution.id)
        if status != "ok":
            varied = words(prepared.varied(execution))
            why = record and (record.reason or record.verdict)
            of = f" ({varied})" if varied else ""
            yield f"{prepared.batch.name}, execution {execution.number}{of}: {status}" + (f", {why}" if why else "")


def _batch(prepared: PreparedBatch, done: Done, records: Files) -> dict[str, Any]:
    of = [status_of(done, execution) for execution in prepared.executions]
    verdicts = [verdict for record in done.values() for verdict in record.verdicts.values()]
    return {
        "name": prepared.batch.name,
        "notebook": anonymous_value(prepared.batch.notebook),
        "counts": {status: of.count(status) for status in STATUSES},
        "verdicts": ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)) or "none",
        "minutes": f"{sum(record.minutes for record in done.values()):.1f}",
        "executions": [_execution(prepared, execution, done, records) for execution in prepared.executions],
    }


def _execution(prepared: PreparedBatch, execution: NotebookExecution, done: Done, records: Files) -> dict[str, Any]:
    record = done.get(execution.id)
    told: dict[str, Any] = {"status": status_of(done, execution), "about": "", "said": [], "figures": []}
    if record is not None:
        told["about"] = f"{record.verdict or 'no runs'}, {record.minutes:.1f} min"
        told["about"] += f"; {record.reason}" if record.error else ""
        if record.copy_at:
            name = record.copy_at.rpartition("/")[2]
            try:
                told |= _shown(records.read(prepared.batch.name, f"{execution.id}/{name}").decode())
            except BadInput:  # whoever has deleted it must not end a night
                told["about"] += "; its executed copy is not stored with the batch any more"
    return {
        "number": execution.number,
        "varied": words(prepared.varied(execution)),
        "parameters": execution.parameters,
        **told,
    }


def _shown(notebook: str) -> dict[str, list[str]]:
    """Figures of an executed notebook, in base 64, the lines of its conclusions, and the notes of its runs."""
    figures, said = [], []
    for output in outputs_of(nbformat.reads(notebook, as_version=4)):
        data = output.get("data", {})
        figures += [data["image/png"].replace("\n", "")] if "image/png" in data else []
        lines = html.unescape(data.get("text/markdown", "")).splitlines()
        said += [line[2:] for line in lines if line.startswith("- ")]
        # They are in the last cell; some notebooks have told them before.
        for told in data.get(NOTES, []):
            if not any(line.endswith(told["note"]) for line in said):
                said.append(f"**{enumerated(told['points'] or ['all runs'])}**: {told['note']}")
    return {"figures": figures, "said": said}
