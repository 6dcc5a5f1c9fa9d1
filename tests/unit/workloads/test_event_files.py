import json
from dataclasses import replace
from itertools import pairwise
from types import NoneType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, ValidationError

from keyshift.model.errors import BadInput
from keyshift.workloads import Source, workloads
from keyshift.workloads.event_files import HEAD, READ_EVENTS, EventFile, event_writer, parameters_of
from keyshift.workloads.keycount import EVENTS, KeyCount
from keyshift.workloads.nexmark import Nexmark
from keyshift.workloads.saas import Saas
from keyshift.workloads.windowcount import WindowCount
from workload_runs import with_sources

KEYCOUNT = {"key_groups": 8, "keys": 60, "state_bytes": 16}
SMALL = {"keycount": KEYCOUNT, "stock": {"open_orders": 50, "resting": 2}, "nexmark": {"delay_ms": 30}}
KNOWN = [workloads.get(name)(**SMALL.get(name, {}), seed=5) for name, _ in workloads.items()]
IDS = [workload.name for workload in KNOWN]
GROUP = 37  # events of a row group


def times_of(source, partition, count, start_us=0, every_us=1000):
    return start_us + every_us * np.arange(count, dtype=np.int64) + partition


def write(path, workload, partitions=2, events=200):
    """The batches that are in the file, by source and partition."""
    made = {}
    with event_writer(path, workload, {source.name: partitions for source in workload.sources}) as out:
        for source in workload.sources:
            for number in range(partitions):
                made[source.name, number] = whole = source.partition(number).take(times_of(source, number, events))
                for begin in range(0, events, GROUP):
                    out.write(source.name, number, whole.slice(begin, GROUP))
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.parquet"


@pytest.mark.parametrize("workload", KNOWN, ids=IDS)
def test_events_come_back_as_they_were_drawn_and_at_other_times_only_points_in_time_move(workload, path):
    made, file = write(path, workload), EventFile(str(path))
    file.require(workload, {source.name: 2 for source in workload.sources})
    for source in workload.sources:
        for number in range(2):
            replayed, parts = file.partition(source, number), []
            for begin, end in pairwise((0, 1, 1, 90, 200)):
                parts.append(replayed.take(times_of(source, number, 200)[begin:end]))
            expected = made[source.name, number]
            assert pa.Table.from_batches(parts) == pa.Table.from_batches([expected])
            assert [part.num_rows for part in parts] == [1, 0, 89, 110]
            assert file.events[source.name, number] == expected.num_rows == 200

        before, times = made[source.name, 1], times_of(source, 1, 200, start_us=10**15, every_us=333)
        after = file.partition(source, 1).take(times)
        assert after["t"].to_pylist() == times.tolist()
        for name in set(source.schema.names) - {"t", *source.times}:
            assert after[name] == before[name]
        for name in source.times:
            distance = [pc.subtract(batch[name], batch["t"]) for batch in (before, after)]
            assert distance[0] == distance[1]
            assert distance[0].null_count < 200, "there are some"


def test_the_published_times_are_those_of_two_workloads_and_a_source_that_says_nothing_depends_on_all_parameters():
    named = {workload.name: [source.times for source in workload.sources] for workload in KNOWN}
    assert {name: times for name, times in named.items() if any(times)} == {
        "windowcount": [("at",)],
        "nexmark": [("at", "expires")],
    }
    silent = with_sources(KeyCount, lambda plain: [Source(plain.name, plain.schema, plain.partition)])
    workload = silent(**KEYCOUNT)
    assert parameters_of(workload).keys() == workload.model_dump().keys() - {"bins"}


def others(workload):
    """The same with one other value of each parameter that its events are said not to depend on."""
    drawn = parameters_of(workload)
    given = workload.model_dump()
    for name, field in type(workload).model_fields.items():
        if name in drawn or name == "bins":
            continue
        value, kind = given[name], field.annotation
        tried = list(getattr(kind, "__args__", [])) or [value * 2 + 1 if isinstance(value, int | float) else "q1"]
        for other in tried:
            try:
                yield name, type(workload)(**given | {name: other})
            except (ValidationError, BadInput):
                continue


@pytest.mark.parametrize("workload", KNOWN, ids=IDS)
def test_events_depend_on_nothing_but_the_parameters_that_are_kept(workload):
    kept, tried = parameters_of(workload), dict(others(workload))
    assert kept.items() <= workload.model_dump(mode="json").items()
    assert kept["seed"] == 5 and len(kept) > 1 and "bins" not in kept
    assert not any(isinstance(value, BaseModel | NoneType) for value in kept.values())
    expected = {"keycount": {"state_bytes", "work_us"}, "nexmark": {"query", "window_ms"}}
    assert tried.keys() >= expected.get(workload.name, set())
    for name, other in tried.items():
        for one, another in zip(workload.sources, other.sources, strict=True):
            times = times_of(one, 1, 120)
            assert one.partition(1).take(times) == another.partition(1).take(times), name


