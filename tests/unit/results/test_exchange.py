"""Runs leave as tidy tables that anybody can read, come back as they were, and nothing broken comes in."""

import json
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from small_store import make_table, result_store, run, tables

from keyshift.model.errors import BadInput
from keyshift.results import exchange
from keyshift.results.exchange import export_runs, import_runs, read_export
from keyshift.results.tables import TABLES
from memory_bucket import MemoryBucket


@pytest.fixture
def store():
    store = result_store()
    unknown = tables()["migration"].to_pandas().assign(drained_s=np.nan)
    second = tables(seconds=10) | {"migration": make_table("migration", unknown.to_dict("list"))}
    reasons = {"migration": [0], "unit": [3], "step": [0], "reason": ['first, "hot"\nand then']}
    first = tables() | {"decisions": make_table("decisions", reasons)}
    store.put_run(
        run(0, parameters={"text": "/home/ada/moby.txt", "state_bytes": 64, "miss_cost": 20.0}, notes=["at 10.0.0.1"]),
        first,
    )
    store.put_run(run(1, "matched", "bad"), second)
    store.put_run(run(2, "lazy", "died"), {})
    store.put_file(run(0).run_id, "page.html", b"stays at home")
    return store


@pytest.fixture(params=["parquet", "csv"])
def exported(store, tmp_path, request):
    folder = tmp_path / "out"
    export_runs(store, [run(0).run_id, run(1, "matched").run_id, run(2, "lazy").run_id], folder, request.param)
    return folder


def test_runs_come_back_as_they_were_and_what_is_there_already_stays_and_is_told(store, exported):
    other = result_store()
    stored, there = import_runs(other, read_export(exported))
    assert (len(stored), there) == (3, [])
    for run_id in stored:
        mine, theirs = store.get_manifest(run_id), other.get_manifest(run_id)
        other_there = {"parameters": {}, "summary": None, "files": []}
        assert theirs.model_copy(update=other_there) == mine.model_copy(update=other_there)
        if mine.summary:
            assert theirs.summary.spike_ms == mine.summary.spike_ms
            for name in TABLES:
                pd.testing.assert_frame_equal(other.get_table(run_id, name), store.get_table(run_id, name))
    assert other.list_runs()["run_id"].tolist() == store.list_runs()["run_id"].tolist()
    assert import_runs(store, read_export(exported))[0] == []
    store.delete_run(run(0).run_id)
    there = [run(1, "matched").run_id, run(2, "lazy").run_id]
    assert import_runs(store, read_export(exported)) == ([run(0).run_id], there)


def test_every_column_is_in_the_dictionary_with_its_meaning_and_nothing_tells_whose_machine_it_was(exported):
    dictionary = pd.read_csv(exported / "dictionary.csv", keep_default_na=False)
    assert (dictionary["meaning"].str.len() > 2).all()
    kind = json.loads((exported / "export.json").read_text())["kind"]
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    for name in ("runs", *TABLES):
        assert read(exported / f"{name}.{kind}").columns.tolist() == (
            dictionary.loc[dictionary["table"] == name, "column"].tolist()
        )
    units = dictionary.set_index(["table", "column"])["unit"]
    assert (units["runs", "spike_ms"], units["runs", "phase.transfer"]) == ("ms", "s")
    assert units["latency", "created_s"] == "s" and units["migration", "bytes"] == "bytes"
    assert units["runs", "rate_per_s"] == "1/s" and units["decisions", "reason"] == ""
    assert (units["runs", "parameter.state_bytes"], units["runs", "parameter.miss_cost"]) == ("bytes", "s")
    kinds = dictionary.set_index(["table", "column"])["type"]
    assert {kinds["runs", name] for name in ("p50_ms", "events", "measured_from_s", "lost")} == {"float64"}
    assert kinds["runs", "one_job"] == "bool"
    assert (kinds["runs", "overloaded"], kinds["runs", "verdict"], kinds["runs", "error"]) == ("bool", "text", "text")
    content = b"".join(path.read_bytes() for path in exported.iterdir())
    for text in (b"/home", b"moby", b"10.0.0.1", b"stays at home"):
        assert text not in content


