"""What the tests of batches share: a notebook, a store in memory, and who executes without papermill."""

from types import SimpleNamespace

import nbformat
from small_store import files

from keyshift.studies.batch import forget, prepare, run_batch
from keyshift.studies.notebook import Executed

DEFAULTS = "skew: float = 0.8  # of keys\nbytes: int = 16  # of state\nseed: int = 1  # of events"


class Executor:
    """Stands for papermill: notes what it is given; ``verdicts`` and ``errors`` say what comes of a skew."""

    def __init__(self, verdicts=None, errors=None):
        self.given = []
        self.verdicts = verdicts or {}
        self.errors = errors or {}

    def __call__(self, path, parameters, home):
        self.given.append(parameters)
        skew = parameters.get("skew")
        error = self.errors.get(skew)
        if isinstance(error, BaseException):
            raise error
        home.mkdir(parents=True, exist_ok=True)
        copy, html = home / path.name, home / f"{path.stem}.html"
        copy.write_text(f"executed with {parameters}")
        html.write_text("<p>executed")
        rows = [{"run_id": f"run-{skew}", "verdict": self.verdicts.get(skew, "ok")}]
        return Executed(copy, html, [], rows if not error or skew in self.verdicts else [], error)


def write_notebook(path, defaults=DEFAULTS, words="# Load", code="skew * bytes"):
    path.parent.mkdir(exist_ok=True)
    cells = [
        nbformat.v4.new_markdown_cell(words),
        nbformat.v4.new_code_cell(defaults, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(code),
    ]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, path)


def prepared(folder, more="", name="small", notebook="load.ipynb"):
    file = folder / "batch.yaml"
    file.write_text(f"name: {name}\nnotebook: {notebook}\n{more}")
    return prepare(file, folder / "notebooks")


class Bench:
    """One store and one folder, over several calls of ``run_batch``."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.records, self.of_runs, self.said = files("batches"), files("runs"), []
        self.runs = SimpleNamespace(put_file=self.of_runs.write)

    def run(self, batch, execute, again=False, **more):
        """As the command does."""
        if again:
            forget(batch, self.records)
        self.said.clear()
        return run_batch(batch, self.runs, self.records, self.home, self.said.append, execute, **more)
