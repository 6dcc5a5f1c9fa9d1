"""What a run with replicas of its job may be."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyshift.experiment.parts import JobPart
from keyshift.experiment.scenario import BACK, ScenarioPart
from keyshift.model.errors import BadInput
from keyshift.ordering import orderings
from keyshift.planner import Strategy, strategies, turn_conflicts
from keyshift.planner.orders import BY_HEAT
from keyshift.wire.faults import EXECUTOR, FOLLOWER, MOVING, REPLICA, SERVICES, STEADY, Fault

if TYPE_CHECKING:
    from keyshift.experiment.spec import RunSpec

NOTHING_MOVES = "none"  # of ``trigger``
PLANNED_ALIKE = ("scale", "shuffle", "zipf", "map")  # triggers whose plan follows from the assignment alone
_WHOLE = (REPLICA, FOLLOWER)
OF_ONE = (REPLICA, "slot", EXECUTOR, FOLLOWER)  # whom to kill ends one replica
_AT_A_TIME = (*OF_ONE, *SERVICES)
_BESIDE_MOVES = {"fault", "trigger_s"}  # of a scenario: what says nothing of moves


def nothing_moves(job: JobPart, scenario: Mapping[str, Any]) -> bool:
    """Whether what was given asks for replicas and for no move: then there is no default one, either."""
    return job.replicas > 1 and scenario.keys() <= _BESIDE_MOVES


def deaths_of(job: JobPart, scenario: ScenarioPart) -> list[Fault]:
    """Faults behind which the query is started anew: those of a job without replicas, as others go on otherwise."""
    return [fault for fault in scenario.every_fault() if fault.ends_query and job.replicas == 1]


def ends_one(fault: Fault) -> bool:
    """Whether one of several replicas dies of it."""
    return fault.action == "kill" and fault.who in OF_ONE


def moves_apart(job: JobPart, scenario: ScenarioPart) -> bool:
    """Whether one replica moves its state after the other."""
    return job.replicas > 1 and job.replicas_move == "one_by_one" and scenario.trigger != NOTHING_MOVES


def check_replicas(spec: "RunSpec") -> None:
    """Raise BadInput for what is not possible with so many replicas, or with a single one, or is not yet."""
    job, scenario = spec.job, spec.scenario
    replicas, faults = job.replicas, scenario.faults()
    whom = OF_ONE if replicas > 1 else _WHOLE  # a single job is started anew
    hits = [fault for fault in faults if fault.who in whom and fault.action == "kill"]
    if job.returns:  # then one after the other may die
        hits = max(([each for each in hits if _moment(each) == _moment(hit)] for hit in hits), key=len, default=[])
    if hits and len(hits) >= replicas:
        raise BadInput(
            f"fault = {', '.join(map(str, hits))} with replicas = {replicas}: none would be left; raise replicas to "
            f"{len(hits) + 1}"
        )
    if job.spares and (replicas == 1 or not job.returns):
        remedy = "set returns = true" if replicas > 1 else "set replicas = 2"
        raise BadInput(f"spares = {job.spares}: no replica would ever need one; set spares = 0, or {remedy}")
    if replicas == 1:
        for fault in faults:
            if fault.cuts_off or fault.who == REPLICA:
                raise BadInput(f"fault = {fault}: there are no others that go on meanwhile; set replicas = 2")
            if fault.of_migration and scenario.trigger == NOTHING_MOVES:
                raise BadInput(f"fault = {fault}: nothing moves; set trigger = scale, or another one")
        return
    of_moves = *_of_moves(scenario, spec.point()), *_of_moves_apart(spec, hits)
    for line in (*_conflicts(job, spec.unsettled), *of_moves, *_of_faults(job, scenario, faults)):
        raise BadInput(f"replicas = {replicas} with {line}")


def check_fault_now(job: JobPart, fault: Fault) -> None:
    """Raise BadInput for a ``fault`` that is not possible now with so many replicas, or is not yet."""
    if job.replicas == 1 and fault.who in _WHOLE:
        raise BadInput(f"fault = {fault}: this job has no replicas; take kill:slot, or start one with replicas = 2")
    if job.replicas > 1 and fault.who not in _AT_A_TIME:
        raise BadInput(
            f"replicas = {job.replicas} with fault = {fault}: not possible yet; what is: {', '.join(_AT_A_TIME)}, as "
            f"kill:{REPLICA} or stop:{REPLICA}:3s"
        )
    for line in _of_leaders(job, fault):
        raise BadInput(f"replicas = {job.replicas} with {line}")


def check_alike(job: JobPart, point: Strategy) -> None:
    """Raise BadInput if replicas would not make the same plan by this strategy."""
    if job.replicas > 1:
        for line in _of_order(point):
            raise BadInput(f"replicas = {job.replicas} with {line}")


def check_under_order(job: JobPart, name: str, point: Strategy) -> None:
    """Raise BadInput if the strategy of this ``name`` is not possible with the job's order."""
    if not orderings.get(job.ordering).agrees:
        return
    for conflict in turn_conflicts(point):
        possible = ", ".join(
            known
            for known, each in strategies.items()
            if not [*turn_conflicts(each), *(_of_order(each) if job.replicas > 1 else ())]
        )
        raise BadInput(
            f"ordering = {job.ordering} with strategy = {name}: {conflict}; strategies that are possible as they are: "
            f"{possible}"
        )


