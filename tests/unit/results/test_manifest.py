"""The stored form of a run: what is accepted, what is refused, and what docs/ say about it."""

import json
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from small_store import run

from keyshift.model.errors import KeyshiftError
from keyshift.results import manifest as m
from keyshift.results.dictionary import markdown
from keyshift.results.tables import TABLES

DOCS = Path(__file__).parents[3] / "docs"
VERSION_1 = Path(__file__).parent / "version_1"  # a run that keyshift stored when schema_version was 1
PARAMETERS = {"skew": 0.5, "order": "id", "cache": True, "cap": None}


def good() -> dict[str, Any]:
    """A run as JSON has it."""
    return run(parameters=PARAMETERS).model_dump(mode="json")


def changed(path: str, value: Any) -> dict[str, Any]:
    raw = inner = good()
    *parents, last = path.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return raw


def test_a_stored_manifest_satisfies_the_published_schema_which_is_up_to_date():
    published = json.loads((DOCS / "manifest.schema.json").read_text())
    assert published == m.json_schema(), "write json_schema() to docs/manifest.schema.json"
    stored = m.validate(good()).model_dump(mode="json")
    jsonschema.Draft202012Validator(m.json_schema()).validate(stored)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(m.json_schema()).validate(stored | {"surprise": 1})


@pytest.mark.parametrize("table", [*TABLES, "runs"])
def test_the_description_has_every_column_and_measure_with_its_meaning(table):
    assert markdown(table) in (DOCS / "results.md").read_text(), "put markdown(table) into docs/results.md"


def test_a_manifest_comes_back_as_it_was_with_times_in_utc():
    manifest = m.validate(changed("started_at", "2026-01-01T13:00:00+01:00"))
    assert m.validate(json.loads(manifest.model_dump_json())) == manifest == run(parameters=PARAMETERS)
    assert manifest.model_dump(mode="json")["started_at"] == "2026-01-01T12:00:00Z"
    assert manifest.parameters["cache"] is True


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("summary.lost", -1, r"summary\.lost = -1: .*greater than or equal to 0"),
        ("summary.spike_ms", float("inf"), r"summary\.spike_ms = inf: .*finite"),
        ("machine.hostname", "node7", r"unknown key of machine 'hostname': known: cpus"),
        ("started_at", "2026-01-01T12:00:00", r"started_at = .*timezone"),
        ("parameters.rates", [1, 2], r"parameters\.rates"),
        ("stages", [{"name": "keycount", "due": "always"}], r"stages\.0\.due = 'always': .*'event' or 'workload'"),
        ("schema_version", 5, r"schema_version 5, this keyshift .* reads up to 4: upgrade"),
        ("schema_version", 1, r"schema_version = 1: .*4"),
        ("schema_version", "1.0", r"schema_version = '1\.0'"),
        ("schema_version", None, r"no schema_version"),
    ],
)
def test_a_refusal_names_the_field_its_value_and_what_is_allowed(path, value, message):
    with pytest.raises(KeyshiftError, match=message) as refused:
        m.validate(changed(path, value))
    assert "\n" not in str(refused.value)


LATENCIES = ("p50_ms", "p99_ms", "p99_undisturbed_ms", "spike_ms", "longest_ms")


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        *(pytest.param(name, -1.5, -1.5, id=f"{name} by a clock of Kafka that is behind") for name in LATENCIES),
        pytest.param("spike_ms", float("nan"), None, id="not a number"),
    ],
)
def test_measures_may_be_below_0_or_not_known(name, value, stored):
    assert getattr(m.validate(changed(f"summary.{name}", value)).summary, name) == stored


