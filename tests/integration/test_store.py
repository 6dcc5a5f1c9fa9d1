"""The result store on a real MinIO: whole runs or none, and one clear line when something is wrong."""

import io
import json
import socket
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_store
from minio import Minio
from small_store import make_table, tables

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.objects import Bucket
from keyshift.results.files import Files
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore

TABLES = tables()


@pytest.fixture
def prefix() -> str:
    return f"runs-{uuid.uuid4().hex}"


@pytest.fixture
def store(stack: Endpoints, prefix: str) -> ResultStore:
    return ResultStore(stack, prefix)


@pytest.fixture
def keys(stack: Endpoints, prefix: str):
    """What is in the store, asked of MinIO itself."""
    client = Minio(stack.minio, access_key=stack.access_key, secret_key=stack.secret_key, secure=stack.secure)

    def names() -> set[str]:
        found = client.list_objects(stack.bucket, prefix=f"{prefix}/", recursive=True)
        return {item.object_name.removeprefix(f"{prefix}/") for item in found}

    names.client = client
    return names


def run(day: int = 0, strategy: str = "fluid", status: str = "ok") -> Manifest:
    return small_store.run(24 * 60 * day, strategy, status, {"rate": 100 + day}, spike_ms=10.0 + day)


def test_a_run_comes_back_as_it_was_stored(store, tmp_path, keys):
    page = tmp_path / "page.html"
    page.write_text("<p>hello")
    run_id = store.put_run(run(), TABLES).run_id
    store.put_file(run_id, "figures/latency.png", b"\x89PNG")
    store.put_file(run_id, "page.html", page)
    stored = store.get_manifest(run_id)
    assert stored.files == sorted([f"{name}.parquet" for name in TABLES] + ["figures/latency.png", "page.html"])
    assert stored.model_copy(update={"files": []}) == run()
    for name, table in TABLES.items():
        assert store.get_table(stored.run_id, name).equals(table.to_pandas())
    assert store.get_table(stored.run_id, "latency").dtypes.tolist() == [np.float64, np.float32, *[np.int16] * 3]
    assert store.get_file(stored.run_id, "page.html") == b"<p>hello"
    assert store.get_file(stored.run_id, "figures/latency.png") == b"\x89PNG"
    assert keys() == {f"{stored.run_id}/{name}" for name in [*stored.files, "manifest.json"]}


def test_a_large_table_comes_back_and_was_sent_in_one_request(store, keys, stack, prefix):
    rows = 2_000_000
    random = np.random.default_rng(0)
    columns = {
        "created_s": random.uniform(-20, 40, rows),
        "latency_ms": random.uniform(1, 99, rows).astype("f4"),
        "slot": np.zeros(rows, "i2"),
    }
    stored = store.put_run(run(), TABLES | {"latency": make_table("latency", columns)})
    found = keys.client.stat_object(stack.bucket, f"{prefix}/{stored.run_id}/latency.parquet")
    assert found.size > 10 * 2**20
    assert "-" not in found.etag, "sent in parts, which an interruption leaves behind"
    assert store.get_table(stored.run_id, "latency")["created_s"].sum() == pytest.approx(columns["created_s"].sum())


def test_runs_are_listed_newest_first_and_chosen_by_their_kind(store):
    for manifest in (run(1, "lazy"), run(0), run(3, status="bad"), run(2, status="died")):
        store.put_run(manifest, {} if manifest.status == "died" else TABLES)
    listed = store.list_runs()
    assert listed["run_id"].str[:8].tolist() == ["20260104", "20260103", "20260102", "20260101"]
    assert listed["status"].tolist() == ["bad", "died", "ok", "ok"]
    assert listed["error"].tolist()[1].endswith("went away")
    assert listed["spike_ms"].dropna().tolist() == [13.0, 11.0, 10.0]
    assert listed["parameters"].tolist()[0]["rate"] == 103
    assert store.list_runs(limit=2)["run_id"].str[:8].tolist() == ["20260104", "20260103"]
    assert store.list_runs(strategy="lazy", limit=1)["strategy"].tolist() == ["lazy"]
    assert store.list_runs(workload="q5").empty


def test_an_empty_store_lists_nothing_and_says_so(store):
    assert store.list_runs().empty
    assert "spike_ms" in store.list_runs().columns
    with pytest.raises(BadInput, match=r"^unknown run '2026': `keyshift results list` shows the newest ones$"):
        store.get_manifest("2026")


