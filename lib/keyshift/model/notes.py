"""What is told of a job while it goes on: what happens to its state now, and what did not go as planned."""

from enum import StrEnum
from typing import NamedTuple


class Activity(StrEnum):
    """What goes on in a stage, or in the whole run."""

    WARMING_UP = "warming up"
    STEADY = "steady"
    PLANNING = "planning"
    COPYING = "copying"
    PREPARING = "preparing"
    MOVING = "moving"
    MIGRATED = "migrated"
    LATE = "late"
    ROLLED_BACK = "rolled back"
    STRUCK = "struck"
    SAVEPOINT = "savepoint"
    STOPPING = "stopping"
    STARTING_ANEW = "starting anew"
    RESTORING = "restoring"
    RESTORED = "restored"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    CATCHING_UP = "catching up"

    @property
    def of_stage(self) -> bool:
        """Whether a stage has it for itself: the others have one of their own."""
        return self in _OF_STAGE


_OF_STAGE = {
    *(Activity.WARMING_UP, Activity.STEADY, Activity.PLANNING, Activity.COPYING, Activity.PREPARING, Activity.MOVING),
    *(Activity.MIGRATED, Activity.LATE, Activity.ROLLED_BACK, Activity.STRUCK),
}


class Doing(NamedTuple):
    """What is being done. ``words``: instead of its name; ``stage``: empty if that is the only one."""

    activity: Activity
    words: str = ""
    stage: str = ""

    def __str__(self) -> str:
        words = self.words or self.activity.value
        return f"{self.stage}: {words}" if self.stage else words


class NoteKind(StrEnum):
    """What a note is about, for who decides something by it: its words are for people."""

    MIGRATION = "migration"  # one, or a step of it, that is late, or was dropped or taken back
    DEATH = "death"  # of the query, or of a replica
    TOLD = "told"  # anything else: nobody decides anything by it


class Note(NamedTuple):
    """Something that did not go as planned. ``stage``: empty if it is about all of the job, or the only one."""

    text: str
    stage: str = ""
    kind: NoteKind = NoteKind.TOLD  # older journals do not say it

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}" if self.stage else self.text
