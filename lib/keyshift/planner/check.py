"""Which points of the space make sense, and how a user changes one. Every refusal names value, reason and remedy."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from keyshift.model.errors import BadInput
from keyshift.model.keys import Mode
from keyshift.planner.batches import SIZED, batches
from keyshift.planner.model import MODE_SETTINGS, Strategy
from keyshift.planner.orders import orders
from keyshift.registry import unknown

_DAY_MS = 86_400_000
_HINTS = {
    name: hint
    for kind in (Strategy, Mode)
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if get_origin(hint) is Annotated
}
_KINDS: dict[str, Any] = {name: get_args(hint)[0] for name, hint in _HINTS.items()}
MEANINGS: dict[str, str] = {name: get_args(hint)[1] for name, hint in _HINTS.items()}


def settings(strategy: Strategy) -> dict[str, Any]:
    """Name and value of everything that ``change`` takes: the strategy as a point of the space."""
    return {name: getattr(strategy.mode if name in MODE_SETTINGS else strategy, name) for name in _KINDS}


def change(strategy: Strategy, overrides: Mapping[str, Any]) -> Strategy:
    """``strategy`` with other values of the settings, for every migration of a job.

    Raises BadInput for an unknown name, a value of another type, or a strategy that ``check`` refuses.
    """
    for name, value in overrides.items():
        _require(name, value)
    rest = [
        {name: value for name, value in values.items() if name not in overrides} for values in strategy.by_migration
    ]
    changed = replace(strategy.having(overrides), by_migration=tuple(rest))
    check(changed)
    return changed


def check(strategy: Strategy) -> None:
    """Refuse a ``strategy`` that makes no sense: BadInput, naming the value, the reason and the remedy."""
    if not strategy.by_migration:
        _check_point(strategy)
    for number, values in enumerate(strategy.by_migration):
        try:
            for name, value in values.items():
                _require(name, value)
                if name in ("unit", "bins"):
                    raise BadInput(f"{name} is for the life of a job, whose state is cut so: set it for all of them")
                if name == "gate" and (value == "query") != strategy.restarts:  # which a job asks once, for its life
                    raise BadInput(
                        f"gate = {value}: all migrations of a job restart its query, or none does; set gate = query "
                        "for all of them, or for none"
                    )
            _check_point(strategy.of_migration(number))
        except BadInput as refused:
            raise BadInput(f"migration {number}: {refused}") from None


def _check_point(strategy: Strategy) -> None:
    for name, value in settings(strategy).items():
        _require(name, value)
    for reason in _conflicts(strategy, strategy.mode):
        raise BadInput(reason)


def _require(name: str, value: Any) -> None:
    """Refuse an unknown ``name`` of a setting, and a ``value`` that is not of its type: BadInput."""
    if name not in _KINDS:
        raise unknown("setting", name, list(_KINDS))
    kind = _KINDS[name]
    wanted = kind if kind in (bool, int) else str
    if type(value) is not wanted:  # not isinstance: a bool is an int, but no number of units
        expected = {bool: "true or false", int: "a whole number", str: "a name"}[wanted]
        raise BadInput(f"{name} = {value!r}: must be {expected}")
    if name == "order":
        orders.get(value)
    elif name == "batch":
        batches.get(value)
    elif get_origin(kind) is Literal and value not in get_args(kind):
        raise unknown(name, value, list(get_args(kind)))


def _conflicts(strategy: Strategy, mode: Mode) -> Iterator[str]:
    """Yield why ``strategy`` makes no sense, rule by rule. Those on a single setting come first."""
    order, batch, size, cap, bins = strategy.order, strategy.batch, strategy.size, strategy.cap, strategy.bins
    if size < 1:
        yield f"size = {size}: a step needs at least 1 unit"
    if cap < 0:
        yield f"cap = {cap}: must be at least 1 unit per step, or 0 for no cap"
    if strategy.replicate < 0:
        yield f"replicate = {strategy.replicate}: must be n >= 1 to copy every n-th key group, or 0 for none"
    if mode.fetch_back < 0:
        yield f"fetch_back = {mode.fetch_back}: must be how often a unit may travel back, 0 for never"
    if bins < 1 or bins & (bins - 1):
        yield f"bins = {bins}: must be a power of two (1, 2, 4, …)"

    if bins > 1 and strategy.unit != "bin":
        yield f"bins = {bins}: a strategy with unit = {strategy.unit} does not move bins; set unit = bin, or bins = 1"
    if size > 1 and batch not in SIZED and strategy.propose is None:
        yield f"size = {size}: batch = {batch} has no size; set batch = {' or '.join(SIZED)}, or bound steps by cap"

    demanded, keywise = mode.transfer != "push", mode.transfer in ("access", "remote")
    if keywise and strategy.unit != "key":
        yield f"transfer = {mode.transfer}: works key by key, not by {strategy.unit}; set unit = key"
    if strategy.unit == "key" and not keywise:
        yield f"unit = key: transfer = {mode.transfer} is not by key; set unit = group, or transfer = access or remote"
    if mode.gate != "none" and demanded:
        yield f"gate = {mode.gate}: holds back the records that transfer = {mode.transfer} waits for; set gate = none"
    if order == "access" and not demanded:
        yield "order = access: with transfer = push no record asks for state; set transfer = fetch, or another order"
    if not 0 <= mode.fetch_interval_ms <= _DAY_MS:
        yield f"fetch_interval_ms = {mode.fetch_interval_ms}: must be milliseconds from 0, to ask at once, to {_DAY_MS}"
    if mode.fetch_interval_ms and not demanded:
        yield f"fetch_interval_ms = {mode.fetch_interval_ms}: with transfer = push nobody asks; set it to 0"
    if mode.fetch_back and mode.transfer != "fetch":
        yield f"fetch_back = {mode.fetch_back}: only transfer = fetch can fetch back, not {mode.transfer}; set it to 0"
    if mode.cache and mode.transfer != "remote":
        yield f"cache = true: transfer = {mode.transfer} leaves nothing remote to be cached; set transfer = remote"
    if not mode.background and not keywise:
        yield f"background = false: transfer = {mode.transfer} needs it to end; set it to true, or transfer = access"
    if not mode.background and (batch != "all" or cap):
        yield f"background = false with batch = {batch}, cap = {cap}: a step may never end; set batch = all and cap = 0"
    if mode.gate == "query" and (batch != "all" or cap):
        yield f"gate = query with batch = {batch}, cap = {cap}: a restart is one step; set batch = all and cap = 0"

    if strategy.replicate and mode.gate == "query":
        yield f"replicate = {strategy.replicate}: with gate = query the savepoint is the copy; set it to 0"
    if strategy.replicate and keywise:
        yield f"replicate = {strategy.replicate}: transfer = {mode.transfer} hands no unit over; set it to 0"
    without = {"copies": "warm_up", "holders": "destination", "handover": "delta"}
    for name, default in without.items():
        if not strategy.replicate and getattr(strategy, name) != default:
            yield f"{name} = {getattr(strategy, name)}: nothing is copied; set replicate >= 1, or {name} = {default}"


def turn_conflicts(strategy: Strategy) -> Iterator[str]:
    """Say why ``strategy`` cannot run where slots work in turns: all barriers come at once, and a whole slot waits."""
    for mode in (point.mode for point in strategy.of_every_migration):
        if mode.gate != "none":
            yield f"gate = {mode.gate}: a slot waits as a whole for state that it may need; set gate = none"
        if mode.transfer not in ("push", "fetch"):
            yield f"transfer = {mode.transfer}: all state of a slot is there in a turn; set transfer = push or fetch"
        if mode.fetch_back:
            yield f"fetch_back = {mode.fetch_back}: no late record comes behind a barrier; set fetch_back = 0"