def _of_order(point: Strategy) -> Iterator[str]:
    for order in dict.fromkeys(each.order for each in point.of_every_migration if each.order in BY_HEAT):
        yield f"order = {order}: each replica would order its steps by what it has measured itself; set another order"


def _moment(fault: Fault) -> tuple[str, float | None]:
    return fault.phase, fault.at_s


def _conflicts(job: JobPart, unsettled: tuple[str, ...]) -> Iterator[str]:
    if not orderings.get(job.ordering).agrees:
        known = ", ".join(name for name, each in orderings.items() if each.agrees)
        yield f"ordering = {job.ordering}: replicas would differ; set ordering to one of: {known}"
    for name in unsettled:
        yield f"{name} = auto: what a load costs was not measured with replicas; give a number"


def _of_moves(scenario: ScenarioPart, point: Strategy) -> Iterator[str]:
    """Say why this cannot move: all replicas make the same plan, each by itself, and do all of it."""
    trigger, known = scenario.trigger, ", ".join((NOTHING_MOVES, *PLANNED_ALIKE))
    if trigger == NOTHING_MOVES:
        return
    if trigger not in PLANNED_ALIKE:
        yield (
            f"trigger = {trigger}: each replica would plan by what it has measured itself; set trigger to one of: "
            f"{known}"
        )
    for name in [name for name, _ in scenario.asked[1:] if name not in (BACK, *PLANNED_ALIKE)]:
        yield f"then = {scenario.then}: each replica would plan by what it has measured itself; leave {name} out"
    if scenario.on_overlap != "queue":
        yield (
            f"on_overlap = {scenario.on_overlap}: one replica may have begun what is to be taken back, and another one "
            "not; set on_overlap = queue"
        )
    yield from _of_order(point)


def _of_moves_apart(spec: "RunSpec", hits: Sequence[Fault]) -> Iterator[str]:
    """Say why replicas cannot move one after the other, if they would. A slot of another stage would get the events of
    a key from other senders, and in another order. So would a slot from a leader: what is ordered are rows of the slot,
    and another one has those of a unit that has moved.
    """
    job, stages = spec.job, [stage.name for stage in spec.workload.stages]
    if not moves_apart(job, spec.scenario):
        return
    what = f"replicas_move = {job.replicas_move}"
    if orderings.get(job.ordering).leads:
        yield (
            f"{what} and ordering = {job.ordering}: a leader orders the rows of one slot, and a unit would be in "
            "another one; set it to together"
        )
    if len(stages) > 1:
        yield f"{what}: possible with a single keyed stage, and there are {', '.join(stages)}; set it to together"
    if job.returns and (hits or spec.lasts):
        said, other = ("", ", or replicas_move = together") if spec.lasts else (f" and fault = {hits[0]}", "")
        yield (
            f"{what}{said}: a replica that dies does not come back while assignments differ; set returns = false{other}"
        )


def _of_leaders(job: JobPart, fault: Fault) -> Iterator[str]:
    if fault.who == FOLLOWER and not orderings.get(job.ordering).leads:
        known = ", ".join(name for name, each in orderings.items() if each.leads)
        yield (
            f"fault = {fault}: with ordering = {job.ordering} nobody leads, so nobody follows; use kill:{REPLICA}, or "
            f"set ordering to one of: {known}"
        )


def _of_faults(job: JobPart, scenario: ScenarioPart, faults: list[Fault]) -> Iterator[str]:
    phases = (STEADY,) if scenario.trigger == NOTHING_MOVES else (STEADY, *MOVING)
    for number, fault in enumerate(faults):
        dies_later = ends_one(fault) and fault.who not in _WHOLE
        same = (each for each in faults[number + 1 :] if ends_one(each) and _moment(each) == _moment(fault))
        if dies_later and (hit := next((each for each in same if each.who != FOLLOWER), None)):
            yield (
                f"fault = {fault}, {hit}: both would hit the same replica, whose query dies a moment later; take "
                f"kill:{REPLICA}, or another time"
            )
        if fault.who == REPLICA and fault.of_migration and scenario.trigger == NOTHING_MOVES:
            yield f"fault = {fault}: nothing moves; set trigger to one of: {', '.join(PLANNED_ALIKE)}"
        yield from _of_leaders(job, fault)
        possible = (fault.who in _WHOLE and fault.phase in phases) or (not fault.phase and fault.who in _AT_A_TIME)
        if not possible:
            yield (
                f"fault = {fault}: not possible yet; what is: kill:{REPLICA} and stop:{REPLICA} in the phases "
                f"{', '.join(phases)}, or {', '.join(_AT_A_TIME)} at a time, as kill:{REPLICA}@4 or stop:{REPLICA}@4:3s"
            )