@pytest.mark.parametrize("stops_at", ["decisions.parquet", "latency.parquet", "manifest.json"])
@pytest.mark.parametrize("arrived", [False, True])
def test_ctrl_c_at_any_file_leaves_nothing(store, keys, monkeypatch, stops_at, arrived):
    upload = Files.write

    def interrupted(files: Files, run_id: str, name: str, content: bytes) -> None:
        if name != stops_at or arrived:
            upload(files, run_id, name, content)
        if name == stops_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(Files, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put_run(run(), TABLES)
    assert keys() == set()


def test_until_the_manifest_is_there_a_run_is_not_listed(store, keys, monkeypatch, stack, prefix):
    seen = []
    upload = Files.write

    def watched(files: Files, run_id: str, name: str, content: bytes) -> None:
        seen.append((name, len(store.list_runs())))
        upload(files, run_id, name, content)

    monkeypatch.setattr(Files, "write", watched)
    stored = store.put_run(run(), TABLES)
    assert seen[-1][0] == "manifest.json"
    assert {count for _, count in seen} == {0}
    assert len(store.list_runs()) == 1
    # Files without a manifest, as a process leaves them that is killed while it stores or deletes, are not a run.
    remove = Bucket.remove
    monkeypatch.setattr(Bucket, "remove", lambda bucket, names: remove(bucket, list(names)[:1]))
    store.delete_run(stored.run_id)
    assert len(keys()) == len(TABLES) and store.list_runs().empty


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"latency": TABLES["latency"]}, "has no table metrics, migration"),
        (TABLES | {"latency": TABLES["metrics"]}, "table latency: columns are"),
        (TABLES | {"extra": TABLES["metrics"]}, "unknown table 'extra'"),
    ],
)
def test_tables_that_cannot_be_stored_are_refused_before_anything_is_written(store, keys, tables, message):
    with pytest.raises(BadInput, match=message):
        store.put_run(run(), tables)
    assert keys() == set()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../escape", b"", r"file name '\.\./escape'"),
        ("/absolute", b"", "file name '/absolute'"),
        ("manifest.json", b"", "is kept for the run itself"),
        ("latency.parquet", b"", "is kept for the run itself"),
        ("page.html", Path("/nowhere/page.html"), r"page\.html' cannot be stored: No such file"),
    ],
)
def test_a_file_that_cannot_be_stored_is_refused_before_anything_is_written(store, keys, name, content, message):
    stored = store.put_run(run(), TABLES)
    before = keys()
    with pytest.raises(BadInput, match=message):
        store.put_file(stored.run_id, name, content)
    assert keys() == before
    assert store.get_manifest(stored.run_id) == stored


def test_a_stored_run_is_not_overwritten(store):
    store.put_run(run(), TABLES)
    with pytest.raises(BadInput, match="is stored already"):
        store.put_run(run(), TABLES | {"decisions": TABLES["decisions"].slice(0, 0)})
    assert len(store.get_table(run().run_id, "decisions")) == 1


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(store):
    first, second = (store.put_run(run(number), TABLES).run_id for number in (0, 1))
    assert store.get_manifest("20260101").run_id == first
    assert store.resolve(second) == second
    with pytest.raises(BadInput, match=rf"'2026' begins 2 runs, give more of it: {second}, {first}"):
        store.resolve("2026")
    with pytest.raises(BadInput, match=f"unknown run .* did you mean '{first}'"):
        store.resolve(first[:-1] + "9")
    with pytest.raises(BadInput, match=r"unknown run '20260101T9': did you mean '2026.*`keyshift results list`") as no:
        store.resolve("20260101T9")
    assert str(no.value).count(" '2026") == 2, "the nearest is enough"
    with pytest.raises(BadInput, match="empty"):
        store.resolve("")


def test_deleting_takes_the_whole_id_and_leaves_the_others(store, keys):
    first, second = (store.put_run(run(number), TABLES).run_id for number in (0, 1))
    with pytest.raises(BadInput, match=f"not whole.*{first}"):
        store.delete_run("20260101")
    store.delete_run(first)
    assert {key.split("/")[0] for key in keys()} == {second}
    with pytest.raises(BadInput, match="unknown run"):
        store.delete_run(first)


