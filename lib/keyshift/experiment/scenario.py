"""What happens to a job while it runs, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from keyshift.experiment.commands import At, Command, InjectFault, script_of, slot_of_group
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment
from keyshift.planner import targets
from keyshift.wire import faults
from keyshift.wire.faults import STEADY, Fault

ALL = "all"  # stages migrate
BACK = "back"  # of ``then``
THEN = ("shuffle", BACK, "balance", "zipf", "map")  # of ``then``, beside numbers of slots
_SOME_SLOTS = ("shuffle", "zipf")  # which may be of some slots only

# --set then=4 is a number
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)]


class Part(BaseModel):
    """Some parameters of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Change:
    """A change of the assignment. ``measured``: whether it goes by the measured load of the key groups."""

    __slots__ = ()
    measured: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ScaleTo(_Change):
    """So many slots own the key groups."""

    slots: int


@dataclass(frozen=True, slots=True)
class Shuffle(_Change):
    """So many groups change their slot, in a ring of so many slots; 0: of all."""

    affected: int
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Balance(_Change):
    """The measured loads of the slots become equal."""

    measured: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class BalanceZipf(_Change):
    """The loads become equal that a Zipf distribution of the groups would make: of all slots, or of the first and the
    last of them (``slots`` = 2).
    """

    skew: float
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Back(_Change):
    """All groups go to where they were before the first change."""


@dataclass(frozen=True, slots=True)
class Map(_Change):
    """These groups go to these slots, of which there are so many; None: those up to the highest that owns a group."""

    slot_of_group: Mapping[int, int]
    slots: int | None = None


Change = ScaleTo | Shuffle | Balance | BalanceZipf | Back | Map


def target_of(change: Change, groups: Assignment, load: Sequence[float], begin: Assignment) -> Assignment:
    """Compute where ``change`` leads from ``groups``. ``load``: of each key group. ``begin``: where all were before the
    first change. Raises BadInput if it is not possible.
    """
    match change:
        case ScaleTo(slots):
            return targets.scale(groups, slots)
        case Shuffle(affected, slots):
            return targets.shuffle(groups, affected, slots)
        case Balance():
            return targets.balance(groups, load)
        case BalanceZipf(skew, slots):
            return targets.zipf_balance(groups, skew, slots)
        case Back():
            return Assignment(groups.version, begin.owner)
        case Map(slot_of_group, slots):
            return targets.explicit(groups, slot_of_group, slots)


def _number(text: str) -> int:
    """The number of slots that ``text`` is, -1 if it is none."""
    return int(text) if text.isdecimal() and len(text) < 10 else -1


@dataclass(frozen=True, slots=True)
class Migrate:
    """Request a change, behind all others or instead of what has not begun of them.

    ``cancels``: while a migration is under way, take back what has not begun, and request nothing.
    """

    change: Change
    replace: bool = False
    cancels: bool = False


Action = Migrate | Command | Fault


