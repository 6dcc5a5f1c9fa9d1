import contextlib
import io
import json
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from small_batches import write_notebook
from small_bucket import ENDPOINTS
from small_cluster import FREE
from small_jobs import file_of, keep
from small_store import result_store, run, tables

from keyshift import cli, folders, planner
from keyshift.cli import experiments, options
from keyshift.control.files import Jobs
from keyshift.control.server import listen
from keyshift.experiment.parameters import DEFAULTS
from keyshift.lab.environment import open_services
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.needs import Resources
from keyshift.place.profile import KEYS, Profile, SparkProfile
from keyshift.planner import strategies
from keyshift.program import INTERRUPTS
from keyshift.services import processes
from keyshift.studies import stored_runs
from keyshift.studies.notebook import Executed
from keyshift.workloads.stock import writing

LIB = Path(planner.__file__).parents[2]  # the commands are to be those of the package that is tested here
QUICKSTART = str(LIB.parent / "notebooks" / "start" / "00_quickstart.ipynb")


def python(*arguments, home, path="/usr/bin:/bin"):
    environment = {"PATH": path, "PYTHONPATH": str(LIB), "KEYSHIFT_HOME": str(home), "HOME": str(home)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def keyshift(*arguments, home):
    """As a process of its own does it, but in this one: to start takes longer than what most commands do."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    with contextlib.ExitStack() as stack:
        for number, handler in handlers.items():
            stack.callback(signal.signal, number, handler)
        stack.enter_context(patch.object(sys, "argv", ["keyshift", *arguments]))
        stack.enter_context(patch.dict(os.environ, {"KEYSHIFT_HOME": str(home), "HOME": str(home)}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        with pytest.raises(SystemExit) as left:
            cli.main()
    return SimpleNamespace(returncode=left.value.code or 0, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.mark.parametrize("command", ["strategies", "workloads", "backends", "orderings", "parameters"])
def test_lists_have_one_json_object_per_line(command, tmp_path):
    done = keyshift(command, "--json", home=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert rows
    assert all(row["what"] for row in rows)


def test_help_names_every_command(tmp_path):
    done = python("-m", "keyshift.cli", "--help", home=tmp_path)
    services, runs = "up down status lab notebook calibrate", "run plan simulate results artifact"
    for command in f"{services} {runs} strategies workloads tape events".split():
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--strategy", "fluit"], "did you mean 'fluid'"),
        (["run", "--set", f"keys=1{'0' * 400}"], "input should be less than or equal to 9007199254740992"),
        (["run", "--set", f"slots={'[' * 5000}"], "input should be a valid integer"),
        (["run", "--workload", "wordcount", "--set", 'text="a\\u0000b"'], "which has no NUL byte"),
        (["notebook", "nowhere.ipynb"], "there is no such file"),
        (["notebook", QUICKSTART, "--set", 'strategies=["flud"]'], "unknown strategy 'flud': did you mean 'fluid'"),
        (["upp"], "No such command"),
        (["up", "--kafka-port", "65536"], "not '65536'"),
        (["lab", "--metrics", "9100"], "has to be in the environment: KEYSHIFT_CONTROL_TOKEN"),
        (["job", "start", "--port", "70000"], "not '70000'"),
        (["job", "start", "--profile", "local-clutser"], "did you mean 'local-cluster'"),
        (["job", "status"], "no job runs here; start one with `keyshift job start`"),
        (["job", "stop", "nobody"], "unknown job 'nobody': known: none"),
        (["resume", "nobody"], "unknown job to resume 'nobody'"),
        (["job", "scale"], "Missing option '--slots'"),
        (["plan", "--strategy", "machted"], "did you mean 'matched'"),
        (["plan", "--from", "0"], "slots = 0: must be between 1 and the number of units, 128"),
        (["plan", "--groups", "0"], "'--groups': Input should be greater than or equal to 1, not '0'"),
        (["plan", "--groups", "many"], "not 'many'"),
        (["results", "list", "--limit", "-3"], "not '-3'"),
        (["results", "share", "2026", "-o", "nowhere/report.html"], "nowhere/report.html: its folder does not exist"),
        (["results", "share", "2026", "-o", "/"], "--output /: it is a folder; name a file"),
        (["results", "export", "2026", "-o", "pyproject.toml/new"], "pyproject.toml/new: its folder does not exist"),
        (["results", "export", "2026", "-o", "/"], "folder '/' is not empty"),
        (["results", "export", "2026", "-o", "new", "--format", "xls"], "'xls' is not one of 'parquet', 'csv'"),
        (["results", "import", "nowhere"], "nowhere/export.json cannot be read: No such file"),
        (["artifact", "-o", "/"], "folder '/' is not empty: name a new one"),
        (["artifact", "-o", "nowhere/new"], "--output nowhere/new: its folder does not exist"),
        (["artifact", "2026", "--all", "small", "-o", "new"], "give runs, or --all and a kind of sets"),
        (["artifact", "--all", "published,smal", "-o", "new"], "'smal': did you mean 'small'"),
        (["artifact", "--doi", "zenodo.1", "-o", "new"], "doi = 'zenodo.1'"),
        (["artifact", "--license", "my own", "-o", "new"], "license = 'my own'"),
        (["plan", "--skew", "-1"], "Zipf exponent = -1.0"),
        (["tape", "check", "nowhere.tape"], "tape = 'nowhere.tape': cannot be read (No such file or directory)"),
        (["tape", "write", "a", "--form", "wide"], "'full', 'short'"),
        (["tape", "write", "a", "--seconds", "0"], "not '0'"),
        (["tape", "write", "/", "--set", "securities=0"], "securities = 0"),
        (
            ["tape", "write", "/", "--set", "seconds=60"],
            "--set seconds: a run has that, and a tape the option --seconds",
        ),
        (["tape", "write", "/", "--set", "rate=50"], "and a tape the option --rate"),
        (["tape", "write", "/", "--set", "workload=keycount"], "unknown parameter of a tape 'workload'"),
        (["tape", "write", "/", "--set", "secureties=7"], "did you mean 'securities'?"),
        (["tape", "write", "/"], "cannot be written"),
        (["events", "write", "/"], "cannot be written"),
        (["events", "show", "nowhere.parquet"], "events = 'nowhere.parquet': cannot be read"),
        (["run", "--set", "events=pyproject.toml"], "is no Parquet file, or not a whole one; `keyshift events write`"),
        (["run", "--workload", "stock", "--set", "on_bad_line=ignore"], "should be 'stop' or 'skip'"),
        (["run", "--workload", "stock", "--set", "keyed_by=order"], "should be 'security' or 'account'"),
        (["plan", "--strategy", "meces", "--groups", "1048576"], "bins = 16 in each of 1048576 key groups make"),
        (["simulate", "--set", "strategy=meces"], "--set strategy=meces: use --strategy"),
        (["simulate", "--costs", "nowhere/costs.json"], "nowhere/costs.json: its folder does not exist"),
        (["simulate", "--costs", "pyproject.toml"], "costs = 'pyproject.toml': Expecting value"),
        (["simulate", "--costs", "long" * 64], "longlong: File name too long; name another one"),
    ],
)
def test_bad_input_is_one_line_with_status_2_and_starts_nothing(arguments, words, tmp_path):
    done = keyshift(*arguments, home=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "logs").exists()


def test_a_simulation_needs_no_service_if_costs_are_known(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(FREE.to_json()))
    small = ["--slots", "4", "--to-slots", "6", "--set", "key_groups=24", "--rate", "100", "--state", "24GB"]
    strategies_ = ["--strategy", "matched", "--strategy", "all_at_once"]
    done = keyshift("simulate", "--costs", str(file), *small, *strategies_, "--json", home=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["strategy"], row["units_moved"]) for row in rows] == [("matched", 8), ("all_at_once", 8)]
    told = keyshift("simulate", "--costs", str(file), *small, home=tmp_path).stdout.splitlines()
    assert "longest wait (s)" in told[0]
    assert [line.split()[0] for line in told[1:]] == ["all_at_once", "matched", "fluid"]


def plan(*arguments, home):
    done = keyshift("plan", *arguments, home=home)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_plan_is_one_json_line_per_step_and_a_later_migration_has_one_of_its_own(tmp_path):
    steps = plan("--strategy", "matched", "--groups", "8", "--from", "1", "--to", "3", home=tmp_path)
    moves = enumerate([(3, 1), (4, 1), (5, 1), (6, 2), (7, 2)])
    told = [(n, [{"unit": unit, "source": 0, "destination": to}]) for n, (unit, to) in moves]
    assert steps == [{"step": number, "moves": made} for number, made in told]
    arguments = ["--strategy", "spacker_dynamic", "--groups", "64", "--from", "2", "--to", "4"]
    assert [len(plan(*arguments, "--migration", number, home=tmp_path)) for number in ("0", "1")] == [1, 2]


@pytest.mark.parametrize("strategy", strategies.names())
def test_every_strategy_can_be_planned_without_a_service(strategy, tmp_path):
    steps = plan("--strategy", strategy, "--groups", "16", "--from", "2", "--to", "3", home=tmp_path)
    assert sum(len(step["moves"]) for step in steps) == 5 * strategies.get(strategy).bins
    assert plan("--strategy", strategy, "--from", "3", "--to", "3", home=tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_settings_change_the_plan_and_why_gives_the_reasons(tmp_path):
    arguments = ["--strategy", "hot_first", "--groups", "8", "--from", "1", "--to", "2", "--set", "size=3"]
    steps = plan(*arguments, home=tmp_path)
    assert [[move["unit"] for move in step["moves"]] for step in steps] == [[4, 5, 6], [7]]
    reasons = plan(*arguments, "--why", home=tmp_path)
    assert [(row["unit"], row["step"]) for row in reasons] == [(4, 0), (5, 0), (6, 0), (7, 1)]
    assert reasons[0]["reason"].startswith("place 1 of 4 by heat")


def test_planning_loads_no_engine_no_client_and_no_table(tmp_path):
    code = "import sys; from keyshift.cli import app; app(['plan'], standalone_mode=False); print(*sys.modules)"
    done = python("-c", code, home=tmp_path)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "keyshift.planner" in loaded
    assert not loaded & {"kafka", "kazoo", "minio", "pandas", "pyarrow", "pyspark", "keyshift.lab", "keyshift.services"}


def test_what_a_cluster_needs_is_loaded_in_a_cluster_alone(tmp_path):
    """Its client takes as long as all else that a command loads."""
    done = python("-c", "import sys, keyshift.lab.run; print(*sys.modules)", home=tmp_path)
    loaded = set(done.stdout.split())
    assert "pyspark" in loaded and not loaded & {"kubernetes", "keyshift.place.pods"}


def test_strategies_show_a_person_three_columns_and_a_script_the_whole_point(tmp_path):
    table = keyshift("strategies", home=tmp_path).stdout.splitlines()
    assert (table[0].split(), len(table)) == (["strategy", "what", "source"], 1 + len(strategies.names()))
    rows = [json.loads(line) for line in keyshift("strategies", "--json", home=tmp_path).stdout.splitlines()]
    meces = next(row for row in rows if row["strategy"] == "meces")
    assert meces["source"] == "Meces"
    assert (meces["order"], meces["batch"], meces["transfer"], meces["bins"]) == ("access", "per_source", "fetch", 16)
    assert [row["strategy"] for row in rows if row["by_migration"]] == ["spacker_dynamic"]


def test_workloads_show_a_person_what_an_event_costs_and_a_script_their_parameters_with_bounds(tmp_path):
    table = keyshift("workloads", home=tmp_path).stdout.splitlines()
    assert table[0].split() == ["workload", "what", "cpu_us_per_event"]
    assert all(float(line.split()[-1]) > 0 for line in table[1:])
    rows = [json.loads(line) for line in keyshift("workloads", "--json", home=tmp_path).stdout.splitlines()]
    parameters = {row["workload"]: row["parameters"] for row in rows}
    shared = {"keys", "skew", "state_bytes", "key_groups", "seed"}
    assert parameters["keycount"].keys() == shared | {"exist", "work_us", "work_by"}
    assert parameters["chain"].keys() == shared | {"exist", "work_us", "work_by", "chain", "stage_work_us"}
    assert parameters["windowcount"].keys() == shared | {"window_ms", "delay_ms", "late_share", "idle_ms"}
    share = parameters["windowcount"]["late_share"]
    assert (share["default"], share["minimum"], share["maximum"]) == (0.01, 0, 1)
    assert share["description"]


@pytest.fixture
def store(monkeypatch):
    store = result_store()
    monkeypatch.setattr(stored_runs, "open_store", lambda *_: contextlib.nullcontext(store))
    return store


def test_a_store_without_what_was_asked_for_is_not_called_empty(tmp_path, store):
    assert keyshift("results", "list", home=tmp_path).stdout == "no runs yet: `keyshift run` makes one\n"
    store.put_run(run(0), tables())
    assert run(0).run_id in keyshift("results", "list", home=tmp_path).stdout
    asked = ("--workload", "stok", "--strategy", "fluid")
    assert keyshift("results", "list", *asked, home=tmp_path).stdout == "no run of workload = stok, strategy = fluid\n"


def test_runs_are_deleted_all_or_none_by_their_whole_ids(tmp_path, store):
    ids = [store.put_run(run(number), tables()).run_id for number in range(3)]
    whole = f"is not whole: to delete that run, give '{ids[1]}'"
    for wrong, words in (("2025", "unknown run '2025'"), (ids[1][:-1], whole)):
        refused = keyshift("results", "delete", ids[0], wrong, home=tmp_path)
        assert refused.returncode == 2 and words in refused.stderr
    assert len(store.list_runs()) == 3
    done = keyshift("results", "delete", *ids[:2], ids[0], home=tmp_path)
    assert done.stdout.splitlines() == [f"deleted: run {run_id}, {len(tables()) + 1} files" for run_id in ids[:2]]
    assert store.list_runs()["run_id"].tolist() == ids[2:]


def test_runs_go_to_others_as_a_page_and_as_tables_that_come_back(tmp_path, store):
    run_id, page, folder = store.put_run(run(0), tables()).run_id, tmp_path / "report.html", tmp_path / "out"
    assert keyshift("results", "share", run_id, "-o", str(page), home=tmp_path).stdout.startswith(f"{page}: ")
    assert f'id="{run_id}"' in page.read_text()
    done = keyshift("results", "export", run_id, "-o", str(folder), home=tmp_path)
    assert done.stdout.startswith(f"{folder}: 1 runs")
    assert "events per second offered" in (folder / "dictionary.csv").read_text()
    store.delete_run(run_id)
    for told, words in ((f"{run_id}\n", "1 runs stored, 0 were"), ("", "0 runs stored, 1 were")):
        done = keyshift("results", "import", str(folder), home=tmp_path)
        assert done.stdout == told and words in done.stderr


def test_a_full_disk_is_told_with_what_could_not_be_written(tmp_path, store, monkeypatch, full):
    run_id, costs = store.put_run(run(0), tables()).run_id, tmp_path / "costs.json"
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_, **__: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.results.store.ResultStore", lambda endpoints: store)
    monkeypatch.setattr("keyshift.analysis.plots.simulated.simulation_doubts", lambda validation: [])
    found = SimpleNamespace(costs=FREE, validation=None)
    monkeypatch.setattr("keyshift.forecast.calibration.calibrate", lambda runs: found)
    full()
    for option, path, status, *command in (
        ("-o", tmp_path / "report.html", 3, "results", "share", run_id),
        ("-o", tmp_path / "tables", 3, "results", "export", run_id),
        ("-o", tmp_path / "artifact", 3, "artifact", run_id),
        ("--costs", costs, 2, "simulate"),
    ):
        done = keyshift(*command, option, str(path), home=tmp_path)
        assert done.returncode == status and len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr and "cannot be written" in done.stderr and "File too large" in done.stderr
    assert not costs.exists(), "a file that lacks some of them would be taken the next time"


def test_small_numbers_of_stored_runs_are_whole_for_a_script(tmp_path, store):
    for number, rate in enumerate((1.5e-12, 0.1234567890123)):
        store.put_run(run(number, parameters={"rate": rate}), tables())
    rows = [json.loads(line) for line in keyshift("results", "list", "--json", home=tmp_path).stdout.splitlines()]
    assert [row["parameters"]["rate"] for row in rows] == [0.1234567890123, 1.5e-12]
    ids = [run(number).run_id for number in (0, 1)]
    compared = keyshift("results", "compare", *ids, "--json", home=tmp_path).stdout
    [rate] = [row for row in map(json.loads, compared.splitlines()) if "rate" in row.values()]
    assert (rate["one"], rate["other"]) == (1.5e-12, 0.1234567890123)


def test_the_last_line_of_an_artifact_says_how_long_it_took(tmp_path, monkeypatch):
    def pack(store, run_ids, folder, *_):
        folder.mkdir()
        return 3

    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_, **__: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.studies.artifact.pack", pack)
    done = keyshift("artifact", "-o", str(tmp_path / "new"), home=tmp_path)
    assert re.fullmatch(r"\S+new: 3 runs, 0\.0 MiB, made in \d+ s; open \S+, look before you publish\n", done.stdout)


def test_a_tape_can_be_written_and_checked(tmp_path):
    file = tmp_path / "a.tape"
    settings = ("--set", "securities=7", "--set", "workload.resting=100")
    done = keyshift("tape", "write", str(file), "--seconds", "1", *settings, home=tmp_path)
    assert done.returncode == 0, done.stderr
    checked = keyshift("tape", "check", str(file), "--json", home=tmp_path)
    facts = json.loads(checked.stdout)
    assert (checked.returncode, facts["form"], facts["securities"]) == (0, "full", 7)
    assert facts["seconds"] > 1, "the orders that rest come before"
    assert facts["lines"] == facts["orders"] + facts["deletions"] + facts["dropped"] + round(facts["seconds"] * 20)
    assert 600 < facts["waiting"] < facts["orders"]
    with file.open("a") as more:
        more.write("1|A\n")
    bad = keyshift("tape", "check", str(file), home=tmp_path)
    assert (bad.returncode, bad.stderr) == (1, f"line {facts['lines'] + 1} has 2 columns, expected 23\n")
    again = keyshift("tape", "write", str(file), home=tmp_path)
    assert again.returncode == 2 and "File exists" in again.stderr


def test_a_tape_that_is_interrupted_leaves_nothing_that_would_pass_as_one(tmp_path, monkeypatch):
    def interrupted(*_):
        yield "1|A"
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write", interrupted)
    assert keyshift("tape", "write", str(tmp_path / "a.tape"), home=tmp_path).returncode == 130
    assert not (tmp_path / "a.tape").exists()


def test_events_of_a_run_can_be_written_and_shown(tmp_path):
    file = tmp_path / "a.parquet"
    load = ("rate=100", "rates=control:10", "seconds=2", "warmup_s=1", "trigger_s=1", "routers=3")
    settings = [part for each in load for part in ("--set", each)]
    done = keyshift("events", "write", str(file), "--workload", "saas", *settings, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["events"], row["bytes"], row["load_s"]) == (330, file.stat().st_size, 3.0)
    shown = keyshift("events", "show", str(file), "--json", home=tmp_path)
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        {"workload": "saas", "source": "consumer", "partitions": 3, "events": 300, "least": 100},
        {"workload": "saas", "source": "control", "partitions": 3, "events": 30, "least": 10},
    ]
    assert "workload=saas" in shown.stderr and "customers=250" in shown.stderr
    again = keyshift("events", "write", str(file), home=tmp_path)
    assert again.returncode == 2 and "File exists" in again.stderr


def test_a_parameter_is_listed_with_its_owner_and_its_default(tmp_path):
    rows = [json.loads(line) for line in keyshift("parameters", "--json", home=tmp_path).stdout.splitlines()]
    [row] = [row for row in rows if row["parameter"] == "idle_ms"]
    assert (row["of"], row["default"]) == ("workload windowcount", 1000)


def test_what_runs_without_a_choice_is_the_same_with_a_command_and_in_a_notebook():
    assert DEFAULTS["workload"] == options.WORKLOAD and DEFAULTS["strategy"] == options.STRATEGY


def test_services_that_a_job_needs_are_not_stopped(tmp_path):
    Jobs(tmp_path).write(file_of("one"))
    done = keyshift("down", home=tmp_path)
    words = f"a job needs them: one (process {os.getpid()}); `keyshift job stop` stops it\n"
    assert (done.returncode, done.stderr) == (2, f"keyshift: the services stay, because {words}")


def test_another_port_of_a_service_that_runs_is_refused(tmp_path):
    (tmp_path / "ports.json").write_text(json.dumps({"kafka": 19192}))
    with subprocess.Popen(["sleep", "600"]) as kafka:
        processes.write_pid_file(tmp_path / "pids" / "kafka.json", kafka.pid)
        done = keyshift("up", "--kafka-port", "20001", "--minio-port", "20002", home=tmp_path)
        kafka.kill()
    words = "keyshift: --kafka-port 20001: Kafka runs at 127.0.0.1:19192; `keyshift down` first\n"
    assert (done.returncode, done.stderr) == (2, words)


def test_services_of_others_are_not_started_and_their_addresses_are_told(tmp_path, monkeypatch):
    (tmp_path / "far.yaml").write_text("services: {kafka: 'k:1,k:2', zookeeper: 'z:1', minio: 'm:1'}\n")
    monkeypatch.setenv("KEYSHIFT_PROFILE", str(tmp_path / "far.yaml"))
    refused, told = (keyshift(command, home=tmp_path) for command in ("up", "status"))
    addresses = "Kafka at k:1,k:2, ZooKeeper at z:1, store at m:1"
    words = f"keyshift: the profile of KEYSHIFT_PROFILE names services of others ({addresses}): nothing to start here\n"
    assert (refused.returncode, refused.stderr) == (2, words) and not (tmp_path / "logs").exists()
    assert (told.returncode, told.stdout.splitlines()[-1].partition(": ")[2]) == (0, addresses)
    monkeypatch.setenv("KEYSHIFT_PROFILE", str(tmp_path / "none.yaml"))
    told = keyshift("status", home=tmp_path)
    assert told.returncode == 0 and "none.yaml" in told.stdout.splitlines()[-1]
    monkeypatch.delenv("KEYSHIFT_PROFILE")
    assert keyshift("status", home=tmp_path).stdout.splitlines()[-1] == f"state folder: {tmp_path}"


def test_nothing_is_wiped_that_leads_to_what_a_job_has_left_elsewhere(tmp_path, gone):
    (tmp_path / "far.yaml").write_text("services: {kafka: 'k:1', zookeeper: 'z:1', minio: 'm:1'}\n")
    profiles = {"far": str(tmp_path / "far.yaml"), "unknown": str(tmp_path / "none.yaml"), "here": "local"}
    values = {"redis": {"redis": "r:1"}, "redis-of-backend": {"backend.redis": "r:1"}, "here": {"redis": ""}}
    jobs = Jobs(tmp_path)
    for name in profiles | values:
        jobs.write(file_of(name, gone))
        keep(jobs, name, profile=profiles.get(name, "local"), values=values.get(name, {}))
    jobs.journal("far").close()
    refused = keyshift("down", "--wipe", home=tmp_path)
    assert refused.returncode == 2 and len(jobs.all()) == 5
    elsewhere = "far, redis, redis-of-backend, unknown"
    assert refused.stderr.startswith(f"keyshift: --wipe: {elsewhere}: such a job has left data in services")
    assert "`keyshift job forget NAME` deletes them" in refused.stderr
    assert keyshift("down", home=tmp_path).returncode == 0
    for name in elsewhere.split(", "):
        jobs.remove(jobs.read(name))
    assert keyshift("down", "--wipe", home=tmp_path).returncode == 0 and jobs.all() == []


def test_services_that_another_command_uses_are_not_stopped_until_it_is_gone(tmp_path):
    """A run, a batch or a notebook, however it ends: also if it could not say that it leaves."""
    (tmp_path / "data").mkdir()
    with subprocess.Popen(["sleep", "600"]) as run:
        processes.write_pid_file(tmp_path / "users" / f"{run.pid}-ab", run.pid)
        refused = [keyshift("down", *more, home=tmp_path) for more in ([], ["--wipe"])]
        run.kill()
    assert [done.returncode for done in refused] == [2, 2] and (tmp_path / "data").exists()
    words = f"keyshift: the services stay, because others use them: process {run.pid}; end it first\n"
    assert [done.stderr for done in refused] == [words] * 2
    assert keyshift("down", "--wipe", home=tmp_path).returncode == 0
    assert not (tmp_path / "data").exists()


def test_services_that_a_notebook_uses_are_not_stopped_from_one_of_its_cells(tmp_path):
    processes.write_pid_file(tmp_path / "users" / f"{os.getpid()}-ab", os.getpid())
    done = python("-m", "keyshift.cli", "down", home=tmp_path)
    used = f"process {os.getpid()}, from which this was started; end it first"
    assert (done.returncode, done.stderr) == (2, f"keyshift: the services stay, because others use them: {used}\n")


def test_nothing_is_wiped_under_a_run_that_uses_services_of_others(tmp_path):
    with folders.work_folder(tmp_path, "spark-") as work:
        refused = keyshift("down", "--wipe", home=tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1) and work.is_dir()
        assert f"--wipe: files of a run, a notebook or a batch are in use: {work}; wait" in refused.stderr
        assert keyshift("down", home=tmp_path).returncode == 0
    assert keyshift("down", "--wipe", home=tmp_path).returncode == 0
    assert not (tmp_path / folders.WORK).exists()


@pytest.mark.parametrize("command", ["notebook", "batch"])
def test_nor_under_a_notebook_or_a_batch_between_two_of_its_runs(command, tmp_path, monkeypatch):
    """Its executed copies are there, and what keeps others from executing the same batch."""

    def execute(*_, **__):
        refused.append(keyshift("down", "--wipe", home=tmp_path))
        raise KeyshiftError("that was it")

    refused, notebook = [], LIB.parent / "notebooks/start/01_strategy_space.ipynb"
    (batch := tmp_path / "batch.yaml").write_text(f"name: one\nnotebook: {notebook}\n")
    monkeypatch.setattr("keyshift.services.jars.require_java", lambda: None)
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.studies.notebook.execute", execute)
    monkeypatch.setattr("keyshift.studies.batch.run_batch", execute)
    monkeypatch.setattr("keyshift.studies.batch.ended", lambda *_: {})
    done = keyshift(command, str(batch if command == "batch" else notebook), home=tmp_path)
    assert done.returncode == 3 and done.stderr.endswith("keyshift: that was it\n")
    assert refused[0].returncode == 2 and f"in use: {tmp_path / folders.WORK / command}-" in refused[0].stderr
    assert keyshift("down", "--wipe", home=tmp_path).returncode == 0


def test_a_notebook_whose_runs_do_not_fit_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(Resources, "here", lambda: Resources(cpus=2, memory=1 << 20, free=1 << 20))
    done = keyshift("notebook", QUICKSTART, home=tmp_path)
    assert done.returncode == 2 and "of memory before the first event" in done.stderr
    assert not (tmp_path / "logs").exists()


def test_that_executors_elsewhere_are_not_measured_is_told_before_they_are_started(tmp_path, monkeypatch):
    pods = Profile(spark=SparkProfile(master="k8s://https://api"))
    monkeypatch.setattr("keyshift.place.profile.load_profile", lambda _: pods)
    monkeypatch.setattr("keyshift.lab.environment.open_lab", lambda *_: pytest.fail("it is opened"))
    done = keyshift("calibrate", home=tmp_path)
    words = "keyshift: executors at k8s://https://api are not on this machine: nothing to be measured here\n"
    assert done.returncode == 2 and done.stderr.endswith(words)


def test_a_notebook_that_fails_only_where_nothing_starts_is_executed(tmp_path, monkeypatch):
    def execute(*_):
        raise KeyshiftError("in its kernel")

    write_notebook(own := tmp_path / "own" / "own.ipynb", code="%matplotlib inline\nfrom keyshift.suite import measure")
    monkeypatch.setattr("keyshift.services.jars.require_java", lambda: None)
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.studies.notebook.execute", execute)
    assert keyshift("notebook", str(own), home=tmp_path).stderr.endswith("keyshift: in its kernel\n")


@pytest.mark.parametrize("command", ["notebook", "batch"])
def test_a_notebook_whose_runs_would_be_in_another_store_than_its_copy_is_refused(command, tmp_path):
    write_notebook(own := tmp_path / "own" / "own.ipynb", "profile: str = ''")
    (own.parent / "other.yaml").write_text("services: {kafka: 'k:1', zookeeper: 'z:1', minio: 'm:1'}")
    (batch := tmp_path / "batch.yaml").write_text(f"name: one\nnotebook: {own}\ngrid: {{profile: ['', other.yaml]}}")
    given = [str(batch)] if command == "batch" else [str(own), "--set", "profile=other.yaml"]
    done = keyshift(command, *given, home=tmp_path / "home")
    said = "profile = 'other.yaml': own.ipynb would leave its runs in services of that; use --profile"
    assert (done.returncode, done.stderr) == (2, f"keyshift: {said}\n")
    assert not (tmp_path / "home").exists()
    batch.write_text(f"name: one\nnotebook: {own}\ngrid: {{profile: ['', local-cluster, nowhere]}}")
    assert keyshift("batch", str(batch), "--dry-run", home=tmp_path / "home").returncode == 0


def test_where_the_copy_of_a_notebook_is_here_is_told_also_if_the_store_is_away_by_then(tmp_path, monkeypatch):
    def away(*_):
        raise ServiceUnavailable("MinIO does not answer")

    write_notebook(own := tmp_path / "own" / "own.ipynb")
    executed = Executed(own, own.with_suffix(".html"), [tmp_path / "figure-1.png"], [], None)
    monkeypatch.setattr("keyshift.services.jars.require_java", lambda: None)
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.studies.notebook.execute", lambda *_: executed)
    monkeypatch.setattr("keyshift.studies.notebook.keep", away)
    done = keyshift("notebook", str(own), home=tmp_path)
    assert (done.returncode, done.stderr) == (3, "keyshift: MinIO does not answer\n")
    told = [("notebook", own), ("HTML", executed.html), ("figure", tmp_path / "figure-1.png")]
    assert done.stdout == "".join(f"{label:9} {file}\n" for label, file in told)


@pytest.mark.parametrize(
    ("verdicts", "error", "lacks_runs", "status"),
    [
        ("ok", None, False, 0),
        ("ok bad", None, False, 1),
        ("bad", "cell 3: KeyshiftError: none of the runs is correct", False, 1),
        ("bad", "cell 3: PointsDied: 1 of 2 points died", True, 3),
        ("ok bad", "cell 9: NameError: x", False, 3),
        ("", "cell 1: NameError: x", False, 3),
    ],
)
def test_a_notebook_ends_as_a_batch_of_it_would(tmp_path, monkeypatch, verdicts, error, lacks_runs, status):
    write_notebook(own := tmp_path / "own" / "own.ipynb")
    rows = [{"run_id": f"run-{n}", "strategy": "fluid", "verdict": each} for n, each in enumerate(verdicts.split())]
    executed = Executed(own, own, [], rows, error, lacks_runs)
    monkeypatch.setattr("keyshift.services.jars.require_java", lambda: None)
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_: contextlib.nullcontext(ENDPOINTS))
    monkeypatch.setattr("keyshift.studies.notebook.execute", lambda *_: executed)
    monkeypatch.setattr("keyshift.studies.notebook.keep", lambda *_: None)
    done = keyshift("notebook", str(own), home=tmp_path)
    assert done.returncode == status
    assert [line.split()[2] for line in done.stdout.splitlines() if "verdict" in line] == verdicts.split()
    assert done.stderr.count(f"own.ipynb failed in {error}") == int(error is not None)


def test_jobs_are_listed_with_how_they_ended_and_without_their_tokens(tmp_path, gone):
    Jobs(tmp_path).write(file_of("failed", gone, why="it died 6 times"))
    Jobs(tmp_path).write(file_of("silent"))
    done = keyshift("job", "list", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["job"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert (rows["failed"]["state"], rows["failed"]["why"]) == ("ended", "it died 6 times")
    assert rows["silent"]["state"] == "silent" and "does not answer" in rows["silent"]["why"]
    assert "secret" not in done.stdout
    for command, status in ((("scale", "failed", "--slots", "3"), 2), (("stop", "failed"), 3)):
        asked = keyshift("job", *command, home=tmp_path)
        words = "keyshift: job failed does not run here: it died 6 times; nothing is left of it\n"
        assert (asked.returncode, asked.stderr) == (status, words)
    assert "failed" not in keyshift("job", "list", home=tmp_path).stdout


def test_folders_of_the_environment_are_the_same_ones_for_processes_in_other_folders(tmp_path, monkeypatch):
    """A notebook's kernel runs in the folder of the notebook."""

    def elsewhere():
        os.chdir(LIB)
        seen.extend([folders.state_folder(), folders.cache_folder()])

    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEYSHIFT_CACHE", "cache")
    monkeypatch.setattr(cli, "app", elsewhere)
    assert keyshift(home="state").returncode == 0
    assert seen == [tmp_path / "state", tmp_path / "cache"]


@pytest.mark.parametrize("variable", ["KEYSHIFT_HOME", "KEYSHIFT_CACHE"])
def test_a_folder_of_somebody_who_is_not_there_is_named(tmp_path, variable, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_CACHE", str(tmp_path))
    where = "~nobody-here/x"
    monkeypatch.setattr(cli, "app", lambda: None)
    if variable == "KEYSHIFT_CACHE":
        monkeypatch.setenv(variable, where)
    done = keyshift(home=where if variable == "KEYSHIFT_HOME" else tmp_path)
    words = f"{variable} = '{where}': the home folder that it needs is not known; set it to a path from / on\n"
    assert (done.returncode, done.stderr) == (2, f"keyshift: {words}")


def test_without_a_home_the_state_folder_has_to_be_named(monkeypatch):
    for name in ("KEYSHIFT_HOME", "HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(BadInput, match=r"^KEYSHIFT_HOME = '': the home folder that it needs is not known; set"):
        folders.state_folder()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """`keyshift lab`, with a shell's line in place of JupyterLab."""

    def started(line, *options):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return keyshift("lab", "--no-browser", *options, home=tmp_path)

    monkeypatch.setattr("keyshift.services.jars.require_java", lambda: None)
    monkeypatch.setattr("keyshift.lab.environment.open_services", lambda *_: contextlib.nullcontext())
    return started


def test_prometheus_reads_beside_jupyter_of_the_runs_under_way_and_of_no_batch(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_CONTROL_TOKEN", "word")
    with listen() as listener:
        port = listener.getsockname()[1]
    asked = f"'http://127.0.0.1:{port}/metrics', headers={{'Authorization': 'Bearer word'}}"
    opened = f"u.build_opener(u.ProxyHandler({{}})).open(u.Request({asked}), timeout=60)"
    asks = f'{sys.executable} -c "import urllib.request as u; print({opened}.read().decode())"'
    (tmp_path / "metrics").mkdir()
    with folders.work_folder(tmp_path, "run-") as work:
        (tmp_path / "metrics" / f"{work.name}.prom").write_text('keyshift_run_results_rate{run="a"} 1234.0\n')
        done = lab(f"{asks} > {tmp_path}/told", f"--metrics={port}")
    told = (tmp_path / "told").read_text()
    assert done.returncode == 0, done.stderr
    assert 'keyshift_run_results_rate{run="a"} 1234.0' in told and "keyshift_batch" not in told


def test_jupyter_of_a_pod_listens_where_it_is_told_also_while_services_are_away(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("keyshift.lab.environment.open_services", open_services)
    for name in KEYS:
        monkeypatch.setenv(name, "given")
    (tmp_path / "pod.yaml").write_text("services: {kafka: 127.0.0.1:1, zookeeper: 127.0.0.1:1, minio: 127.0.0.1:1}\n")
    done = lab(f'echo "$@" > {tmp_path}/told', "--ip=0.0.0.0", f"--profile={tmp_path}/pod.yaml")
    assert done.returncode == 0, done.stderr
    assert "--ServerApp.ip=0.0.0.0" in (tmp_path / "told").read_text()


def test_jupyter_asks_nobody_for_news_and_keeps_the_configuration_of_its_user(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/etc/mine")
    assert lab(f'echo "$JUPYTER_CONFIG_PATH" > {tmp_path}/told').returncode == 0
    ours, mine = (tmp_path / "told").read_text().strip().split(os.pathsep)
    page = json.loads((Path(ours) / "labconfig" / "page_config.json").read_text())
    assert page == {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    assert mine == "/etc/mine"


@pytest.mark.parametrize(("ending", "status"), [("exit 0", 0), ("exit 7", 3), ("exit 130", 0), ("kill -TERM $$", 0)])
def test_jupyter_that_fails_is_a_failure(lab, ending, status):
    done = lab(ending)
    said = "keyshift: JupyterLab has ended with exit status 7; why is above\n" if status else ""
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize("number", INTERRUPTS)
def test_jupyter_hears_of_an_interrupt_from_us_alone(lab, tmp_path, number):
    """A terminal that is closed would end it before its kernels, and these use the services."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # these tests may run under nohup
    told = tmp_path / "told"
    alone = f"{sys.executable} -c 'import os; print(os.getsid(0) == os.getppid())' > {told}"
    ends = f"trap 'echo ended >> {told}; exit 0' TERM"
    try:
        done = lab(f"{ends}; {alone}; kill -{number:d} $PPID; while :; do sleep 0.1; done")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, told.read_text().split()) == (130, ["True", "ended"])


def test_jupyter_has_ended_also_if_ctrl_c_comes_twice(lab, tmp_path):
    told = tmp_path / "told"
    ends = f"trap 'kill -INT $PPID; sleep 0.5; echo ended > {told}; exit 0' TERM"
    done = lab(f"{ends}; kill -INT $PPID; while :; do sleep 0.1; done")
    assert (done.returncode, told.read_text()) == (130, "ended\n")


def test_jupyter_that_does_not_end_when_it_is_asked_to_is_killed(lab, monkeypatch):
    monkeypatch.setattr(experiments, "JUPYTER_ENDS_S", 0.1)
    assert lab("trap '' TERM; kill -TERM $PPID; while :; do sleep 0.1; done").returncode == 130


@pytest.mark.parametrize("which", [1, 2], ids=["it", "who ends it if we are killed"])
def test_jupyter_does_not_outlive_an_interrupt_that_comes_as_it_begins(lab, monkeypatch, which):
    begun, popen = [], subprocess.Popen

    def begin(*arguments, **options):
        begun.append(popen(*arguments, **options))
        if len(begun) == which:
            signal.raise_signal(signal.SIGTERM)
        return begun[-1]

    monkeypatch.setattr(experiments.subprocess, "Popen", begin)
    assert lab("while :; do sleep 0.1; done").returncode == 130
    assert [each.poll() for each in begun] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_missing_java_is_named_before_anything_is_started(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    done = python("-m", "keyshift.cli", "run", home=tmp_path, path=str(empty))
    assert done.returncode == 3
    assert "Java" in done.stderr
    assert "Traceback" not in done.stderr
