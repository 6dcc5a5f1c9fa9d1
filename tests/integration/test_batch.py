"""Batches with papermill and the real MinIO: what has ended is skipped, what was interrupted is executed again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from small_batches import write_notebook

import keyshift
from keyshift.results.files import Files
from keyshift.results.store import ResultStore
from keyshift.studies.batch import PREFIX, ExecutionRecord, exit_status, prepare, run_batch

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_a_second_call_skips_what_the_first_one_did(stack, tmp_path):
    file = tmp_path / "batch.yaml"
    file.write_text(
        "name: plans\n"
        "notebook: start/01_strategy_space.ipynb\n"
        "parameters: {presets: [fluid, matched], groups: 16}\n"
        "list: [{to_slots: 6}, {to_slots: 17}]\n"  # 17 slots for 16 groups: the notebook refuses
    )
    prepared = prepare(file, NOTEBOOKS)
    runs, records, said = ResultStore(stack), Files(stack, PREFIX), []
    first = run_batch(prepared, runs, records, tmp_path, said.append)
    good, wrong = (first[execution.id] for execution in prepared.executions)
    assert (good.status, good.error, wrong.status) == ("ok", None, "failed")
    assert "slots = 17" in wrong.error
    kept = set(records.names("plans"))
    for execution in prepared.executions:
        files = {f"{execution.id}.json"} | {f"{execution.id}/01_strategy_space.{kind}" for kind in ("ipynb", "html")}
        assert files <= kept
        copy = nbformat.reads(records.read("plans", f"{execution.id}/01_strategy_space.ipynb").decode(), as_version=4)
        assert any("injected-parameters" in cell.metadata.get("tags", []) for cell in copy.cells)
        assert ExecutionRecord.model_validate_json(records.read("plans", f"{execution.id}.json")) == first[execution.id]

    said.clear()
    second = run_batch(prepared, runs, records, tmp_path, said.append)
    assert "1 to do, 1 done before" in said[0]
    assert second[prepared.executions[0].id] == good
    assert second[prepared.executions[1].id].started_at > wrong.finished_at
    assert exit_status(second) == 3
    assert set(records.names("plans")) == kept


@pytest.fixture
def slow_batch(tmp_path):
    """A batch of two executions, the second of which waits until there is a file ``go`` beside its notebook."""
    wait = "import sys, time\nfrom pathlib import Path\nprint(f'turn {turn} waits', file=sys.stderr)\n"
    wait += "while turn == 2 and not Path('go').exists():\n    time.sleep(0.1)"
    write_notebook(tmp_path / "slow.ipynb", "turn: int = 1  # 2 waits", code=wait)
    file = tmp_path / "batch.yaml"
    file.write_text("name: slow\nnotebook: slow.ipynb\ngrid: {turn: [1, 2]}\n")
    return file


def test_a_batch_that_was_told_to_end_goes_on_where_it_was(slow_batch, tmp_path):
    command = [sys.executable, "-m", "keyshift.cli", "batch", str(slow_batch), "--json"]
    environment = os.environ | {"KEYSHIFT_HOME": str(tmp_path / "home")}
    log = tmp_path / "log"
    with open(log, "w") as sink:
        interrupted = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, env=environment)
        try:
            deadline = time.monotonic() + 300
            while "turn 2 waits" not in log.read_text():
                assert interrupted.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            interrupted.send_signal(signal.SIGTERM)
            output, _ = interrupted.communicate(timeout=120)
        finally:
            interrupted.terminate()  # if the test failed before; it stops its services, as a kill would not
            interrupted.wait(timeout=120)
    assert (interrupted.returncode, output) == (130, b"")
    assert "batch slow: interrupted" in log.read_text()
    # Nothing of ours: a kernel that is interrupted while it writes may say so, with a traceback of its own.
    assert str(Path(keyshift.__file__).parent) not in log.read_text()
    assert not list((tmp_path / "home" / "pids").iterdir())

    (tmp_path / "go").touch()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 executions of slow.ipynb, 1 to do, 1 done before" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["turn"], row["status"]) for row in rows] == [(1, "ok"), (2, "ok")]