def test_other_tools_read_the_columns(path):
    import duckdb
    import pandas as pd

    made = write(path, workload := Saas(seed=5))
    table = pd.read_parquet(path)
    assert list(table.columns[:3]) == ["source", "partition", "t"]
    control = table[(table["source"] == "control") & (table["partition"] == 1)]
    assert control["alert"].tolist() == made["control", 1]["alert"].to_pylist()
    assert control["message"].isna().all()
    counts = duckdb.sql(f"select source, partition, count(*) from '{path}' group by all order by all").fetchall()
    assert counts == [(source.name, number, 200) for source in workload.sources for number in (0, 1)]


def test_little_of_a_large_row_group_is_read_at_once(path, monkeypatch):
    workload, count = KeyCount(**KEYCOUNT), 3 * READ_EVENTS
    [source] = workload.sources
    times = times_of(source, 0, count)
    with event_writer(path, workload, {"events": 1}) as out:
        out.write("events", 0, source.partition(0).take(times))
    read = []
    iterated = pq.ParquetFile.iter_batches

    def seen(*arguments, **more):
        for batch in iterated(*arguments, **more):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", seen)
    partition = EventFile(str(path)).partition(source, 0)
    assert partition.take(times[:5]).num_rows == 5
    assert read == [READ_EVENTS]
    assert partition.take(times[5:]).num_rows == count - 5
    assert read == [READ_EVENTS] * 3


def test_behind_the_last_event_there_is_a_line_and_no_event_and_too_few_are_counted(path):
    workload = KeyCount(**KEYCOUNT)
    write(path, workload, events=200)
    file = EventFile(str(path))
    partition = file.partition(workload.sources[0], 1)
    partition.take(np.zeros(190, np.int64))
    with pytest.raises(BadInput, match="partition 1 of source events is over, and 3 more of its events are due"):
        partition.take(np.zeros(13, np.int64))
    file.require_enough("events", [200, 200])
    with pytest.raises(BadInput, match=r"200 events in partition 1 of source events, .* needs 201 there, 401 in all"):
        file.require_enough("events", [200, 201])


def test_a_damaged_page_is_told_and_not_offered(path):
    workload = KeyCount(**KEYCOUNT)
    write(path, workload)
    raw = bytearray(path.read_bytes())
    metadata = pq.ParquetFile(path).metadata.row_group(0).column(2)
    raw[metadata.data_page_offset + metadata.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(BadInput, match="partition 0 of source events is damaged"):
        EventFile(str(path)).partition(workload.sources[0], 0).take(np.zeros(100, np.int64))


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(path, words, workload=None, routers=2):
    workload = workload or KeyCount(**KEYCOUNT, seed=5)
    with pytest.raises(BadInput, match=words) as error:
        EventFile(str(path)).require(workload, {source.name: routers for source in workload.sources})
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_event_file_is_refused(path, tmp_path):
    refused(path, "cannot be read")
    refused(tmp_path, "cannot be read")
    path.write_text("key,t\n")
    refused(path, "no Parquet file, or not a whole one")
    pq.write_table(pa.table({"key": [1], "t": [1]}), path)
    refused(path, "no 'keyshift.events' in its metadata")


@pytest.mark.parametrize(
    "head, words",
    [
        ("{}", "in its metadata is wrong: workload: field required; parameters: field required"),
        ("[", "in its metadata is wrong: .*: invalid JSON"),
        (
            '{"format": 2, "workload": "a", "parameters": {}, "partitions": {}}',
            "wrong: format = 2: input should be 1; ",
        ),
        ('{"workload": "a", "parameters": {}, "partitions": {}}', "there is no column source, partition"),
    ],
)
def test_metadata_and_columns_that_are_not_there_are_named(path, head, words):
    table = pa.table({"key": [1], "t": [1]}).replace_schema_metadata({HEAD: head})
    pq.write_table(table, path)
    refused(path, words)


NOT_SAID = "row group 0 does not say of which one partition"


def other(name, values=None):
    """Makes a table whose column of this name is another one, or missing, of its first events."""

    def changed(table):
        at, rest = table.schema.get_field_index(name), table.slice(0, 3).drop_columns(name)
        return rest if values is None else rest.add_column(at, name, values)

    return changed


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        (lambda table: table, {}, NOT_SAID),
        (lambda table: table.slice(0, 100), {"write_statistics": False}, NOT_SAID),
        (other("t", pa.array([None] * 3, pa.int64())), {}, "row group 0 has events without a time t"),
        (other("t", pa.array([1, None, 3])), {}, "row group 0 has events without a time t"),
        (other("key"), {}, "column key of source events is missing, expected int64"),
        (other("key", pa.array(["a", "b", "c"])), {}, "column key of source events is string, expected int64"),
    ],
)
def test_what_another_tool_has_written_is_refused_if_it_is_not_like_the_source(path, change, how, words):
    write(path, KeyCount(**KEYCOUNT, seed=5))
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path, **how)
    refused(path, words)