@pytest.mark.parametrize("raw", [None, [], "text", {}])
def test_json_that_is_no_manifest_is_refused(raw):
    with pytest.raises(KeyshiftError, match="not a keyshift manifest"):
        m.validate(raw)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status", "bad"),
        ("verdict.lost", 1),
        ("verdict.ownership_violations", 1),
        ("verdict.others", {"timers lost": 1}),
        ("summary.verdict", "bad"),
        ("summary.wrong", 1),
        ("summary.strategy", "lazy"),
        ("summary", None),
        ("verdict", None),
        ("error", "boom"),
        ("status", "died"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(path, value):
    with pytest.raises(KeyshiftError, match=r"disagree|differs between|and no (error|summary)"):
        m.validate(changed(path, value))


def test_a_run_that_died_has_an_error_and_no_summary_and_a_wrong_one_is_stored_as_bad():
    died = good() | {"status": "died", "error": "Kafka went away", "summary": None, "verdict": None}
    assert m.validate(died).error == "Kafka went away"
    with pytest.raises(KeyshiftError, match="died has an error"):
        m.validate(died | {"error": None})
    raw = changed("verdict.lost", 2)
    raw["summary"] |= {"lost": 2, "verdict": "bad"}
    assert m.validate(raw | {"status": "bad"}).verdict.ok is False


def test_run_ids_are_unique_valid_and_sort_by_time():
    first, second = m.new_run_id("keycount", "fluid"), m.new_run_id("keycount", "fluid")
    assert first != second
    assert m.validate(changed("run_id", first) | {"summary": good()["summary"] | {"run_id": first}}).run_id == first
    assert "-my_workload-my_own_-" in m.new_run_id("My Workload", "my-own!")


def test_the_machine_is_described_without_its_name_and_versions_are_what_may_change_a_result():
    machine = m.describe_machine()
    assert machine.cpus >= 1 and machine.memory_mib > 100 and machine.cpu and machine.system
    assert socket.gethostname() not in json.dumps(machine.model_dump())
    versions = m.describe_versions()
    assert {"keyshift", "python", "pyspark", "pyarrow", "kafka-python"} <= set(versions)
    assert {"confluent-kafka", "duckdb", "redis", "rocksdict"} <= set(versions)
    assert all(text[0].isdigit() for text in versions.values())


def test_a_missing_java_is_left_out_of_the_versions(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "java" not in m.describe_versions()


def test_a_java_is_asked_for_its_version_once(monkeypatch, tmp_path):
    java, asked = tmp_path / "bin" / "java", tmp_path / "asked"
    java.parent.mkdir()
    settings = "java.specification.version = 21\njava.version = 21.0.9\n"
    java.write_text(f"#!/bin/sh\necho >> {asked}\nprintf '{settings}' >&2\necho jdk.incubator.vector\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [m.describe_versions()["java"] for _ in range(2)] == ["21.0.9"] * 2
    assert asked.read_text() == "\n"


@pytest.mark.parametrize("version", [2, 3])
def test_a_manifest_of_version_2_or_3_is_read_as_one_of_today_also_what_copies_of_a_strategy_were_called(version):
    assert m.validate(good() | {"schema_version": version}) == m.validate(good())
    old = {"replicate": 2, "replicas": "periodic"}
    raw = good() | {"schema_version": version, "parameters": old}
    found = m.validate(raw | {"summary": raw["summary"] | {"parameters": old}})
    assert found.parameters == found.summary.parameters == {"replicate": 2, "copies": "periodic"}
    today = m.validate(good() | {"parameters": {"replicas": 2}})
    assert today.parameters == {"replicas": 2}, "the replicas of a job"
    assert m.validate(good() | {"parameters": {"then_slots": "4,3"}}).parameters == {"then": "4,3"}, "of any version"


def test_a_manifest_of_version_1_is_read_as_one_of_today():
    raw = json.loads((VERSION_1 / "manifest.json").read_text())
    assert raw["schema_version"] == 1
    found = m.validate(raw)
    assert found.schema_version == m.SCHEMA_VERSION
    assert (found.stages, found.replicas) == ([m.Stage(name=raw["workload"], due="event")], 1)
    assert found.summary.results_due is None, "it was not measured"
    again = json.loads(found.model_dump_json())
    new = {"replicas": "copies", "then_slots": "then"}
    parameters = {new.get(name, name): value for name, value in raw["parameters"].items()}
    kept = {name: raw[name] for name in ("run_id", "status", "verdict", "files")}
    assert again.items() >= (kept | {"parameters": parameters}).items()
    summary = raw["summary"] | {"parameters": parameters}
    assert {name: again["summary"][name] for name in raw["summary"]} == summary
    assert m.validate(again) == found
