"""What a live job says of itself: values that JSON knows. Times in seconds, latencies in milliseconds."""

from typing import Any, TypedDict


class StageStatus(TypedDict):
    """``slots``: that own state, of those that are ``provisioned``; ``owners``: the slot of each unit; ``of_slot``:
    what each slot said last (bytes, records since the attempt began), by its number, which JSON makes a text.
    """

    slots: int
    provisioned: int
    owners: list[int]
    of_slot: dict[int, dict[str, Any]]
    phase: str
    migrating: bool


class SystemStatus(TypedDict, total=False):
    """What the system knows without asking anybody. ``snapshot_bytes``: of the newest one."""

    stages: dict[str, StageStatus]
    attempt: int
    snapshots: int
    snapshot_bytes: int | None
    notes: list[str]


class Status(SystemStatus, total=False):
    """Of a live job. Before events go in, ``stages`` and ``migrations`` are empty, and what is below them is missing.

    ``state``: one of starting, running, stopping, ended and failed; ``why``: it has failed, in one line; ``examples``:
    of what is wrong; ``migrations``: see ``plans.migrations.Migration``. Latencies and ``results_per_s`` are those of
    the last second.
    """

    run_id: str
    state: str
    why: str | None
    workload: str
    strategy: str
    summary: Any  # of the run when it has ended; else None
    examples: list[str]
    manifest: Any  # likewise
    migrations: list[dict[str, Any]]
    phase: str
    running_s: float
    rate: float
    offered: int
    results: int
    results_per_s: int
    p50_ms: float | None
    p99_ms: float | None
    migrating: bool
    deaths: int
    autoscaler: dict[str, Any] | None
