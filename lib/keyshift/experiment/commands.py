"""What can be asked of a live job: a class for each verb.

HTTP (``POST /verb``), the command line (``keyshift job verb``), the scripts of notebooks (``4: verb``) and
their buttons are made from ``COMMANDS``: a verb of one's own is one class here.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from keyshift.model.errors import BadInput
from keyshift.planner import strategies
from keyshift.refusals import made
from keyshift.registry import named_values, unknown
from keyshift.wire.faults import parse_now

if TYPE_CHECKING:
    from keyshift.experiment.possible import Rehearsal

Target = int | dict[int, int]
T = TypeVar("T")
UNDER_WAY: Final = "under way"  # the outcome of a migration until it is over


class MoveTold(TypedDict):
    """A move of a step."""

    unit: int
    source: int
    destination: int


class StepTold(TypedDict):
    """A step that was planned."""

    moves: list[MoveTold]


class Migration(TypedDict):
    """A migration that was requested, without its steps: as it is in a job's status and in its journal.

    ``requested_at`` in seconds since the epoch; ``what``: the strategy in one line; ``slots``: that are to own the
    state; ``outcome``: ``UNDER_WAY`` until it is over; ``why``: it is incomplete, else None.
    """

    number: int  # of its stage
    requested_at: float
    took_s: float | None
    outcome: Literal["under way", "complete", "incomplete"]
    why: str | None
    stage: str
    what: str
    slots: int
    planned_steps: int
    planned_moves: int


def outcome_said(migration: Migration) -> str:
    """Say what came of it, and why."""
    why = migration.get("why")  # a process that has begun before this field was there does not tell it
    return f"{migration['outcome']}: {why}" if why else migration["outcome"]


class Requested(Migration):
    """The answer of a command that moves state, with the steps that were planned."""

    steps: list[StepTold]


@final
class TakenBack(TypedDict):
    """Says that what has not begun was taken back."""

    cancelled: bool


@final
class RateSet(TypedDict):
    """Says that so many events per second are offered of the source."""

    rate: float


@final
class Injected(TypedDict):
    """The fault that has hit."""

    fault: str


CommandAnswer = Requested | TakenBack | RateSet | Injected  # of a command, as JSON knows it


def _target(given: Any) -> Any:
    """Read a target: 3, ``3``, or ``0:3,7:1``."""
    if not isinstance(given, str) or ":" not in given:
        return given
    return slot_of_group("target", given, "must be a number of slots, or key groups and the slots they go to, 0:3,7:1")


def slot_of_group(parameter: str, text: str, what: str) -> dict[int, int]:
    """Read ``0:3,7:1``. ``what``: the text of the parameter has to be. Raises BadInput."""
    try:
        pairs = [(int(group), int(slot)) for group, slot in (pair.split(":") for pair in text.split(","))]
    except ValueError:
        raise BadInput(f"{parameter} = {text!r}: {what}") from None
    if again := [group for group, times in Counter(group for group, _ in pairs).items() if times > 1]:
        raise BadInput(f"{parameter} = {text!r}: key group {again[0]} is there twice; leave one out")
    return dict(pairs)


def _settings(given: Any) -> Any:
    """Read a mapping, or ``name=value`` as often as there are settings."""
    texts = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    return named_values(given) if texts else given


def _strategy(name: str) -> str:
    strategies.get(name)
    return name


def _fault(text: str) -> str:
    parse_now(text)
    return text


def _words(given: Any) -> str:
    """Write a value as ``command_of`` reads it."""
    if isinstance(given, dict):
        if all(isinstance(name, int) for name in given):
            return ",".join(f"{group}:{slot}" for group, slot in given.items())
        said = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
        return " ".join(f"{name}={value}" for name, value in said.items())
    return f"{given:g}" if isinstance(given, float) else str(given)


StageName = Annotated[str | None, Field(description="a keyed stage; may be left out if there is one")]


class Command(BaseModel):
    """Something that is asked of a job. Its first paragraph is the help of the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verb: ClassVar[str]
    moves: ClassVar[bool] = False  # whether a migration comes of it

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Do it, and give the answer. Raises BadInput."""
        raise NotImplementedError

    def __str__(self) -> str:
        given = [value for value in self.model_dump().values() if value not in (None, {})]
        return " ".join([self.verb, *map(_words, given)])


class Scale(Command):
    """Move the state to so many slots, by the strategy that the job was started with."""

    verb, moves = "scale", True

    slots: int = Field(description="slots that are to own the state")
    stage: StageName = None

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives the migration."""
        return job.move(self.stage, self.slots)


