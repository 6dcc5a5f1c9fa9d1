"""The build of MinIO that `make` starts in the background lives no longer than that `make`."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 60.0

GO = """#!/bin/sh
case "$1" in
    version) echo "go version go1.99.0 linux/amd64" ;;
    *) echo "$$" > "$PROBE"; exec sleep 600 ;;
esac
"""


@pytest.mark.parametrize("ended_by", ["TERM", "INT"])
def test_the_build_ends_with_the_process_it_was_started_for(tmp_path: Path, ended_by: str) -> None:
    tools, probe = tmp_path / "tools", tmp_path / "pid_of_go"
    tools.mkdir()
    (tools / "go").write_text(GO)
    (tools / "go").chmod(0o755)
    path = ":".join([str(tools), *(p for p in os.environ["PATH"].split(":") if not Path(p, "minio").exists())])
    environment = os.environ | {"PATH": path, "PROBE": str(probe), "KEYSHIFT_CACHE": str(tmp_path / "cache")}
    # In the background of a shell, as in the Makefile: such a job is started with Ctrl-C ignored.
    script = f"'{sys.executable}' -m keyshift.services.early_build $$ & echo $!; sleep 600; true"
    command = ["sh", "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        try:
            assert shell.stdout
            build = psutil.Process(int(shell.stdout.readline()))
            deadline = time.monotonic() + DEADLINE_S
            while not (probe.exists() and probe.read_text().strip()):
                assert time.monotonic() < deadline, "the build did not start"
                time.sleep(0.05)
            go = psutil.Process(int(probe.read_text()))
            if ended_by == "INT":  # Ctrl-C reaches the whole group at once
                os.killpg(shell.pid, signal.SIGINT)
            else:
                shell.terminate()
                shell.wait(DEADLINE_S)
            _, alive = psutil.wait_procs([build, go], timeout=DEADLINE_S)
            assert not alive
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
