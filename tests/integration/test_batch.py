"""A batch with papermill and the real MinIO: what has ended is skipped, what was interrupted is executed again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_batches import write_notebook

import keyshift


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