def test_meanings_of_parameters_can_be_given(store, tmp_path):
    export_runs(store, [run(0).run_id], tmp_path / "out", meanings={"rate": "events offered per second"})
    dictionary = pd.read_csv(tmp_path / "out" / "dictionary.csv").set_index("column")
    assert dictionary.loc["parameter.rate", "meaning"] == "events offered per second"
    assert dictionary.loc["parameter.text", "meaning"] == "effective parameter of the run"


def test_runs_of_different_loads_stay_different(store, tmp_path):
    loads = ["control:1000", "control:4000"]
    ids = [run(number, parameters={"rates": load}).run_id for number, load in enumerate(loads, 5)]
    for number, load in enumerate(loads, 5):
        store.put_run(run(number, parameters={"rates": load}), tables())
    export_runs(store, ids, tmp_path / "out")
    assert [manifest.parameters["rates"] for manifest in read_export(tmp_path / "out").manifests] == loads


def table(name, change):
    """Damages a table of an export."""

    def damage(folder):
        kind = json.loads((folder / "export.json").read_text())["kind"]
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            change(pd.read_csv(path)).to_csv(path, index=False)
        else:
            pq.write_table(pa.Table.from_pandas(change(pd.read_parquet(path)), preserve_index=False), path)

    return damage


def content(name, change):
    def damage(folder):
        path = next(folder.glob(name))
        told = path.read_bytes()
        path.write_bytes(change(told))
        assert path.read_bytes() != told

    return damage


def without(name):
    return lambda folder: next(folder.glob(name)).unlink()


