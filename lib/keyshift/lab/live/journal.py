"""What has to be on disk so that another process can go on with a live job whose driver was killed.

The journal is written whole, whenever there is a newer snapshot or something else that must not be lost. It has every
step: of a job that moves for hours it takes seconds, so that not every snapshot is worth it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from keyshift.experiment.commands import Migration
from keyshift.lab.ending import RunEnd
from keyshift.lab.live.failover import SystemJournal
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.progress import Say
from keyshift.refusals import refusal

KEEP_AGAIN_S = 5.0  # before a journal that could not be written is tried once more
# If nothing but snapshots is new it is written so many times later than the last one took, but not much later.
RESTS, LONGEST_REST_S = 20, 60.0


@dataclass(frozen=True, kw_only=True)
class Journal(SystemJournal):
    """The journal of a live job. ``began_at``, ``trigger``: of the load and of the first migration, in seconds since
    the epoch, 0 if there was none; ``rates``: events per second of each source. ``migrations``, ``targets``: see
    ``Migrations``. ``rate_changed``: see ``Feed``.
    """

    began_at: float
    trigger: float
    rates: dict[str, float]
    migrations: list[Migration]
    targets: dict[str, list[int]]
    rate_changed: bool = False


_JOURNAL = TypeAdapter(Journal)


def journal_to_json(journal: Journal) -> dict[str, Any]:
    """A journal as values that JSON knows; holds the job's secret."""
    return dict(_JOURNAL.dump_python(journal, mode="json"))


def journal_from_json(raw: Mapping[str, Any]) -> Journal:
    """The inverse of ``journal_to_json``; what else is in ``raw`` does not count. Raises BadInput if it is damaged."""
    try:
        return _JOURNAL.validate_python(dict(raw))
    except ValidationError as error:  # without values: the secret may be among them
        raise BadInput(f"the journal is damaged: {refusal(error.errors(include_input=False))}") from None


class Keeper(RunEnd):
    """What there is of a live job beside its process, and how that ends. This one keeps nothing: nothing is left when
    the job has ended, and nothing can go on with it.
    """

    resumed: Callable[[], Journal] | None = None  # reads that of the process before, if the job goes on
    take_over = False  # go on even if that process seems to live

    def expect(self, run_id: str, token: str) -> None:
        """Hear the run's id and the job's secret before anything is made, to find what the job will leave."""

    def claimed(self) -> None:
        """Hear that the job, which goes on, is this process's: the one before drives it no more."""

    def begun(self) -> None:
        """Hear that the job runs, before anybody else does. Raises BadInput if nobody wants it any more."""

    def keep(self, journal: Journal) -> None:
        """Write down what another process needs to go on with the job. Raises OSError: it is tried again later."""

    def is_kept(self) -> bool:
        """Whether that is there still: a process that was deposed may have stood still before it put its own there."""
        return True


class JournalWriter:
    """Puts journals on disk; ``kept`` hears when one is there. A disk that is full is no reason to end, as there is a
    journal already: one line of that goes to ``note``. Without a first one nobody is told that a job is ready.
    """

    def __init__(self, keeper: Keeper, kept: Callable[[], None], note: Say) -> None:
        self._keeper, self._heard, self._note = keeper, kept, note
        self._kept: tuple[object, object] | None = None  # of what the journal was that was written last
        self._not_kept_since: float | None = None  # seconds of the monotonic clock
        self._keep_at = 0.0  # likewise: not before that
        self._rests_until = 0.0  # likewise: nor before that, if nothing but snapshots is new

    def keep(self, of: object, snapshots: object, make: Callable[[], Journal]) -> None:
        """Write the journal that ``make`` gives, if it is ``of`` something else than the one before, or of newer
        ``snapshots``: those that the one before names stay as long as it is there.

        It is written once more if it is not there any more.

        Raises ServiceUnavailable if the first one of a job cannot be written.
        """
        begin, before = time.monotonic(), self._kept
        if begin < self._keep_at or ((of, snapshots) == before and self._keeper.is_kept()):
            return
        if before and before[0] == of and begin < self._rests_until:
            return
        journal = make()
        try:
            self._keeper.keep(journal)
        except OSError as error:
            if self._kept is None and self._keeper.resumed is None:
                said = f"the journal cannot be written ({error}), and nothing could go on with the job without it"
                raise ServiceUnavailable(said) from error
            self._keep_at = time.monotonic() + KEEP_AGAIN_S
            if self._not_kept_since is None:
                self._not_kept_since = time.monotonic()
                self._note(f"the journal cannot be written ({error}); it is tried every {KEEP_AGAIN_S:g} s")
            return
        self._kept = of, snapshots
        end = time.monotonic()
        self._rests_until = end + min(RESTS * (end - begin), LONGEST_REST_S)
        self._heard()
        if self._not_kept_since is not None:
            took_s, self._not_kept_since = time.monotonic() - self._not_kept_since, None
            self._note(f"the journal could not be written for {took_s:.0f} s, and is written again")
