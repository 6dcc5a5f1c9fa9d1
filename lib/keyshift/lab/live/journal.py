"""What has to be on disk so that another process can go on with a live job whose driver was killed.

Events, results and snapshots are in Kafka and MinIO, and the newest assignment is in ZooKeeper. The journal has the
rest: who the job is, and its way so far. It is written whole, whenever there is a newer snapshot.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from keyshift.driver.job import Past
from keyshift.driver.snapshotter import Snapshot
from keyshift.driver.stage import StagePast
from keyshift.model.keys import Assignments
from keyshift.model.notes import Note
from keyshift.model.records import StepRecord
from keyshift.planner import Decision
from keyshift.progress import Say
from keyshift.wire.config import JobConfig
from keyshift.wire.savepoint import Savepoint

KEEP_AGAIN_S = 5.0  # before a journal that could not be written is tried once more
_RECORDS = TypeAdapter(list[StepRecord])
Journal = dict[str, Any]


class JournalWriter:
    """``write`` puts a journal on disk, ``kept`` hears that it is there. A disk that is full is no reason to end: one
    line of that goes to ``note``.
    """

    def __init__(self, write: Callable[[Journal], None], kept: Callable[[], None], note: Say) -> None:
        self._write, self._heard, self._note = write, kept, note
        self._kept: object = None  # of what the journal was that was written last
        self._not_kept_since: float | None = None  # seconds of the monotonic clock
        self._keep_at = 0.0  # likewise: not before that

    def keep(self, of: object, make: Callable[[], Journal]) -> None:
        """Write the journal that ``make`` gives, if it is ``of`` something else than the one before."""
        if of == self._kept or time.monotonic() < self._keep_at:
            return
        journal = make()
        try:
            self._write(journal)
        except OSError as error:
            self._keep_at = time.monotonic() + KEEP_AGAIN_S
            if self._not_kept_since is None:
                self._not_kept_since = time.monotonic()
                self._note(f"the journal cannot be written ({error}); it is tried every {KEEP_AGAIN_S:g} s")
            return
        self._kept = of
        self._heard()
        if self._not_kept_since is not None:
            took_s, self._not_kept_since = time.monotonic() - self._not_kept_since, None
            self._note(f"the journal could not be written for {took_s:.0f} s, and is written again")


def past_to_json(config: JobConfig, past: Past) -> dict[str, Any]:
    """Of a job: what JSON knows. Holds the job's secret."""
    return {
        "attempt": config.attempt,
        "slots": {each.stage: each.slots for each in config.chain()},
        "token": config.token,
        "stages": {name: _stage_to_json(each) for name, each in past.stages.items()},
        "savepoints": [asdict(savepoint) for savepoint in past.savepoints],
        "snapshots": [asdict(snapshot) for snapshot in past.snapshots],
        "notes": past.notes,
        "revoked": sorted(past.revoked),
        "begun_from": past.begun_from and asdict(past.begun_from),
        "first_version": past.first_version,
    }


def config_from_json(config: JobConfig, raw: dict[str, Any]) -> JobConfig:
    """``config`` as it was in the attempt that was under way."""
    return replace(config.with_slots(raw["slots"]), attempt=raw["attempt"], token=raw["token"])


def past_from_json(raw: dict[str, Any]) -> Past:
    """What ``past_to_json`` was told."""
    return Past(
        stages={name: _stage_from_json(each) for name, each in raw["stages"].items()},
        savepoints=[_numbered(Savepoint, each) for each in raw["savepoints"]],
        snapshots=[_numbered(Snapshot, each) for each in raw["snapshots"]],
        notes=[Note(*each) for each in raw["notes"]],
        revoked=set(raw["revoked"]),
        begun_from=raw["begun_from"] and _numbered(Savepoint, raw["begun_from"]),
        first_version=raw["first_version"],
    )


def decisions_to_json(decisions: Iterable[tuple[int, Decision]]) -> list[Any]:
    """Rows of migration, unit, step, reason."""
    return [[number, each.unit, each.step, each.reason] for number, each in decisions]


def decisions_from_json(rows: list[Any]) -> list[tuple[int, Decision]]:
    """What ``decisions_to_json`` was told."""
    return [(number, Decision(unit, step, reason)) for number, unit, step, reason in rows]


def _stage_to_json(past: StagePast) -> dict[str, Any]:
    return {
        "assignments": past.assignments.to_json(),
        "begins": past.begins,
        "records": _RECORDS.dump_python(past.records, mode="json"),
    }


def _stage_from_json(raw: dict[str, Any]) -> StagePast:
    return StagePast(
        assignments=Assignments.from_json(raw["assignments"]),
        begins=raw["begins"],
        records=_RECORDS.validate_python(raw["records"]),
    )


def _numbered(kind: Any, raw: dict[str, Any]) -> Any:
    """A savepoint or a snapshot; JSON has made texts of the numbers of routers and units."""
    sizes = {stage: _by_number(of_units) for stage, of_units in raw["unit_bytes"].items()}
    return kind(**raw | {"offsets": _by_number(raw["offsets"]), "unit_bytes": sizes})


def _by_number(raw: dict[str, int]) -> dict[int, int]:
    return {int(number): value for number, value in raw.items()}
