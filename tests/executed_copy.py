"""What tests read of an executed notebook, and the command that they call."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from keyshift.studies.notebook import summaries

ROOT = Path(__file__).parents[1]


def keyshift(home, *arguments, status=0):
    """The command, which ends with ``status``. ``home``: of its services and runs."""
    done = subprocess.run(
        [sys.executable, "-m", "keyshift.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"KEYSHIFT_HOME": str(home)},
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done


class Copy:
    """``rows``: of the summaries of its runs. ``said``: its sentences; ``tables``: as HTML; ``printed``: its prints."""

    def __init__(self, path):
        self.path = path
        self.notebook = nbformat.read(path, as_version=4)
        self.rows = summaries(self.notebook)
        self.outputs = [output for cell in self.notebook.cells for output in cell.get("outputs", [])]
        data = [output["data"] for output in self.outputs if "data" in output]
        self.said = "\n".join(each.get("text/markdown", "") for each in data)
        self.tables = [each["text/html"] for each in data if "text/html" in each]
        self.printed = "".join(output["text"] for output in self.outputs if output["output_type"] == "stream")

    def table(self, words):
        """The first one with these words."""
        return next(table for table in self.tables if words in table)

    def require(self, *names):
        """Files beside it, with something in them."""
        assert all((self.path.parent / name).stat().st_size > 10_000 for name in names)
