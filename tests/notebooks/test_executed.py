"""Notebooks as users run them, only smaller: their runs are correct, and what an executed copy has comes from them.

What else a notebook promises, and those that need services of their own: the other files here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from executed_copy import ROOT, keyshift

Rows = list[dict[str, Any]]
STOCK = (
    '{"all_at_once": "all_at_once", "by 2": {"strategy": "replicated", "settings": {"batch": "per_source", "size": 2}}}'
)
SMALL = {"rate": "1000", "keys": "2000", "key_groups": "16", "warmup_s": "1", "seconds": "9"}


@dataclass(frozen=True)
class Small:
    """``check``: of the rows of its runs. ``tables``: words of some of its tables; ``said``: of its sentences."""

    parameters: dict[str, str]
    check: Callable[[Rows], None]
    figures: int
    tables: list[tuple[str, ...]]
    said: tuple[str, ...]
    printed: str = ""


def two_stores(rows):
    local, remote = rows
    assert local["units_moved"] == remote["units_moved"] > 0
    assert local["bytes_moved"] > 100_000 and remote["bytes_moved"] < 1000, "with a shared store no state is sent"


def only_the_autoscaled_one_has_moved(rows):
    scaled, fixed = rows
    assert {row["events"] for row in rows} == {3 * 200 + 6 * 1200 + 2 * 100}
    assert scaled["units_moved"] >= 8 and fixed["units_moved"] == 0


def invented(rows):
    ran = [("keycount", "fluid"), ("keycount", "slow_start"), ("loyalty", "slow_start")]
    assert [(row["workload"], row["strategy"]) for row in rows] == ran
    assert {row["events"] for row in rows} == {9000}
    assert len({row["units_moved"] for row in rows}) == 1
    fluid, *slow = (row["steps"] for row in rows)
    assert slow[0] == slow[1] == fluid.bit_length()


def they_migrate_twice(rows):
    assert [row["strategy"] for row in rows] == ["all_at_once", "replicated"]
    assert {(row["events"], row["units_moved"], row["parameters"]["tape"]) for row in rows} == {(10_000, 16, "a.tape")}
    assert [row["steps"] for row in rows] == [2, 8]


def of_three_presets(rows):
    assert [row["strategy"] for row in rows] == ["fluid", "lazy", "order_unaware"]
    assert all(row["events"] >= 2000 for row in rows), "at least three seconds before, and two behind the request"
    assert {row["units_moved"] for row in rows} == {4}
    assert [row["steps"] for row in rows] == [4, 1, 1]


NOTEBOOKS = {
    "compare/01_compare_presets": Small(
        SMALL
        | {"strategies": '["fluid", "lazy", "order_unaware"]', "rate": "400", "frame_ms": "100", "trigger_s": "3"}
        | {"state_bytes": "256", "affected": "4", "slots": "2"},
        of_three_presets,
        2,
        [("had to move (MiB)", "fluid", "lazy", "order_unaware", "P99 spike (× before)", "silence (ms)", "verdict")],
        ("All 3 runs are correct", "the floor, a bare copy of the same bytes"),
    ),
    "hybrid/01_backends": Small(
        SMALL | {"backends": '["rocksdb", "remote"]', "state_bytes": "1024", "to_slots": "3", "trigger_s": "3"},
        two_stores,
        4,
        [("had to move", "rocksdb, fluid", "remote, fluid", "moved (MiB)", "verdict")],
        ("Both runs are correct",),
    ),
    "hybrid/02_autoscaling": Small(
        SMALL
        | {"rate": "200", "load": "2:1200,8:100", "seconds": "10", "slots_max": "2", "fixed": "[1]", "work_us": "1000"}
        | {"keys": "1000", "state_bytes": "64", "trigger_s": "1"},
        only_the_autoscaled_one_has_moved,
        1,
        [
            ("slot-seconds", "1 to 2, autoscaled", "always 1", "missed seconds", "late events (%)"),
            ("move_cost", "more is to be done than the slots can"),
        ],
        ("more slot-seconds than **always 1**",),
    ),
    "start/03_invent": Small(
        SMALL
        | {"presets": '["fluid"]', "state_bytes": "128", "to_slots": "3", "seconds": "8", "trigger_s": "2"}
        | {"customers": "500", "frame_ms": "20"},
        invented,
        2,
        [("slow_start", "loyalty")],
        ("keycount: Both runs are correct", "loyalty: The run is correct"),
        printed="it moves twice, first in step 0",  # a strategy that proposes nonsense
    ),
    "stock/01_exchange": Small(
        {"strategies": STOCK, "rate": "1000", "key_groups": "16", "slots": "2"}
        | {"scalings": "[1, 2]", "gap_s": "3", "warmup_s": "1", "trigger_s": "2", "seconds": "9"},
        they_migrate_twice,
        2,
        [("P99 spike (ms)", "all_at_once", "by 2", "completion (s)", "verdict")],
        ("Both runs are correct", "2 → 1: ", "1 → 2: ", "for 8 key groups"),
    ),
}


@pytest.fixture
def given(tmp_path):
    """The parameters of a notebook, and a tape if it needs one that was written before."""

    def parameters(name):
        if name != "stock/01_exchange":
            return NOTEBOOKS[name].parameters
        tape = tmp_path / "a.tape"
        keyshift(tmp_path, "tape", "write", tape, "--seconds", "3", "--set", "resting=5")
        return NOTEBOOKS[name].parameters | {"tape": str(tape)}

    return parameters


@pytest.mark.nightly("a minute each; `make test` has their cells with runs that were made up")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_runs_are_correct_and_figures_tables_and_conclusion_come_from_them(name, given, execute_small):
    small = NOTEBOOKS[name]
    _, copy, _ = execute_small(f"{name}.ipynb", given(name))
    assert {row["verdict"] for row in copy.rows} == {"ok"}
    small.check(copy.rows)
    copy.require(copy.path.with_suffix(".html").name, *(f"figure-{number + 1}.png" for number in range(small.figures)))
    for table in small.tables:
        assert not [words for words in table if words not in copy.table(table[0])]
    assert not [words for words in small.said if words not in copy.said]
    assert small.printed in copy.printed
    printed = [output for output in copy.outputs if output["output_type"] == "stream"]
    assert len(printed) == bool(small.printed), "progress is told to who waits, and is not in the copy"


# Files of their own have them.
ELSEWHERE = ("compare/02_compare_runs", *("start/00_quickstart", "start/01_strategy_space", "start/02_explore"))
SETS = {
    f"{file.parent.name}/{file.stem.removesuffix('-smoke')}": file
    for file in sorted((ROOT / "data").rglob("*-smoke.yaml"))
}


# `make test` executes these notebooks with runs that were made up: test_made_up_runs.
@pytest.mark.nightly("a minute each")
@pytest.mark.parametrize("name", sorted(SETS.keys() - NOTEBOOKS.keys() - {*ELSEWHERE}))
def test_the_runs_of_its_smallest_set_are_correct_and_its_figures_are_drawn(name, session_stack):
    home = session_stack.home
    done = keyshift(home, "batch", SETS[name], "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["status"] for row in rows} == {"ok"}
    folder, stem = name.split("/")
    pages = list((home / "batches").glob(f"{folder}-*/*/notebooks/{stem}-*/{stem}.html"))
    assert len(pages) == len(rows) > 0
    for page in pages:
        figures = list(page.parent.glob("figure-*.png"))
        assert figures and all(figure.stat().st_size > 10_000 for figure in figures)
        said = page.read_text()
        assert "runs are correct" in said or "run is correct" in said, "the conclusion comes from the runs"
