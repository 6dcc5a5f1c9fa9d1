import pyarrow as pa
import pyarrow.parquet as pq

from keyshift.traffic.collector import Results
from keyshift.workloads.keycount.operator import RESULT_FIELDS


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Results with these (t, position)."""
    schema = Results(RESULT_FIELDS).schema
    plain = dict.fromkeys(schema.names, 0)
    return pa.RecordBatch.from_pylist([plain | {"t": t, "position": position} for t, position in rows], schema=schema)


def test_results_of_timers_are_kept_but_not_timed(tmp_path):
    results = Results(RESULT_FIELDS)
    results.add(batch((1000, 0), (500, -1), (2000, 1)), slot=1, log_offset=7, arrived_us=5000)
    results.add(batch((400, -1)), slot=0, log_offset=3, arrived_us=6000)
    latencies_ms, versions = results.roll()
    assert latencies_ms.tolist() == [4.0, 3.0] and versions.tolist() == [0, 0]
    assert [column.tolist() for column in results.roll()] == [[], []]
    results.write(tmp_path / "results.parquet")
    table = pq.read_table(tmp_path / "results.parquet").to_pandas()
    assert table["position"].tolist() == [0, -1, 1, -1]
    assert table["slot"].tolist() == [1, 1, 1, 0]
    assert results.count == 4