def test_another_workload_or_another_number_of_routers_is_refused(path):
    write(path, KeyCount(**KEYCOUNT, seed=5))
    refused(path, "events of workload keycount, and the run has workload = nexmark", Nexmark())
    refused(path, "events has 2 partitions there, and 3 routers in the run; set source_routers=events:2", routers=3)
    refused(path, "events of keys = 60, and the run has 61; set keys=60", KeyCount(**KEYCOUNT | {"keys": 61}, seed=5))
    refused(path, "events of seed = 5, and the run has 6; set seed=5", KeyCount(**KEYCOUNT, seed=6))
    other = KeyCount(**KEYCOUNT | {"state_bytes": 99}, work_us=7.0, seed=5)
    EventFile(str(path)).require(other, {"events": 2})


def test_of_files_that_events_were_made_of_the_names_are_compared_and_of_other_texts_all(tmp_path, path):
    (tmp_path / "a.txt").write_text("one two three")
    wordcount = workloads.get("wordcount")
    there = wordcount(text=str(tmp_path / "a.txt"))
    write(path, there)
    assert str(tmp_path) not in json.dumps(EventFile(str(path)).head.model_dump()), "no folder of this machine"
    EventFile(str(path)).require(there, {"words": 2})
    refused(path, "events of text = .*a.txt, and the run has b.txt", wordcount(text=str(tmp_path / "b.txt")))
    path.unlink()
    labelled = with_sources(Named, lambda plain: [replace(plain, drawn_with=("label",))])
    write(path, labelled(**KEYCOUNT))
    EventFile(str(path)).require(labelled(**KEYCOUNT), {"events": 2})
    refused(path, "events of label = a/x, and the run has b/x; set label=a/x", labelled(**KEYCOUNT, label="b/x"))


class Named(KeyCount):
    label: str = "a/x"


# -- own events --------------------------------------------------------------------------------------------------------


def test_a_trace_of_one_s_own_becomes_a_file(path):
    workload = WindowCount(keys=4)
    rows = pa.table({"at": [5, 6], "key": pa.array([3, 1], pa.int32()), "t": [10, 20], "more": ["a", "b"]})
    with event_writer(path, workload, {"events": 2}) as out:
        for number in range(2):
            out.write("events", number, rows.slice(number, 1).to_batches()[0])
    made = EventFile(str(path)).partition(workload.sources[0], 1).take(np.array([1020]))
    assert made.to_pylist() == [{"key": 1, "t": 1020, "at": 1006}]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("event", 0), "unknown source 'event': did you mean 'events'"),
        (("events", 2), "partition = 2: source events has partitions 0 to 1"),
        (("events", 0, pa.record_batch({"key": [1]})), "events of source events: .*t"),
        (("events", 0, pa.record_batch({"key": ["a"], "t": [1]})), "events of source events: .*'a'"),
    ],
)
def test_events_that_are_none_of_a_source_are_refused_and_leave_no_file(path, arguments, words):
    workload = KeyCount(**KEYCOUNT)
    batch = workload.sources[0].partition(0).take(np.zeros(3, np.int64))
    source, partition, *others = arguments
    with pytest.raises(BadInput, match=words), event_writer(path, workload, {"events": 2}) as out:
        out.write("events", 0, batch)
        out.write(source, partition, *(others or [batch]))
    assert not path.exists()


def test_no_file_is_written_over(path):
    path.write_text("mine")
    exists = pytest.raises(BadInput, match=r"cannot be written .File exists")
    with exists, event_writer(path, KeyCount(), {"events": 1}):
        pass
    assert path.read_text() == "mine"


def test_columns_of_one_name_are_of_one_type(path):
    other = pa.schema([pa.field("key", pa.string()), EVENTS.field("t")])
    whose = pa.schema([*EVENTS, pa.field("source", pa.string())])
    for sources, words in (
        (lambda plain: [plain, Source("others", other, plain.partition)], "key of source others: .* which is int64"),
        (lambda plain: [Source("events", whose, plain.partition)], "column source of source"),
    ):
        workload = with_sources(KeyCount, sources)()
        with pytest.raises(BadInput, match=words), event_writer(path, workload, {"events": 1, "others": 1}):
            pass
        assert not path.exists()
