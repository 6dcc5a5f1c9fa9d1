"""An executed notebook, and its HTML, say nothing of whose machine it was executed on; what it is given is checked."""

import base64
import html
import re
import shutil
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import papermill
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from keyshift.model.errors import BadInput
from keyshift.registry import named_values
from keyshift.studies.notebook import MIME, checked_parameters, execute, shareable, summaries
from keyshift.waiting import wait_until

PNG = base64.b64encode(bytes(range(256)) * 30).decode()
WHERE = "/home/ada/src/keyshift"
RUN = {"run_id": "2026"}
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def of_parameters(source, tag="parameters"):
    return new_code_cell(source, metadata={"tags": [tag]})


def written(folder, *sources):
    """A notebook with these cells."""
    path = folder / "one.ipynb"
    nbformat.write(new_notebook(cells=[*map(new_code_cell, sources)], metadata=KERNEL), path)
    return path


@pytest.fixture
def executed(monkeypatch):
    monkeypatch.setenv("KEYSHIFT_MINIO_SECRET_KEY", "sup3r-s3cret")
    outputs = [
        new_output("stream", name="stdout", text=f"log {WHERE}/spark.log on 10.1.2.3:7077, key sup3r-s3cret\n"),
        new_output("error", ename="OSError", evalue=f"{WHERE}/x", traceback=[f"File \x1b[0;32m{WHERE}/y.py\x1b[0m"]),
        new_output("display_data", data={"text/plain": f"<Figure {WHERE}/z>", "image/png": PNG}),
        new_output("display_data", data={MIME: [RUN | {"parameters": {"text": f"{WHERE}/a.txt"}}], "text/plain": ""}),
        new_output("display_data", data={"text/html": f'<img src="data:image/png;base64,{PNG}"> {WHERE}/b'}),
        new_output("display_data", data={"text/markdown": f"- at {WHERE}/b, 1 < 2"}),
    ]
    cells = [
        new_markdown_cell("# events/s"),
        of_parameters(f'profile = "{WHERE}/p.yaml"', "injected-parameters"),
        new_code_cell("print(1 / 2)  # as a/b/c", outputs=outputs),
        of_parameters(f'tape: str = "{WHERE}/a.tape"  # whose path is in /full or not\nrate: float = 5.0'),
    ]
    told = {"input_path": f"{WHERE}/in.ipynb", "output_path": f"{WHERE}/out.ipynb", "parameters": {"rate": 5}}
    return shareable(new_notebook(cells=cells, metadata={"papermill": told} | KERNEL))


def test_neither_the_copy_nor_its_html_says_where_it_was_executed(executed):
    for text in (nbformat.writes(executed), HTMLExporter().from_notebook_node(executed)[0]):
        for trace in ("/home/ada", "10.1.2.3", ":7077", "sup3r-s3cret"):
            assert trace not in text.replace(PNG, "")


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
def test_parameters_and_versions_that_a_cell_shows_stay_and_the_address_of_a_server_goes(kind):
    one, other = ["map:1000,counter:1000", "17.0.8.1", "redis01:6379"], ["control:4000", "21.0.1.1", "red-2:6379"]
    table = pd.DataFrame({"one": one, "other": other}, index=["stage_work_us", "java", "redis"])
    text = table.to_html() if kind == "text/html" else table.to_string()
    cell = new_code_cell("study.effective()", outputs=[new_output("execute_result", data={kind: text})])
    shown = html.unescape(shareable(new_notebook(cells=[cell])).cells[0].outputs[0].data[kind])
    hidden = text.replace("redis01:6379", "<address>").replace("red-2:6379", "<address>")
    assert shown == hidden != text


def test_code_figures_and_rows_stay_and_what_is_hidden_is_seen_by_whoever_opens_the_page_in_a_browser(executed):
    code, shown = executed.cells[2].source, [output.get("data") for output in executed.cells[2].outputs]
    assert code == "print(1 / 2)  # as a/b/c"
    assert (shown[2]["image/png"], shown[2]["text/plain"]) == (PNG, "<Figure <path>>")
    assert PNG in shown[4]["text/html"] and shown[4]["text/html"].endswith("> &lt;path&gt;")
    assert shown[5]["text/markdown"] == "- at &lt;path&gt;, 1 < 2"
    assert summaries(executed) == [RUN | {"parameters": {"text": "<path>"}}]
    assert executed.metadata.papermill.parameters.rate == 5
    nbformat.validate(executed)


