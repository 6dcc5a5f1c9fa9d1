"""The experiments as users run them, as batches, with the sets that are done in a minute; on one set of services."""

import json
from pathlib import Path

import pytest

from executed_copy import ROOT, keyshift

HERE = Path(__file__).parent


def _has_tests(name):
    return (HERE / f"test_{name.partition('_')[2]}.py").exists()  # without its number


SETS = sorted(
    path for path in (ROOT / "data").rglob("*-smoke.yaml") if not _has_tests(path.stem.removesuffix("-smoke"))
)


# `make test` executes these notebooks with runs that were made up: test_made_up_runs.
@pytest.mark.nightly("a minute each")
@pytest.mark.parametrize("file", SETS, ids=[f"{file.parent.name}-{file.stem}" for file in SETS])
def test_its_runs_are_correct_and_its_figures_are_drawn(file, session_stack):
    home = session_stack.home
    done = keyshift(home, "batch", file, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["status"] for row in rows} == {"ok"}
    name = file.stem.removesuffix("-smoke")
    (page,) = (home / "batches").glob(f"{file.parent.name}-*/*/notebooks/{name}-*/{name}.html")
    figures = list(page.parent.glob("figure-*.png"))
    assert figures and all(figure.stat().st_size > 10_000 for figure in figures)
    said = page.read_text()
    assert "runs are correct" in said or "run is correct" in said, "the conclusion comes from the runs"
