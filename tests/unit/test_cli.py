import json
import subprocess
import sys

import pytest


def keyshift(*arguments, home):
    return subprocess.run(
        [sys.executable, "-m", "keyshift.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "KEYSHIFT_HOME": str(home), "HOME": str(home)},
    )


@pytest.mark.parametrize("command", ["strategies", "workloads", "backends", "parameters"])
def test_lists_have_one_json_object_per_line(command, tmp_path):
    done = keyshift(command, "--json", home=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert rows
    assert all(row["what"] for row in rows)


def test_help_names_every_command(tmp_path):
    done = keyshift("--help", home=tmp_path)
    for command in ("up", "down", "status", "run", "results", "strategies", "workloads", "notebook", "lab"):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--strategy", "fluit"], "did you mean 'fluid'"),
        (["run", "--set", "slots=0"], "slots = 0"),
        (["notebook", "nowhere.ipynb"], "there is no such file"),
        (["upp"], "No such command"),
    ],
)
def test_bad_input_is_one_line_with_status_2_and_starts_nothing(arguments, words, tmp_path):
    done = keyshift(*arguments, home=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "logs").exists()


def test_a_missing_java_is_named_before_anything_is_started(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "keyshift.cli", "run"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": str(empty), "KEYSHIFT_HOME": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 3
    assert "Java" in done.stderr
    assert "Traceback" not in done.stderr