WANTS = new_notebook(
    cells=[
        of_parameters(
            'names: list = ["a"]  # points\nmore: dict = {}  # settings\nrate: float = 1.0  # or auto\n'
            'fast: bool = True\nkeys: int = 5\nlike: str = ""\nseed: int = None'
        )
    ],
    metadata=KERNEL,
)


def test_the_address_of_a_server_goes_from_the_parameters_of_a_notebook():
    source = '# Parameters\nsettings = {"redis": "redis01:6379", "stage_work_us": "map:1000"}'
    made = shareable(new_notebook(cells=[of_parameters(source, "injected-parameters")]))
    assert made.cells[0].source == source.replace("redis01:6379", "<address>")


@pytest.mark.parametrize("tag", ["parameters", "injected-parameters"])
def test_a_path_among_the_parameters_is_hidden_unless_it_is_in_the_folder_data(tmp_path, tag):
    folder, data = tmp_path / "lab" / "notebooks" / "stock", tmp_path / "lab" / "data"
    for each in (folder, data):
        each.mkdir(parents=True)
    given = {
        **dict.fromkeys((f"{data}/my.tape", "../../data/my.tape"), "../../data/my.tape"),
        **dict.fromkeys(("../../../ada/my.tape", f"{tmp_path}/ada.tape", "~/my.tape", "/my.tape"), "<path>"),
        **{same: same for same in ("my.tape", "tapes/my.tape", "8:1000,16:500", "control:1000")},
    }
    for path, shown in given.items():
        cell = of_parameters(f"tapes = ['{path}', \"{path}\"]  # 5 events/s or more", tag)
        made = new_notebook(cells=[cell], metadata={"papermill": {"parameters": {"tapes": [path], "rate": 5}}})
        made = shareable(made, folder / "01_exchange.ipynb")
        assert made.cells[0].source == f"tapes = ['{shown}', \"{shown}\"]  # 5 events/s or more"
        assert made.metadata.papermill.parameters == {"tapes": [shown], "rate": 5}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"names": "a"}, r"""names = 'a': wants\.ipynb wants a list here, as its default is: \["a"\]"""),
        ({"more": ["a"]}, r"more = \['a'\]: wants\.ipynb wants a dict here, as its default is: \{\}"),
        ({"fast": "False"}, "fast = 'False': wants.ipynb wants a bool, True or False, here, as its default is: True"),
        ({"fast": 0}, "fast = 0: wants.ipynb wants a bool"),
        ({"rate": "1O00"}, "rate = '1O00': wants.ipynb wants a number, or auto, here, as its default is: 1.0"),
        ({"rate": True}, "rate = True: wants.ipynb wants a number"),
        ({"rate": None}, "rate = None: wants.ipynb wants a number"),
        ({"rate": float("nan")}, "rate = nan: numbers have to be finite"),
        ({"names": [1.0, float("inf")]}, r"names = \[1.0, inf\]: numbers have to be finite"),
        ({"like": "\udcff.tape"}, r"like = '\\udcff.tape': must be text in Unicode; give a file another name"),
        ({"keys": 2.5}, "keys = 2.5: wants.ipynb wants a whole number here, as its default is: 5"),
        ({"keys": "auto"}, "keys = 'auto': wants.ipynb wants a whole number here, as its default is: 5"),
        ({"like": ["a"]}, r"like = \['a'\]: wants.ipynb wants a text here"),
        ({"name": ["a"]}, "unknown notebook parameter 'name': did you mean 'names'"),
    ],
)
def test_a_value_of_another_kind_is_named_before_anything_is_started(tmp_path, given, why):
    nbformat.write(WANTS, tmp_path / "wants.ipynb")
    checked_parameters(tmp_path / "wants.ipynb", {}, {"names": {"a": {}}, "more": {"b": 1}, "rate": "auto"})
    with pytest.raises(BadInput, match=why):
        checked_parameters(tmp_path / "wants.ipynb", {"names": ["b"]}, given)