class MoveBy(Command):
    """Move the state by another strategy."""

    verb, moves = "plan", True

    strategy: Annotated[str, AfterValidator(_strategy)] = Field(description="a name from `keyshift strategies`")
    target: Annotated[Target, BeforeValidator(_target)] = Field(
        description="a number of slots, or key groups and the slots they go to, 0:3,7:1"
    )
    settings: Annotated[dict[str, Any], BeforeValidator(_settings)] = Field(
        default={}, description="name=value of the strategy; may be repeated"
    )
    stage: StageName = None

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives the migration with its steps."""
        return job.move(self.stage, self.target, self.strategy, self.settings)


class Cancel(Command):
    """Take back the steps and migrations that have not begun."""

    verb = "cancel"

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives nothing else."""
        job.cancel()
        return {"cancelled": True}


class Rate(Command):
    """Offer another number of events per second from now on."""

    verb = "rate"

    rate: float = Field(gt=0, lt=1e9, description="events per second; `stop` ends the load")
    source: str | None = Field(default=None, description="a source; left out: the first one")

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives the rate."""
        job.change_rate(self.rate, self.source)
        return {"rate": self.rate}


class Double(Command):
    """Offer twice as many events per second from now on."""

    verb = "double"

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives the new rate."""
        return command(Rate.verb, {"rate": 2 * job.rate}).carry_out(job)


class InjectFault(Command):
    """Let something fail now: a slot is the first one, a replica the leader or the oldest, a follower the newest."""

    verb = "fault"

    fault: Annotated[str, AfterValidator(_fault)] = Field(
        default="kill:slot",
        description="as of a run, without a phase or a time: kill:slot, kill:replica, stop:coordinator:3s",
    )

    def carry_out(self, job: "Rehearsal") -> CommandAnswer:
        """Gives the fault."""
        job.hit(parse_now(self.fault))
        return {"fault": self.fault}


COMMANDS: dict[str, type[Command]] = {each.verb: each for each in Command.__subclasses__()}


def command(verb: str, values: Mapping[str, Any]) -> Command:
    """The command of this verb. Raises BadInput with the verbs, or with the value that is wrong."""
    if verb not in COMMANDS:
        raise unknown("command", verb, list(COMMANDS))
    return made(COMMANDS[verb], dict(values))  # type: ignore[no-any-return]


def command_of(words: Sequence[str]) -> Command:
    """Read a command, such as ``plan chunked 2 size=4``: a verb, values in the order of its fields, and settings, if it
    has some, anywhere among them. Raises BadInput.
    """
    verb, *values = words or [""]
    if verb not in COMMANDS:
        raise unknown("command", verb, list(COMMANDS))
    fields = COMMANDS[verb].model_fields
    named = {"settings": [value for value in values if "=" in value]} if "settings" in fields else {}
    plain = [value for value in values if not named or "=" not in value]
    of_plain = [name for name in fields if name not in named]
    if not sum(field.is_required() for field in fields.values()) <= len(plain) <= len(of_plain):
        usage = {name: f"<{name}>" if field.is_required() else f"[{name}]" for name, field in fields.items()}
        usage |= dict.fromkeys(named, "[name=value ...]")
        raise BadInput(f"{' '.join(words)!r}: must be `{' '.join([verb, *usage.values()])}`")
    return command(verb, dict(zip(of_plain, plain, strict=False)) | named)


class At(NamedTuple, Generic[T]):
    """``action`` happens when the load has lasted ``at_s`` seconds."""

    at_s: float
    action: T


def script_of(lines: Sequence[str]) -> list[At[Command]]:
    """Read lines such as ``4: scale 4``, ``9: plan matched 2``, in the order of their times. Raises BadInput."""
    return sorted(map(_asked, lines), key=lambda asked: asked.at_s)


def _asked(line: str) -> At[Command]:
    at, _, words = str(line).partition(":")
    try:
        at_s = float(at)
    except ValueError:
        raise BadInput(f"script {line!r}: must be a second and a command, `4: scale 4`") from None
    if not 0 <= at_s < math.inf:
        raise BadInput(f"script {line!r}: its second must be a number from 0 on")
    try:
        return At(at_s, command_of(words.split()))
    except BadInput as error:
        raise BadInput(f"script {line!r}: {error}") from None
