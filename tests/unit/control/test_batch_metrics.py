"""What Prometheus reads of batches, over HTTP, while a batch is executed by a function of the test."""

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from small_batches import Bench, Executor, prepared, write_notebook

from keyshift.control.batch_metrics import BatchMetrics, served
from keyshift.control.server import LOOPBACK, listen
from keyshift.folders import work_folder
from keyshift.studies.batch import run_batch

TOKEN = "a token of the test"


def samples(text):
    """Value by name, and labels but for that of the batch."""
    return {
        (s.name.removeprefix("keyshift_batch_"), *(v for k, v in s.labels.items() if k != "batch")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.labels.get("batch", "small") == "small"
    }


@pytest.fixture
def made(tmp_path):
    write_notebook(tmp_path / "notebooks" / "load.ipynb")
    return prepared(tmp_path, "grid: {skew: [0, 1, 2, 3]}")


def free_port():
    with listen() as listener:
        return listener.getsockname()[1]


def scrape(port, **headers):
    return httpx.get(f"http://{LOOPBACK}:{port}/metrics", headers=headers, timeout=60, trust_env=False)


def test_a_scrape_tells_what_is_done_failed_and_left_with_verdicts_and_seconds(made, tmp_path):
    bench, metrics, port, scraped = Bench(tmp_path), BatchMetrics(tmp_path), free_port(), []
    execute = Executor(verdicts={1: "bad"}, errors={2: "cell 3: Oh"})

    def seen(batch, done):
        metrics.seen(batch, done)
        scraped.append(samples(scrape(port, Authorization=f"Bearer {TOKEN}").text))

    with served(metrics, LOOPBACK, port, TOKEN):
        assert scrape(port).status_code == 401
        done = run_batch(made, bench.runs, bench.records, bench.home, bench.said.append, execute=execute, seen=seen)
    assert [one["executions", "not_run"] for one in scraped] == [4, 3, 2, 1, 0]
    assert [one["remaining_executions",] for one in scraped] == [4, 3, 2, 2, 1]
    last = scraped[-1]
    ended = {name[1]: value for name, value in last.items() if name[0] == "executions"}
    assert ended == {"ok": 2, "bad": 1, "failed": 1, "not_run": 0}
    assert (last["verdicts", "ok"], last["verdicts", "bad"]) == (2, 1)
    took = sum((record.finished_at - record.started_at).total_seconds() for record in done.values())
    assert last["seconds",] == pytest.approx(took)
    ends = [one["last_end_seconds",] for one in scraped]
    assert ends == sorted(set(ends))
    with pytest.raises(httpx.ConnectError):
        scrape(port)


def test_batches_that_wait_and_what_runs_have_written_are_told_beside_the_batch_under_way(made, tmp_path):
    metrics = BatchMetrics(tmp_path)
    metrics.seen(made, {})
    metrics.seen(prepared(tmp_path, name="other"), {})
    text = generate_latest(metrics).decode()
    assert 'keyshift_batch_remaining_executions{batch="small"} 4.0' in text
    assert 'keyshift_batch_remaining_executions{batch="other"} 1.0' in text
    (tmp_path / "metrics").mkdir()
    with work_folder(tmp_path, "run-") as work:
        (tmp_path / "metrics" / f"{work.name}.prom").write_text('keyshift_run_results_rate{run="a"} 1234.0\n')
        text = generate_latest(metrics).decode()
    assert 'keyshift_run_results_rate{run="a"} 1234.0' in text and "keyshift_batch_executions" in text
    (tmp_path / "keyshift-work" / "in-use").unlink()
    (tmp_path / "keyshift-work" / "in-use").mkdir()
    text = generate_latest(metrics).decode()
    assert "keyshift_batch_executions" in text, "though nobody can say which runs are under way"
