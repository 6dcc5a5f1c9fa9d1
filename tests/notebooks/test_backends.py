"""The comparison of stores as a user runs it, only smaller: two of them, little state."""

import pytest

pytestmark = pytest.mark.nightly("a minute; `make test` has its cells with runs that were made up")
SMALL = {
    "backends": '["rocksdb", "remote"]',
    "rate": "1000",
    "keys": "2000",
    "state_bytes": "1024",
    "key_groups": "16",
    "to_slots": "3",
    "warmup_s": "1",
    "seconds": "9",
    "trigger_s": "3",
}


@pytest.fixture(scope="module")
def copy(execute_small):
    _, executed, _ = execute_small("hybrid/01_backends.ipynb", SMALL)
    return executed


def test_both_runs_are_correct_and_with_a_shared_store_no_state_is_sent(copy):
    local, remote = copy.rows
    assert [local["verdict"], remote["verdict"]] == ["ok", "ok"]
    assert local["units_moved"] == remote["units_moved"] > 0
    assert local["bytes_moved"] > 100_000 and remote["bytes_moved"] < 1000


def test_table_figure_and_conclusion_come_from_the_runs(copy):
    copy.require("figure-1.png")
    [table] = (table for table in copy.tables if "had to move" in table)
    assert all(word in table for word in ("rocksdb", "remote", "moved (MiB)", "verdict"))
    assert "Both runs are correct" in copy.said
