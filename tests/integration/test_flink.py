"""Flink itself, with what it needs: a restart of its job is exactly once, a rescale goes on from a checkpoint, and
nothing of its processes is left.

Its jars are 140 MB, so only `make nightly` has this.
"""

from pathlib import Path

import psutil
import pytest

from keyshift.endpoints import Endpoints
from keyshift.peers.flink import ROLES
from keyshift.peers.flink_job import RESCALE, RESTART, flink_spec, opened
from keyshift.peers.runs import PeerLab, run_counting
from keyshift.progress import silent
from keyshift.results.store import ResultStore

pytestmark = pytest.mark.nightly("it fetches 140 MB of Flink's jars")

SMALL = {
    "rate": 500, "keys": 500, "state_bytes": 256, "key_groups": 16, "skew": 0.5, "slots": 2, "to_slots": 3,
    "warmup_s": 1, "seconds": 10, "trigger_s": 3,
}  # fmt: skip


def of_flink(folder: Path) -> list[psutil.Process]:
    """The processes of a cluster: their working folder is below ``folder``."""
    found = []
    for process in psutil.process_iter(["name", "cwd"]):
        if process.info["name"] == "java" and str(process.info["cwd"]).startswith(str(folder)):
            found.append(process)
    return found


def test_a_restarted_job_answers_each_event_once(stack: Endpoints, tmp_path: Path) -> None:
    store, spec = ResultStore(stack), flink_spec(RESTART, SMALL)
    lab = PeerLab(stack, store, tmp_path, silent)
    with opened(spec, lab, "") as engine:
        running = of_flink(tmp_path)
        assert len(running) == len(ROLES)
        assert all(f"-Djava.io.tmpdir={tmp_path}/" in " ".join(process.cmdline()) for process in running)
        listening = [s.laddr.ip for p in running for s in p.net_connections("tcp") if s.status == psutil.CONN_LISTEN]
        assert listening and {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
        runs = [run_counting(spec.repeated(number), lab, engine) for number in range(2)]
    assert of_flink(tmp_path) == []
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith("flink")], "neither folders nor pids"
    for manifest in runs:
        assert manifest.status == "ok" and manifest.summary is not None, manifest.verdict
        assert manifest.strategy == "flink_restart" and manifest.versions["flink"].startswith("2.")
        assert manifest.summary.events == 5500
        tables = store.get_tables(manifest.run_id)
        assert sorted(tables["migration"]["unit"]) == list(range(16))
        created = tables["latency"]["created_s"]
        assert created.min() < -2 and created.max() > 6, "there are results from before and behind the restart"


def test_a_running_job_goes_on_from_a_checkpoint_with_other_tasks(stack: Endpoints, tmp_path: Path) -> None:
    store, spec = ResultStore(stack), flink_spec(RESCALE, SMALL | {"snapshot_s": 0.5})
    lab = PeerLab(stack, store, tmp_path, silent)
    with opened(spec, lab, "") as engine:
        manifest = run_counting(spec, lab, engine)
    assert manifest.status == "ok" and manifest.summary is not None, manifest.verdict
    assert manifest.strategy == "flink_rescale" and manifest.summary.events == 5500
    assert any(note.startswith("Flink went on with 3 tasks from checkpoint") for note in manifest.notes)
    assert any("results came once more, from behind the checkpoint" in note for note in manifest.notes)
    tables = store.get_tables(manifest.run_id)
    assert len(tables["latency"]) == 5500 and sorted(tables["migration"]["unit"]) == list(range(16))
