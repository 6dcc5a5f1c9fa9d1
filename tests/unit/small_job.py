"""What the tests of state that travels between slots share: a small job, and state for it."""

from dataclasses import replace

from keyshift.endpoints import Endpoints
from keyshift.state.memory import MemoryState
from keyshift.wire.config import JobConfig

DEADLINE_S = 60.0
ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
PARAMETERS = {"key_groups": 4, "keys": 8, "skew": 0, "state_bytes": 32, "seed": 0}
NAMES = {"job": "job", "attempt": 0, "workload": "keycount", "stage": "counter", "token": "secret"}
PARTS = {"ordering": "none", "backend": "memory"}
NUMBERS = {"routers": 1, "slots": 2, "key_groups": 4, "slots_per_process": 1}
SIZES = {"chunk_bytes": 1000, "queue_bytes": 64 << 20}
TIMES = {"deadline_s": 30.0, "snapshot_s": 0.0, "heartbeat_us": 20_000, "session_ms": 500, "hop_us": 15_000}
CONFIG = JobConfig(endpoints=ENDPOINTS, parameters=PARAMETERS, **NAMES, **PARTS, **NUMBERS, **SIZES, **TIMES)
TIMED = replace(
    CONFIG,
    workload="windowcount",
    stage="windows",
    parameters=PARAMETERS | {"window_ms": 20, "delay_ms": 10, "idle_ms": 50},
)
VALUE = CONFIG.make_stage().operator().state_schema


def state(counts):
    made = MemoryState(VALUE)
    for key, count in counts.items():
        made.values[key] = (count, b"payload")
    return made


def counts(made):
    return {key: made.values[key][0] for key in sorted(made.keys())}
