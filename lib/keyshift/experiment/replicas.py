"""What a run with replicas of its job may be."""

from collections.abc import Iterator, Mapping
from typing import Any

from keyshift.model.errors import BadInput
from keyshift.ordering import orderings
from keyshift.wire.faults import REPLICA, SERVICES, STEADY, Fault

NOTHING_MOVES = "none"  # of ``trigger``
_BESIDE_MOVES = {"fault", "trigger_s"}  # of a scenario: what says nothing of moves


def nothing_moves(job: Mapping[str, Any], scenario: Mapping[str, Any]) -> bool:
    """Whether what was given asks for replicas and for no move: then there is no default one, either."""
    return job.get("replicas", 1) != 1 and scenario.keys() <= _BESIDE_MOVES


def comes_back(ordering: str, returns: bool) -> bool:
    """Whether a replica that has died does. With a leader it cannot yet: a turn ends where state is written down."""
    return returns and not orderings.get(ordering).leads


def check_replicas(
    replicas: int,
    ordering: str,
    returns: bool,
    trigger: str,
    snapshot_s: float,
    unsettled: tuple[str, ...],
    faults: list[Fault],
) -> None:
    """Raises BadInput for what is not possible with so many replicas, or with a single one, or is not yet."""
    hits = [fault for fault in faults if fault.who == REPLICA]
    if comes_back(ordering, returns):  # then one after the other may die
        hits = max(([each for each in hits if _moment(each) == _moment(hit)] for hit in hits), key=len, default=[])
    if hits and len(hits) >= replicas:
        raise BadInput(
            f"fault = {', '.join(map(str, hits))} with replicas = {replicas}: none would be left; raise replicas to "
            f"{len(hits) + 1}"
        )
    if replicas == 1:
        return
    for line in _conflicts(ordering, trigger, snapshot_s, unsettled, faults):
        raise BadInput(f"replicas = {replicas} with {line}")


def _moment(fault: Fault) -> tuple[str, float | None]:
    return fault.phase, fault.at_s


def _conflicts(
    ordering: str, trigger: str, snapshot_s: float, unsettled: tuple[str, ...], faults: list[Fault]
) -> Iterator[str]:
    if not orderings.get(ordering).agrees:
        known = ", ".join(name for name, each in orderings.items() if each.agrees)
        yield f"ordering = {ordering}: replicas would differ; set ordering to one of: {known}"
    if trigger != NOTHING_MOVES:
        yield f"trigger = {trigger}: state of replicas does not move between slots yet; set trigger = {NOTHING_MOVES}"
    if snapshot_s:
        yield (
            f"snapshot_s = {snapshot_s:g}: replicas write their state down only when another one comes back, and then "
            "by themselves; set snapshot_s = 0"
        )
    for name in unsettled:
        yield f"{name} = auto: what a load costs was not measured with replicas; give a number"
    for fault in faults:
        if fault.who not in (REPLICA, *SERVICES) or fault.phase not in ("", STEADY):
            yield (
                f"fault = {fault}: not possible yet; what is: kill:{REPLICA}@{STEADY}, or {REPLICA} and "
                f"{', '.join(SERVICES)} at a time, as kill:{REPLICA}@4"
            )
