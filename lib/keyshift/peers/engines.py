"""Other engines beside keyshift's job: the same load, measures and verdict, whatever the engine."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from keyshift.driver.spark import require_no_spark
from keyshift.lab.environment import require_possible_here
from keyshift.model.errors import BadInput
from keyshift.peers import flink_run, spark_run
from keyshift.peers.runs import PeerSpec
from keyshift.place.profile import load_profile
from keyshift.studies.study import Points, Study, collect, specs_of

Common = Mapping[str, Any]


class Engine(NamedTuple):
    """An engine. ``spec``: raises BadInput for what its job does not do. ``measure``: its runs, with a profile."""

    spec: Callable[[Common], PeerSpec]
    measure: Callable[[Common, str], Study]


ENGINES = {
    name: Engine(partial(spark_run.spark_spec, name), partial(spark_run.measure_spark, name))
    for name in spark_run.QUERIES
} | {
    name: Engine(partial(flink_run.flink_spec, name), partial(flink_run.measure_flink, name))
    for name in flink_run.QUERIES
}


def measure_beside_engines(
    points: Points,
    common: Common,
    engines: Collection[str],
    profile: str = "",
    checkpoint_s: float = flink_run.CHECKPOINT_S,
) -> Study:
    """The runs of ``points``, each in a job of its own, see ``study.measure``; behind them those of ``engines``, names
    in ``ENGINES``. ``checkpoint_s``: between checkpoints of ``flink_rescale``, which goes on from one.

    The engines' are made first: without Flink's jars nothing of ours is measured. Raises what ``measure`` does, and
    what the engines' own measuring does; what is not possible is refused before anything is started.
    """
    ours, place = specs_of(points, common), load_profile(profile)
    specs = [*ours.values()]

    def given(name: str) -> Common:
        return {**common, "snapshot_s": checkpoint_s} if name == flink_run.RESCALE else common

    for name in engines:
        if name not in ENGINES:
            raise BadInput(f"engines: {name!r} is not known; there are {', '.join(ENGINES)}")
        if place.services != "embedded" or place.spark.on_kubernetes:
            raise BadInput(
                f"profile = {profile!r}: {name} is started beside the embedded services and a Spark of this machine: "
                "use `--profile local`"
            )
        specs.append(ENGINES[name].spec(given(name)))
    require_possible_here(specs, profile, ["Flink"] if {*flink_run.QUERIES} & {*engines} else [])
    require_no_spark()
    beside = Study({}, {})
    for name in engines:
        beside |= ENGINES[name].measure(given(name), profile)
    study = collect(ours, profile) | beside
    study.require_good()
    return study
