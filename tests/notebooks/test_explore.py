"""The live notebook without a person: its script presses the buttons, and the run is stored with its verdict."""

import json
import re
from pathlib import Path

import pytest

from executed_copy import Copy, keyshift
from keyshift.studies.notebook import execute

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "02_explore.ipynb"
SMALL = {"script": '["1: scale 3", "3: double"]', "settings": '{"keys": 1000, "state_bytes": 64}', "key_groups": "16"}
SMALL |= {"seconds": "5", "rate": "500", "frame_ms": "20", "slots_max": "3"}


@pytest.fixture(scope="module")
def executed(execute_small):
    return execute_small("start/02_explore.ipynb", SMALL)


def test_the_script_was_played_and_the_run_is_correct(executed):
    home, copy, _ = executed
    [row] = copy.rows
    assert row["verdict"] == "ok" and row["units_moved"] > 0
    assert json.loads(keyshift(home, "results", "show", row["run_id"]).stdout)["status"] == "ok", "it is stored"
    assert keyshift(home, "job", "list", "--json").stdout == "", "no job is left"
    pressed = re.findall(r"\*\*(scale 3|double)\*\* at (\d+) s: (no|\d+) units? moved", copy.said)
    assert [what for what, *_ in pressed] == ["scale 3", "double"], copy.said
    (_, scaled_s, _), (_, doubled_s, _) = pressed
    assert int(scaled_s) >= 1 and int(doubled_s) >= 3
    # Some are seen to move behind the second button if the machine is slow, or only after the last look.
    assert 0 <= sum(int(moved) for *_, moved in pressed if moved != "no") <= row["units_moved"]


def test_the_last_picture_and_what_was_seen_are_in_the_copy_and_no_widget_is(executed):
    _, copy, _ = executed
    copy.require("figure-1.png", "figure-2.png")
    assert "widgets" not in copy.notebook.metadata
    assert [output["output_type"] for output in copy.outputs].count("stream") == 1
    assert copy.printed.strip().endswith("has ended, verdict ok")


def test_without_a_script_or_with_one_that_is_not_right_nothing_is_started_or_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    done = execute(NOTEBOOK, {}, tmp_path)
    assert done.error is None and not done.rows
    assert "no job explore runs" in "".join(output.get("text", "") for output in Copy(done.notebook).outputs)
    assert "did you mean 'scale'" in execute(NOTEBOOK, {"script": ["1: scael 3"]}, tmp_path).error
    assert not (tmp_path / "jobs").exists()