def test_a_file_can_be_added_later_but_not_in_place_of_a_table(store):
    run_id = store.put_run(run(), TABLES).run_id
    store.put_file(run_id, "notebook.ipynb", b"{}")
    store.put_file("20260101", "notebook.ipynb", b"{ }")
    assert store.get_file(run_id, "notebook.ipynb") == b"{ }"
    assert store.get_manifest(run_id).files.count("notebook.ipynb") == 1
    with pytest.raises(BadInput, match="kept for the run itself"):
        store.put_file(run_id, "latency.parquet", b"")
    with pytest.raises(BadInput, match=r"unknown file of run .*did you mean 'notebook\.ipynb'"):
        store.get_file(run_id, "notebook.ipyn")
    with pytest.raises(BadInput, match="unknown table 'latencies': did you mean 'latency'"):
        store.get_table(run_id, "latencies")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: json.dumps(json.loads(raw) | {"schema_version": 99}).encode(), "schema_version 99.*upgrade"),
        (lambda raw: json.dumps(json.loads(raw) | {"status": "great"}).encode(), "status = 'great'"),
        (lambda raw: raw[:100], "is not JSON"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused_and_hides_no_others(store, keys, stack, prefix, spoil, message):
    bad, fine = (store.put_run(run(number), TABLES).run_id for number in (1, 0))
    name = f"{prefix}/{bad}/manifest.json"
    content = spoil(store.get_file(bad, "manifest.json"))
    keys.client.put_object(stack.bucket, name, io.BytesIO(content), len(content))
    with pytest.raises(KeyshiftError, match=message):
        store.get_manifest(bad)
    for entry in keys.client.list_objects(stack.bucket, prefix=f"{prefix}-index/", recursive=True):
        keys.client.remove_object(stack.bucket, entry.object_name)  # as if another keyshift had stored the run
    listed = store.list_runs().set_index("run_id")
    assert listed["status"].to_dict() == {bad: "unreadable", fine: "ok"}
    assert bad in listed.loc[bad, "error"]


def test_a_run_that_version_1_stored_is_read_listed_and_added_to(store, keys, stack, prefix):
    folder = Path(__file__).parents[1] / "unit" / "results" / "version_1"
    raw = json.loads((folder / "manifest.json").read_text())
    run_id = raw["run_id"]
    for name in ("manifest.json", *raw["files"]):
        keys.client.fput_object(stack.bucket, f"{prefix}/{run_id}/{name}", str(folder / name))
    new = store.put_run(run(), TABLES).run_id
    listed = store.list_runs().set_index("run_id")
    assert listed["status"].to_dict() == {run_id: "ok", new: "ok"}
    assert listed.loc[run_id, "p99_ms"] == raw["summary"]["p99_ms"]
    for again in range(2):
        for name in TABLES.keys() - {"scaling", "snapshots"}:
            assert store.get_table(run_id, name)["stage"].max() == 0
        for later in ("scaling", "snapshots"):
            assert store.get_table(run_id, later).columns.tolist() == TABLES[later].column_names
            assert store.get_table(run_id, later).empty, "which came later"
        assert len(store.get_table(run_id, "latency")) == raw["summary"]["events"]
        store.put_file(run_id, f"page{again}.html", b"<p>")
    assert store.get_manifest(run_id).files == sorted([*raw["files"], "page0.html", "page1.html"])


def one_line(error: pytest.ExceptionInfo[ServiceUnavailable], endpoints: Endpoints) -> None:
    text = str(error.value)
    assert "\n" not in text and endpoints.minio in text
    assert endpoints.secret_key not in text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"access_key": "not-the-right-one"}, "refused the credentials"),
        ({"secret_key": "not-the-right-one"}, "refused the credentials"),
        ({"bucket": "no-such-bucket"}, "has no bucket 'no-such-bucket'"),
    ],
)
def test_what_minio_refuses_is_one_clear_line(stack, wrong, words):
    endpoints = replace(stack, **wrong)
    for use in (ResultStore(endpoints).list_runs, lambda: ResultStore(endpoints).put_run(run(), TABLES)):
        with pytest.raises(ServiceUnavailable, match=words) as error:
            use()
        one_line(error, endpoints)


def test_a_service_that_is_not_there_is_one_clear_line(stack):
    with socket.socket() as taken:  # bound and not listening: nobody answers, and nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        endpoints = replace(stack, minio=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ServiceUnavailable, match=r"does not answer.*keyshift up") as error:
            ResultStore(endpoints).list_runs()
    one_line(error, endpoints)