def test_a_number_is_a_text_or_whole_where_that_is_wanted_and_a_name_that_the_store_could_not_keep_is_refused(tmp_path):
    nbformat.write(WANTS, tmp_path / "wants.ipynb")
    given = named_values(["like=20260101", "keys=1e6", "rate=5", "fast=False", "seed=None"])
    [taken] = checked_parameters(tmp_path / "wants.ipynb", given)
    assert repr(taken) == "{'like': '20260101', 'keys': 1000000, 'rate': 5, 'fast': False, 'seed': None}"
    nbformat.write(WANTS, tmp_path / "my notebook.ipynb")
    with pytest.raises(BadInput, match=r"notebook 'my notebook.ipynb': use letters, digits"):
        checked_parameters(tmp_path / "my notebook.ipynb")
    with pytest.raises(BadInput, match=r"notebook '.*': there is no such file"):
        checked_parameters(tmp_path / f"{'long' * 64}.ipynb")


def test_a_kernel_that_dies_is_a_failure_with_a_copy_of_what_came_before(tmp_path):
    """It may be killed when memory runs out."""
    notebook = written(tmp_path, "print('before')", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    executed = execute(notebook, {}, tmp_path)
    assert executed.error.startswith("its kernel: ") and "died" in executed.error
    assert "before" in executed.html.read_text()


def test_a_notebook_some_of_whose_points_died_lacks_their_runs(tmp_path):
    dies = "from keyshift.model.errors import PointsDied\nraise PointsDied('1 of 2 points died: lazy')"
    executed = execute(written(tmp_path, dies), {}, tmp_path)
    assert executed.lacks_runs and executed.error == "cell 1: PointsDied: 1 of 2 points died: lazy"


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A notebook that is executed without a kernel."""
    monkeypatch.setattr(papermill, "execute_notebook", lambda source, copy, *_, **__: shutil.copy(source, copy))
    path = tmp_path / "one.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("≤ 5 s")], metadata=KERNEL), path)
    return path


@pytest.mark.usefixtures("ascii_locale")
def test_the_page_of_a_notebook_is_the_same_in_every_locale(copied, tmp_path):
    assert "≤ 5 s" in execute(copied, {}, tmp_path).html.read_text(encoding="utf-8")


def test_executions_that_begin_in_one_second_have_folders_of_their_own(copied, tmp_path):
    for _ in range(3):
        execute(copied, {}, tmp_path)
    names = [folder.name for folder in (tmp_path / "notebooks").iterdir()]
    assert len(names) == 3 and all(re.fullmatch(r"one-\d{8}T\d{6}", name) for name in names)


def test_what_goes_to_a_kernel_and_back_is_encrypted(tmp_path, capfd):
    asks = "from ipykernel.kernelapp import IPKernelApp\nassert IPKernelApp.instance().curve_secretkey"
    assert execute(written(tmp_path, asks), {}, tmp_path).error is None
    assert "without encryption" not in capfd.readouterr().err


STARTS_A_PROCESS = """
import signal, subprocess, time
from pathlib import Path
deaf = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark's JVM, which ends when its driver says so
process = subprocess.Popen(["sleep", "1000"], preexec_fn=deaf)
try:
    Path("began").touch()
    time.sleep(1000)
finally:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        Path("ended").touch()
    process.kill()
"""
EXECUTE = """
import sys
from pathlib import Path
from keyshift.studies.notebook import execute
from keyshift.program import run_program
run_program(lambda: execute(Path(sys.argv[1]), {}, Path(sys.argv[1]).parent))
"""


def test_a_cell_that_is_interrupted_ends_what_it_has_started_and_nobody_prints_a_traceback(tmp_path):
    command = [sys.executable, "-c", EXECUTE, str(written(tmp_path, STARTS_A_PROCESS))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            assert wait_until(lambda: (tmp_path / "began").exists() or program.poll() is not None, 120)
            program.send_signal(signal.SIGINT)
            _, said = program.communicate()
        finally:
            program.kill()
    assert (tmp_path / "ended").exists(), "somebody else has ended its process"
    assert program.returncode == 130
    *of_the_kernel, last = said.splitlines()  # a busy one may say that it was at work
    assert last == "keyshift: interrupted; what it had started is stopped"
    assert "Traceback" not in "".join(of_the_kernel)
