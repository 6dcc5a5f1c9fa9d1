"""Other engines beside keyshift's job: the same load, measures and verdict, whatever the engine."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from keyshift.driver.spark import require_no_spark
from keyshift.lab.environment import require_possible_here
from keyshift.lab.scripts.highest_rate import SUSTAINED_P99_MS
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.peers import flink_job, spark_job
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, peer_lab, repetitions, run_counting
from keyshift.place.profile import load_profile
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore
from keyshift.studies.highest_rate import (
    BISECTIONS,
    NOTHING_MOVES,
    RateStudy,
    add_highest_rates,
    load_s,
    specs_to_search,
)
from keyshift.studies.study import Points, Study, collect, specs_of

Common = Mapping[str, Any]


class Engine(NamedTuple):
    """An engine. ``spec``: raises BadInput for what its job does not do. ``opened``: for runs of it, with a profile."""

    spec: Callable[[Common], PeerSpec]
    opened: Callable[[PeerSpec, PeerLab, str], AbstractContextManager[OpenEngine]]


ENGINES = {
    **{name: Engine(partial(spark_job.spark_spec, name), spark_job.opened) for name in spark_job.QUERIES},
    **{name: Engine(partial(flink_job.flink_spec, name), flink_job.opened) for name in flink_job.QUERIES},
}


def add_runs(
    study: Study, spec: PeerSpec, profile: str, add: Callable[[str, ResultStore, Callable[..., Manifest]], object]
) -> None:
    """Have ``add`` make the runs of ``spec``, a point of ``study``, in its engine; without that it has died."""
    with peer_lab(profile) as lab:
        try:
            with ENGINES[spec.peer].opened(spec, lab, profile) as opened:
                for each in repetitions(spec):
                    add(spec.peer, lab.store, partial(run_counting, each, lab, opened))
        except KeyshiftError as error:
            study.died[spec.peer] = str(error)


def measure_beside_engines(
    points: Points,
    common: Common,
    engines: Collection[str],
    profile: str = "",
    checkpoint_s: float = flink_job.CHECKPOINT_S,
) -> Study:
    """The runs of ``points``, each in a job of its own, see ``study.measure``; behind them those of ``engines``, names
    in ``ENGINES``. ``checkpoint_s``: between checkpoints of ``flink_rescale``, which goes on from one.

    The engines' are made first. One that cannot be opened, as Flink without its jars, has died like a run, and the
    others go on. Raises what ``measure`` does; what is not possible is refused before anything is started.
    """
    ours = specs_of(points, common)
    specs = _specs(engines, common, profile, checkpoint_s)
    require_possible_here([*ours.values(), *specs], profile, _also(engines))
    require_no_spark()
    beside = Study({spec.peer: [] for spec in specs}, {spec.peer: spec for spec in specs})
    for spec in specs:
        add_runs(beside, spec, profile, beside.add)
    study = collect(ours, profile) | beside
    study.require_good()
    return study


def measure_rates_beside_engines(
    points: Points,
    common: Common,
    engines: Collection[str],
    profile: str = "",
    checkpoint_s: float = flink_job.CHECKPOINT_S,
    bisections: int = BISECTIONS,
) -> RateStudy:
    """The highest rate that each of ``points`` and ``engines`` sustains, searched as by ``measure_highest_rates`` in
    jobs in which nothing moves; see ``measure_beside_engines``. All may have died.

    Raises BadInput, before anything is started, for an engine that answers batch by batch, too: by the measure of a
    search it sustains nothing.
    """
    if batchwise := [name for name in engines if name in spark_job.QUERIES and spark_job.QUERIES[name].in_batches]:
        raise BadInput(
            f"engines: {', '.join(batchwise)}: a batch takes longer than what counts as sustained, "
            f"{SUSTAINED_P99_MS:g} ms, at any rate"
        )
    given = {**common, "trigger_s": NOTHING_MOVES["trigger_s"]}
    ours = specs_to_search(points, given, bisections)
    specs = {}
    for spec in _specs(engines, given, profile, checkpoint_s):  # of which nobody asks for other slots
        specs[spec.peer] = replace(spec, scenario=spec.scenario.model_copy(update=NOTHING_MOVES))
    every = {**ours, **specs}
    require_possible_here([*every.values()], profile, _also(engines), load_s(every, bisections), searched=True)
    require_no_spark()
    study = RateStudy.of(every)
    for spec in specs.values():
        add_runs(study, spec, profile, lambda point, store, run: study.search(point, store, bisections, run))
    add_highest_rates(study, ours, profile, bisections)
    return study


def _also(engines: Collection[str]) -> list[str]:
    """Name what ``engines`` start beside the services."""
    return ["Flink"] if {*flink_job.QUERIES} & {*engines} else []


def _specs(engines: Collection[str], common: Common, profile: str, checkpoint_s: float) -> list[PeerSpec]:
    """The specs of ``engines``; see ``measure_beside_engines``. Raises BadInput."""
    place, specs = load_profile(profile), list[PeerSpec]()
    for name in engines:
        if name not in ENGINES:
            raise BadInput(f"engines: {name!r} is not known; there are {', '.join(ENGINES)}")
        if name in [spec.peer for spec in specs]:
            raise BadInput(f"engines: {name!r} is there twice; leave one out")
        if place.services != "embedded" or place.spark.on_kubernetes:
            raise BadInput(
                f"profile = {profile!r}: {name} is started beside the embedded services and a Spark of this machine: "
                "use `--profile local`"
            )
        given = {**common, "snapshot_s": checkpoint_s} if name == flink_job.RESCALE else common
        specs.append(ENGINES[name].spec(given))
    return specs
