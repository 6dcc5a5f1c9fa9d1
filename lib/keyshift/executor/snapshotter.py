"""Takes a snapshot of a job every few seconds while it runs; see ``executor.savepoint`` for what there is of one."""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from keyshift.clock import now_us
from keyshift.errors import Deposed, MigrationFailed, ServiceUnavailable
from keyshift.executor.config import JobConfig
from keyshift.executor.inquiry import answers
from keyshift.executor.leader import Coordinator
from keyshift.executor.led_stage import LedStage
from keyshift.executor.savepoint import Manifest, SavepointStore, participants
from keyshift.protocol.record import SnapshotRecord
from keyshift.waiting import wait_until

LOOK_S = 0.05
KEPT = 2  # complete ones: the newest, and the one before if it cannot be read
MARK = "snapshot-"  # names begin so, and those of savepoints do not


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete one. Results under its ``version`` and later ones come behind it. ``bytes``: that were written;
    ``unit_bytes``: those that make the state, by stage and unit.
    """

    name: str
    version: int
    offsets: dict[int, int]
    bytes: int
    unit_bytes: dict[str, dict[int, int]]


class Said(Protocol):
    """The results topic, as far as it tells what has come out of it."""

    def said(self, what: Mapping[str, Any]) -> set[int]:
        """The slots of which a marker has come that has what ``what`` has."""


class _Over(Exception):
    """The attempt ends, or this snapshot does."""


class Snapshotter:
    """Of one attempt. ``complete`` gets each complete one, and ``taken`` what is to be known of it when it has gone;
    ``trouble`` is told in one line of each that failed.

    It begins at the last stage. When the routers of a stage know what is to come, the stage before begins: a slot that
    has come to the snapshot finds there what it has to say as a router.
    """

    def __init__(
        self,
        config: JobConfig,
        stages: Sequence[LedStage],
        output: Said,
        complete: list[Snapshot],
        taken: list[SnapshotRecord],
        trouble: Callable[[str], None],
    ) -> None:
        self._config, self._stages = config, stages
        self._output, self._complete, self._taken, self._trouble = output, complete, taken, trouble
        self._store = SavepointStore(config.endpoints, config.job)
        self._over = threading.Event()
        self._committing = threading.Lock()  # the list of those that are complete may grow only while held
        self._number = 0
        self._acknowledged: list[tuple[LedStage, int]] = []  # versions of snapshots that are to be withdrawn
        self._thread = threading.Thread(target=self._run, name="keyshift-snapshots", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Take no more; what is not complete by now never is."""
        with self._committing:
            self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._config.snapshot_s):
            self._number += 1
            name = f"{MARK}{self._config.attempt:03d}-{self._number:06d}-{secrets.token_hex(2)}"
            try:
                self._take(name)
            except (_Over, Deposed):  # whoever controls the job hears of another driver, too
                pass
            except (MigrationFailed, ServiceUnavailable) as error:
                if not self._over.is_set():
                    self._trouble(f"snapshot {self._number}: {error}; the job goes on, the one before counts")

    def _take(self, name: str) -> None:
        config, manifest, written, begun_us = self._config, Manifest(), dict[str, int](), now_us()
        versions = [self._begun(stage, name) for stage in reversed(self._stages)][::-1]
        path = f"savepoints/{name}"
        for stage, version in zip(self._stages, versions, strict=True):
            wanted, what = participants(stage.config), f"snapshot {self._number} of {stage.name}"
            check = partial(self._check, stage, name)
            said = answers(stage.participant, path, wanted, what, config.deadline_s, check)
            failed = {who: answer["failed"] for who, answer in said.items() if "failed" in answer}
            if failed:
                who = min(failed)
                raise ServiceUnavailable(f"{who} of {stage.name}: {failed[who]}")
            coordinator = stage.led()
            manifest.add(stage.name, said, coordinator.assignment_of(version), coordinator.to_come.get(version, ()))
            written[stage.name] = sum(said[f"slot-{n}"]["bytes"] for n in range(stage.config.slots))
        self._await_results(name)
        self._stages[0].participant.require_epoch()
        self._store.commit(name, manifest, workload=config.workload, parameters=config.parameters)
        with self._committing:
            if self._over.is_set():
                return
            unit_bytes = manifest.unit_bytes
            self._complete.append(Snapshot(name, versions[-1], manifest.offsets, sum(written.values()), unit_bytes))
            state = {stage: sum(sizes.values()) for stage, sizes in unit_bytes.items()}
            self._taken.append(SnapshotRecord(begun_us, now_us(), written, state))
        self._stages[0].participant.require_epoch()
        self._store.keep_only([snapshot.name for snapshot in self._complete[-KEPT:]], MARK)
        for stage, version in zip(self._stages, versions, strict=True):
            stage.participant.withdraw(path)
            self._acknowledged.append((stage, version))
        self._withdraw_acknowledgements()

    def _withdraw_acknowledgements(self) -> None:
        """Of what is no leader's step any more: one that takes over waits for those of all that are published."""
        published = {stage.name: (stage.participant.read("steps") or {"steps": []})["steps"] for stage in self._stages}
        waited_for = {(name, step["version"]) for name, steps in published.items() for step in steps}
        acknowledged, self._acknowledged = self._acknowledged, []
        for stage, version in acknowledged:
            if (stage.name, version) in waited_for:
                self._acknowledged.append((stage, version))
            else:
                stage.participant.withdraw(f"acks/{version}")

    def _begun(self, stage: LedStage, name: str) -> int:
        """Request it of ``stage``, and wait until its routers are told: a migration may come first, and take long.

        Gives its version there.
        """
        asked: Coordinator | None = None
        while not self._told(coordinator := stage.led(), name):
            if coordinator is not asked and name not in coordinator.snapshots:  # with its predecessor a request is gone
                asked = coordinator
                asked.snapshot(name)
            self._check(stage, name)
            self._over.wait(LOOK_S)
        return coordinator.snapshots[name]

    def _told(self, coordinator: Coordinator, name: str) -> bool:
        """Whether it has begun there, and its routers know of it if another stage has to begin behind that."""
        version = coordinator.snapshots.get(name)
        return version is not None and (len(self._stages) == 1 or coordinator.assignment.version >= version)

    def _await_results(self, name: str) -> None:
        """Until all that came before the snapshot has come out: it is not repeated."""
        last = self._stages[-1]
        marker = {"marker": "sealed", "savepoint": name, "stage": last.name}
        slots = set(range(last.config.slots))

        def there() -> bool:
            self._check(last, name)
            return slots <= self._output.said(marker)

        if not wait_until(there, self._config.deadline_s, LOOK_S):
            raise MigrationFailed(f"results did not come out within {self._config.deadline_s:g} s")

    def _check(self, stage: LedStage, name: str) -> None:
        if self._over.is_set():
            raise _Over
        if name in stage.led().late_snapshots:
            raise MigrationFailed(f"not every slot of {stage.name} was ready within {self._config.deadline_s:g} s")
        stage.participant.check()
