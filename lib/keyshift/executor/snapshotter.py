"""Takes a snapshot of a job every few seconds while it runs; see ``executor.savepoint`` for what there is of one."""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from keyshift.errors import MigrationFailed, ServiceUnavailable
from keyshift.executor.config import JobConfig
from keyshift.executor.inquiry import answers
from keyshift.executor.leader import Coordinator
from keyshift.executor.savepoint import SavepointStore, manifest_of, participants
from keyshift.executor.zookeeper import Coordination
from keyshift.waiting import wait_until

LOOK_S = 0.05
KEPT = 2  # complete ones: the newest, and the one before if it cannot be read
MARK = "snapshot-"  # names begin so, and those of savepoints do not


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete one. Results under its ``version`` and later ones come behind it. ``bytes``: that were written;
    ``unit_bytes``: those that make the state of each unit.
    """

    name: str
    version: int
    offsets: dict[int, int]
    state_bytes: int
    bytes: int
    unit_bytes: Mapping[int, int] = field(default_factory=dict)


class Said(Protocol):
    """The results topic, as far as it tells what has come out of it."""

    def said(self, what: Mapping[str, Any]) -> set[int]:
        """The slots of which a marker has come that has what ``what`` has."""


class _Over(Exception):
    """The attempt ends, or this snapshot does."""


class Snapshotter:
    """Of one attempt. ``led()``: its coordinator, which may get a successor. ``complete`` gets each complete one, and
    ``trouble`` is told in one line of each that failed.
    """

    def __init__(
        self,
        config: JobConfig,
        coordination: Coordination,
        led: Callable[[], Coordinator],
        output: Said,
        complete: list[Snapshot],
        trouble: Callable[[str], None],
    ) -> None:
        self._config, self._coordination, self._led = config, coordination, led
        self._output, self._complete, self._trouble = output, complete, trouble
        self._store = SavepointStore(config.endpoints, config.job)
        self._over = threading.Event()
        self._committing = threading.Lock()  # the list of those that are complete may grow only while held
        self._number = 0
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
            except _Over:
                pass
            except (MigrationFailed, ServiceUnavailable) as error:
                if not self._over.is_set():
                    self._trouble(f"snapshot {self._number}: {error}; the job goes on, the one before counts")

    def _take(self, name: str) -> None:
        config = self._config
        version = self._begun(name)
        wanted = participants(config.routers, config.slots)
        path, what = f"savepoints/{name}", f"snapshot {self._number}"
        said = answers(self._coordination, path, wanted, what, config.deadline_s, lambda: self._check(name))
        failed = {who: answer["failed"] for who, answer in said.items() if "failed" in answer}
        if failed:
            who = min(failed)
            raise ServiceUnavailable(f"{who}: {failed[who]}")
        self._await_results(name)
        manifest = manifest_of(said, self._led().assignment_of(version))
        made_by = {"workload": config.workload, "parameters": config.parameters, "stage": config.stage}
        self._store.commit(name, manifest | made_by)
        unit_bytes: Counter[int] = Counter()
        for rows in manifest["places"].values():
            for unit, _, _, length, *_ in rows:
                unit_bytes[unit] += length
        written = sum(said[f"slot-{n}"]["bytes"] for n in range(config.slots))
        with self._committing:
            if self._over.is_set():
                return
            of_all = unit_bytes.total()
            self._complete.append(Snapshot(name, version, manifest["offsets"], of_all, written, dict(unit_bytes)))
        self._store.keep_only([snapshot.name for snapshot in self._complete[-KEPT:]], MARK)
        self._coordination.withdraw(path)
        self._coordination.withdraw(f"acks/{version}")

    def _begun(self, name: str) -> int:
        """Request it, and wait until it begins: a migration may come first, and take long. Gives its version."""
        asked: Coordinator | None = None
        while name not in (coordinator := self._led()).snapshots:
            if coordinator is not asked:  # with its predecessor the request is gone
                asked = coordinator
                asked.snapshot(name)
            self._check(name)
            self._over.wait(LOOK_S)
        return coordinator.snapshots[name]

    def _await_results(self, name: str) -> None:
        """Until all that came before the snapshot has come out: it is not repeated."""
        marker, slots = {"marker": "sealed", "savepoint": name}, set(range(self._config.slots))

        def there() -> bool:
            self._check(name)
            return slots <= self._output.said(marker)

        if not wait_until(there, self._config.deadline_s, LOOK_S):
            raise MigrationFailed(f"results did not come out within {self._config.deadline_s:g} s")

    def _check(self, name: str) -> None:
        if self._over.is_set():
            raise _Over
        if name in self._led().late_snapshots:
            raise MigrationFailed(f"not every slot was ready within {self._config.deadline_s:g} s")
        self._coordination.check()