class ScenarioPart(Part):
    """What happens to the job, and when."""

    trigger: Literal["scale", "shuffle", "balance", "zipf", "map", "auto", "script", "none"] = Field(
        default="scale",
        description="scale to to_slots, shuffle affected groups, balance measured load or Zipf mass, map, auto, "
        "script, none: nothing moves (with replicas, if no move is asked for)",
    )
    trigger_s: float = Field(
        default=8.0, ge=0, description="seconds of measured time before the migration, or the first look (trigger auto)"
    )
    to_slots: int = Field(default=4, ge=1, description="slots that own state after it (trigger scale)")
    then: Text = Field(
        default="",
        description="further changes, one migration each: 4,8,6 are numbers of slots; back (as before the first one), "
        "shuffle, balance, zipf, map; shuffle:3 and zipf:2 have affected_slots of their own",
    )
    gap_s: float = Field(default=6.0, gt=0, description="seconds from one migration's trigger to the next one's")
    on_overlap: Literal["queue", "replace", "cancel"] = Field(
        default="queue", description="what a trigger does while the migration before is under way"
    )
    stage: Text = Field(
        default="",
        description="keyed stages that migrate, at the same time if there are commas, or all; empty: the last one",
    )
    affected: int = Field(default=64, ge=1, description="groups that change their slot (trigger shuffle)")
    affected_slots: int = Field(
        default=0,
        ge=0,
        description="slots of the ring in which they go to the next one; trigger zipf: 2, the first gives to the last; "
        "0: all (trigger shuffle, zipf)",
    )
    moves: Text = Field(default="", description="groups and their new slots, 0:3,7:1 (trigger map)")
    script: Text = Field(
        default="",
        description="commands of `keyshift job`, and when: 4: scale 3; 9: plan matched 2; 12: double (trigger script)",
    )
    fault: Text = Field(
        default="",
        description="what fails, and when: kill:source@transfer, stop:slot@4:3s, restart:kafka@switch, kill:slot@12.5, "
        "kill:replica@steady",
    )

    @property
    def asked(self) -> list[tuple[str, int]]:
        """What is asked for, one migration each: a trigger or ``back``, and to or of how many slots. Nothing, if nobody
        knows before what it is. Raises BadInput.
        """
        if self.trigger in ("auto", "script", "none"):
            return []
        first = self.trigger, self.to_slots if self.trigger == "scale" else self.affected_slots
        return [first, *(self._asked(part.strip()) for part in self.then.split(",") if part)]

    def _asked(self, part: str) -> tuple[str, int]:
        name, colon, slots = part.partition(":")
        if _number(part) > 0:
            return "scale", _number(part)
        if name in THEN and not colon:
            return name, self.affected_slots
        if name in _SOME_SLOTS and _number(slots) >= 0:
            return name, _number(slots)
        raise BadInput(
            f"then = {self.then!r}: {part!r} must be a number of slots from 1 on or one of {', '.join(THEN)}, "
            f"{' and '.join(_SOME_SLOTS)} also with affected_slots of its own; e.g. 4,8,6 or back,zipf:2"
        )

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """The numbers of slots to which the job is scaled, each with the parameter that says it. Raises BadInput."""
        names = ["to_slots", *["then"] * len(self.asked)]
        return [(said, slots) for said, (name, slots) in zip(names, self.asked, strict=False) if name == "scale"]

    def check(self, seconds: float, strategy: str, restarts: bool) -> None:
        """Raise BadInput for parameters that would do nothing, and for what comes behind so many ``seconds``.

        ``restarts``: whether ``strategy`` stops the query.
        """
        if self.trigger_s >= seconds and self.trigger != "script":  # which has times of its own
            raise BadInput(f"trigger_s = {self.trigger_s:g}: must be less than seconds = {seconds:g}")
        if self.then and not self.asked:
            raise BadInput(
                f"then = {self.then}: trigger is {self.trigger}, behind which nothing else is asked for; leave it out, "
                "or set trigger to one of: scale, shuffle, balance, zipf, map"
            )
        if self.then and restarts:
            raise BadInput(
                f"then = {self.then}: only live migrations follow each other, and strategy = {strategy} stops the "
                "query; leave it out, or take another strategy"
            )
        if self.moves and "map" not in dict(self.asked):
            raise BadInput(f"moves = {self.moves}: trigger is {self.trigger}; set trigger = map")
        last_s = self.trigger_s + self.gap_s * (len(self.asked) - 1)
        if self.then and last_s >= seconds:
            raise BadInput(
                f"seconds = {seconds:g}: the last of {len(self.asked)} migrations is triggered at {last_s:g} s; raise "
                f"seconds or lower gap_s = {self.gap_s:g}"
            )

    def changes(self, skew: float, slots: int) -> list[Change]:
        """The changes, in their order, of each stage that migrates. Raises BadInput.

        ``skew``: of the keys of all these stages, 0 if none is known. ``slots``: there are, of each of these stages.
        """
        return [self._change(name, of, skew, slots) for name, of in self.asked]

    def _change(self, name: str, of: int, skew: float, slots: int) -> Change:
        match name:
            case "scale":
                return ScaleTo(of)
            case "shuffle":
                return Shuffle(self.affected, of)
            case "balance":
                return Balance()
            case "zipf":
                if not skew:
                    said, remedy = (
                        ("trigger = zipf", "set trigger = balance")
                        if self.trigger == "zipf"
                        else (f"then = {self.then}", "take balance in its place")
                    )
                    raise BadInput(
                        f"{said}: no skew that lasts is known of the keys that move, so nobody knows where to; "
                        f"{remedy}, which goes by the measured load"
                    )
                return BalanceZipf(skew, of)
            case "back":
                return Back()
        return Map(slot_of_group("moves", self.moves, "trigger map needs group:slot pairs, e.g. 0:3,7:1"), slots)

    def faults(self) -> list[Fault]:
        """Read what ``fault`` says. If the query dies in a phase, later attempts have none. Raises BadInput."""
        found = faults.parse(self.fault)
        in_phases = [fault for fault in found if fault.phase]
        if len(in_phases) > 1 and any(fault.ends_query for fault in in_phases):
            raise BadInput(
                f"fault = {self.fault}: if the query dies in a phase, only one of them may be in a phase, the others "
                "at a time (kill:slot@12)"
            )
        return found

    def every_fault(self) -> list[Fault]:
        """Read what ``fault`` says, and what the commands of ``script`` ask for. Raises BadInput."""
        asked = (command for _, command in self.commands())
        return [*self.faults(), *(faults.parse_now(each.fault) for each in asked if isinstance(each, InjectFault))]

    @property
    def faults_said(self) -> str:
        """The parameters that ``every_fault`` goes by."""
        return ", ".join(f"{name} = {said}" for name in ("fault", "script") if (said := getattr(self, name)))

    def commands(self) -> list[At[Command]]:
        """Read what ``script`` says, in the order of the times. Raises BadInput."""
        return script_of([line for line in self.script.split(";") if line.strip()])

    def actions(self, changes: Sequence[Change]) -> list[At[Action]]:
        """List what happens to the job, and when, in this order; seconds of measured time. Raises BadInput."""
        timed = ((self.trigger_s if fault.phase == STEADY else fault.at_s, fault) for fault in self.faults())
        actions: list[At[Action]] = [At(at_s, fault) for at_s, fault in timed if at_s is not None]
        if self.trigger == "script":
            actions += [At(at_s, command) for at_s, command in self.commands()]
        for number, change in enumerate(changes):
            at_s = self.trigger_s + number * self.gap_s
            cancels = number > 0 and self.on_overlap == "cancel"
            actions.append(At(at_s, Migrate(change, self.on_overlap == "replace", cancels)))
        return sorted(actions, key=lambda action: action.at_s)


class AutoscalerPart(Part):
    """What the autoscaler is to reach, with trigger auto; see ``planner.scaling.Goals``."""

    slots_min: int = Field(default=1, ge=1, description="slots that own state, at the least (trigger auto)")
    autoscale_s: float = Field(default=2.0, ge=1, le=3600, description="seconds between two looks (trigger auto)")
    slo_ms: float = Field(
        default=500.0, gt=0, description="milliseconds that P99 of a second is to stay below (trigger auto)"
    )
    work_off_s: float = Field(
        default=10.0, gt=0, description="seconds in which a backlog is to be worked off (trigger auto)"
    )
    horizon_s: float = Field(
        default=120.0, gt=0, le=1e6, description="seconds in which a migration has to pay (trigger auto)"
    )
    miss_cost: float = Field(
        default=20.0,
        ge=0,
        le=1e6,
        description="a second above slo_ms costs as much as so many seconds of all slots (auto)",
    )
