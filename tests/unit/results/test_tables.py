"""The tables of a run: what is accepted, what is refused, and what version 1 stored."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_store import make_table

from keyshift.model.errors import BadInput
from keyshift.results import tables as t

VERSION_1 = Path(__file__).parent / "version_1"  # a run that keyshift stored when schema_version was 1


@pytest.mark.parametrize("name", [name for name in t.TABLES if name not in t.LATER])
def test_a_table_of_version_1_is_read_as_one_of_today(name):
    stored = pq.read_table(VERSION_1 / f"{name}.parquet")
    with pytest.raises(BadInput, match="expected"):
        t.check_table(name, stored)
    found = t.upgraded(name, stored)
    t.check_table(name, found)
    assert found.num_rows == stored.num_rows > 0
    assert found.select(stored.column_names) == stored
    assert set(found.column_names) - set(stored.column_names) == t.PLACE.keys() & set(found.column_names)
    if name != "metrics":
        assert set(found["stage"].to_pylist()) == {0}
    assert t.upgraded(name, found) is found


def test_no_snapshot_of_version_2_was_judged_and_what_a_process_for_all_stages_measured_is_of_none():
    columns = {name: [1, 2] for name in ("snapshot", "bytes_written", "bytes_state")}
    table = make_table("snapshots", columns | {"begun_s": [0.0] * 2, "completed_s": [1.0] * 2, "verdict": ["ok"] * 2})
    found = t.upgraded("snapshots", table.drop_columns(["verdict"]))
    t.check_table("snapshots", found)
    assert found["verdict"].to_pylist() == ["not judged"] * 2
    assert t.upgraded("snapshots", table) is table
    found = t.upgraded("metrics", pq.read_table(VERSION_1 / "metrics.parquet")).to_pandas()
    of_slot = found["instance"].str.startswith("slot-")
    assert of_slot.any() and not of_slot.all()
    assert (found["stage"] == of_slot.map({True: 0, False: t.NO_STAGE})).all()
    assert (found["replica"] == 0).all()


def test_a_death_of_the_query_was_a_fault_once():
    columns = {"t_s": [1.0, 1.5, 2.0], "instance": ["kill slot", "query died", "spark_jvm"], "value": [1.0] * 3}
    of_today = make_table("metrics", columns | {"metric": ["fault", "death", "rss_mib"]})
    assert t.upgraded("metrics", make_table("metrics", columns | {"metric": ["fault", "fault", "rss_mib"]})) == of_today
    assert t.upgraded("metrics", of_today) is of_today


def test_a_table_with_other_columns_types_or_nulls_is_refused():
    fine = {"created_s": [0.0], "latency_ms": [1.0], "slot": [1]}
    good_table = make_table("latency", fine)
    with pytest.raises(BadInput, match=r"unknown table 'latencies': did you mean 'latency'"):
        t.check_table("latencies", good_table)
    with pytest.raises(BadInput, match="column slot has 1 nulls"):
        t.check_table("latency", make_table("latency", fine | {"slot": [None]}))
    with pytest.raises(BadInput, match="column slot has type int64, expected int16"):
        t.check_table("latency", good_table.set_column(2, "slot", good_table["slot"].cast("int64")))
    with pytest.raises(BadInput, match="expected"):
        t.check_table("latency", good_table.drop_columns(["slot"]))