def text(name, old, new):
    return content(name, lambda told: told.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (table("latency", lambda t: t.drop(columns="slot")), r"latency\..*slot"),
        (table("latency", lambda t: t.assign(slot="first")), r"latency\..*slot|cannot be read.*latency"),
        (table("metrics", lambda t: t.assign(more=1)), r"metrics\..*columns are .*more"),
        (table("metrics", lambda t: t.drop(columns="run_id")), r"metrics\..*run_id"),
        (table("migration", lambda t: t.assign(run_id="other")), "has rows of run 'other'"),
        (content("latency.*", lambda told: told[: len(told) // 2] + b"\xff"), "latency"),
        (without("decisions.*"), "decisions.* is not there: an export has it"),
        (without("export.json"), r"export\.json cannot be read: No such file"),
        (content("export.json", lambda told: told[:9]), r"export\.json cannot be read"),
        (content("export.json", lambda told: b"{}"), "needs format, schema_version and kind"),
        (content("export.json", lambda told: b"[" * 200_000), r"export\.json cannot be read: .*recursion"),
        (text("export.json", b'"format": 1', b'"format": 9'), "format 9.*upgrade"),
        (text("export.json", b'"format": 1', b'"format": [1]'), r"format \[1\]"),
        (text("export.json", b'"kind": "', b'"kind": "a'), "neither parquet nor csv"),
        (content("manifests.jsonl", lambda told: b""), "the export has no run"),
        (content("manifests.jsonl", lambda told: told + told), "has run 2026.* more than once"),
        (content("manifests.jsonl", lambda told: b"[" * 200_000), "manifests.jsonl, line 1: .*recursion"),
        (content("manifests.jsonl", lambda told: b"[1]"), "line 1: .* is not a keyshift manifest"),
        (content("manifests.jsonl", lambda told: b"9" * 5000), "line 1: Exceeds the limit"),
        (text("manifests.jsonl", b'"lost": 0', b'"lost": -1'), r"line 1: .*lost"),
        (text("manifests.jsonl", b'version": 4', b'version": 5'), "schema_version 5.*upgrade"),
        (text("manifests.jsonl", b'version": 4', b'version": [4]'), "schema_version"),
    ],
)
def test_what_is_broken_is_named_in_a_line_before_anything_is_stored(exported, damage, words):
    damage(exported)
    with pytest.raises(BadInput, match=words) as error:
        read_export(exported)
    assert "\n" not in str(error.value)


@pytest.fixture
def in_parquet(store, tmp_path):
    folder = tmp_path / "parquet"
    export_runs(store, [run(0).run_id], folder)
    return folder


def written(folder, name, column, values):
    """The table with another column, in Parquet, where ever the same value takes no place."""
    table = pq.read_table(folder / f"{name}.parquet")
    table = pa.table({each: pa.repeat(table[each][0], len(values)) for each in table.column_names}, table.schema)
    table = table.set_column(table.schema.get_field_index(column), pa.field(column, values.type, False), values)
    pq.write_table(table, folder / f"{name}.parquet", compression="zstd")


def test_a_file_that_says_in_little_what_fills_a_memory_is_refused_before_it_is_read(in_parquet, monkeypatch):
    rows = 200_000
    written(in_parquet, "latency", "slot", pa.repeat(pa.scalar(0, pa.int16()), rows))
    assert (in_parquet / "latency.parquet").stat().st_size < rows // 10
    monkeypatch.setattr(exchange, "MOST_ROWS", rows)
    read_export(in_parquet)
    monkeypatch.setattr(pq, "read_table", None)
    for name, most, words in (
        ("MOST_ROWS", rows - 1, r".* at most 199999 .*: export fewer runs"),
        ("MOST_BYTES", 1, r" and \d+ bytes, at most"),
    ):
        with monkeypatch.context() as patch, pytest.raises(BadInput, match=rf"latency.parquet has 200000 rows{words}"):
            patch.setattr(exchange, name, most)
            read_export(in_parquet)


def test_texts_much_longer_than_what_is_written_of_them_are_refused_before_they_are_there(in_parquet, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_BYTES", 1 << 18)
    written(in_parquet, "decisions", "reason", pa.repeat("x" * (1 << 14), 16))
    assert len(import_runs(result_store(), read_export(in_parquet))[0]) == 1
    written(in_parquet, "decisions", "reason", pa.repeat("x" * (1 << 14), 1000))
    with pytest.raises(BadInput, match=r"decisions.parquet: reason of run 2026\S+ has 16384000 bytes, at most 262144"):
        read_export(in_parquet)


@pytest.mark.parametrize("column", ["slot", "run_id"])
def test_a_column_of_lists_is_refused_before_it_is_read(in_parquet, monkeypatch, column):
    written(in_parquet, "latency", column, pa.array([[1, 2, 3]]))
    monkeypatch.setattr(pq, "read_table", None)
    with pytest.raises(BadInput, match=rf"latency.parquet: .*column {column} has type list"):
        read_export(in_parquet)


def test_a_file_of_csv_is_read_once_for_all_runs(store, tmp_path, monkeypatch):
    export_runs(store, [run(0).run_id, run(1, "matched").run_id], tmp_path / "out", "csv")
    read = mock.Mock(side_effect=pyarrow.csv.read_csv)
    monkeypatch.setattr(pyarrow.csv, "read_csv", read)
    assert len(import_runs(result_store(), read_export(tmp_path / "out"))[0]) == 2
    assert sorted(call.args[0].stem for call in read.call_args_list) == sorted(TABLES)


def test_a_folder_with_files_is_left_alone(store, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not empty: name a new one"):
        export_runs(store, [run(0).run_id], tmp_path)
    with pytest.raises(BadInput, match="unknown run"):
        export_runs(store, ["1999"], tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_of_an_export_that_fails_nothing_is_left_and_the_next_one_may_have_its_folder(tmp_path, kind):
    store, folder = result_store(client := MemoryBucket()), tmp_path / "out"
    first, second = (store.put_run(run(number), tables()).run_id for number in range(2))
    client.rotten = {f"runs/{second}/migration.parquet"}
    with pytest.raises(BadInput, match="it is damaged"):
        export_runs(store, [first, second], folder, kind)
    assert not [*folder.iterdir()]
    assert export_runs(store, [first], folder, kind) == [first]


def test_an_export_of_version_2_and_one_from_before_there_was_a_table_come_in(exported, store):
    lines = [json.loads(line) for line in (exported / "manifests.jsonl").read_text().splitlines()]
    for line in lines:
        line["files"] = [file for file in line["files"] if file != "scaling.parquet"]
    (exported / "manifests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    next(exported.glob("scaling.*")).unlink()
    other = result_store()
    stored, _ = import_runs(other, read_export(exported))
    assert other.get_table(stored[0], "scaling").empty
    table("snapshots", lambda t: t.drop(columns="verdict"))(exported)
    for name in ("manifests.jsonl", "export.json"):
        content(name, lambda told: told.replace(b'version": 4', b'version": 2'))(exported)
    other = result_store()
    stored, _ = import_runs(other, read_export(exported))
    assert set(other.get_table(stored[0], "snapshots")["verdict"]) == {"not judged"}
