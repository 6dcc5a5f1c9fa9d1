"""What an executed notebook looks like to who gets it: no progress in it, and what was noted of the runs."""

from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from keyshift.studies import notebook
from keyshift.studies.notebook import MIME, NOTES, execute

PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
TELL = """
import threading
from keyshift.progress import progress

with progress() as say:
    say("starting")
    for second in range(3):
        reporter = threading.Thread(target=say, args=(f"second {second}",))
        reporter.start()
        reporter.join()
    print("a result")
    say("stopping")
"""


@pytest.fixture
def executed(tmp_path, capsys):
    """Executes one cell; gives what became of it, the outputs in its copy, and what was told meanwhile."""

    def of(code):
        path = tmp_path / "some.ipynb"
        nbformat.write(new_notebook(cells=[new_code_cell(code)], metadata=PYTHON), path)
        done = execute(path, {}, tmp_path)
        cells = nbformat.read(done.notebook, as_version=4).cells
        return done, [output for cell in cells for output in cell.get("outputs", [])], capsys.readouterr().err

    return of


def test_progress_is_told_to_who_waits_and_does_not_stay_in_the_copy(executed):
    done, outputs, told = executed(TELL)
    assert done.error is None
    assert told.splitlines() == ["starting", "second 0", "second 1", "second 2", "stopping"]
    place, result = outputs
    assert place["data"] == {"text/plain": ""}
    assert (result["name"], result["text"]) == ("stdout", "a result\n")
    page = done.html.read_text()
    assert "a result" in page
    assert "second 2</pre>" not in page


def test_a_cell_that_fails_says_why_and_nothing_else_and_standard_error_reaches_who_waits(executed):
    done, outputs, told = executed(TELL + "    raise ValueError('no room')")
    assert "ValueError: no room" in done.error
    assert "second 2" in told
    assert [output["output_type"] for output in outputs] == ["display_data", "stream", "error"]
    assert outputs[0]["data"] == {"text/plain": ""}
    _, outputs, told = executed("import sys; _ = sys.stderr.write('take care\\n')")
    assert told == "take care\n"
    assert [output["text"] for output in outputs] == ["take care\n"]


def run(run_id, status="ok", notes=()):
    summary = SimpleNamespace(model_dump=lambda mode: {"run_id": run_id})
    return SimpleNamespace(run_id=run_id, status=status, summary=summary, notes=list(notes))


@pytest.mark.parametrize(
    ("points", "words", "notes"),
    [
        (
            {"one": run("1-fluid"), "two": run("2-lazy", "bad", ["the query died", "late"])},
            "one, 1-fluid: verdict ok\ntwo, 2-lazy: verdict bad\n  the query died\n  late",
            [("the query died", ["two"]), ("late", ["two"])],
        ),
        (
            {"one": run("1-fluid", notes=["of one job", "late"]), "two": run("2-lazy", notes=["of one job"])},
            "one, 1-fluid: verdict ok\n  late\ntwo, 2-lazy: verdict ok\nof each of these runs:\n  of one job",
            [("of one job", []), ("late", ["one"])],
        ),
        (
            {"one": run("1-fluid", notes=["of one job"])},
            "one, 1-fluid: verdict ok\n  of one job",
            [("of one job", ["one"])],
        ),
        ({}, "", []),
    ],
    ids=["each its own", "one of all is there once", "of a single run", "none"],
)
def test_verdicts_and_notes_of_the_runs_are_what_a_reader_sees_last(monkeypatch, points, words, notes):
    shown = []
    monkeypatch.setattr(notebook, "display", lambda data, raw: shown.append(data))
    notebook.publish({name: [run] for name, run in points.items()})
    told = [{"note": note, "points": having} for note, having in notes]
    assert shown == [{MIME: [{"run_id": run.run_id} for run in points.values()], NOTES: told, "text/plain": words}]
