"""Other engines beside keyshift's job: the same load, measures and verdict, whatever the engine."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from keyshift.driver.spark import require_no_spark
from keyshift.lab.environment import require_possible_here
from keyshift.model.errors import BadInput
from keyshift.peers import flink_run, spark_run
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, peer_lab, repeated, run_counting
from keyshift.place.profile import load_profile
from keyshift.studies.study import Points, Study, collect, specs_of

Common = Mapping[str, Any]


class Engine(NamedTuple):
    """An engine. ``spec``: raises BadInput for what its job does not do. ``opened``: for runs of such a spec, with a
    profile.
    """

    spec: Callable[[Common], PeerSpec]
    opened: Callable[[PeerSpec, PeerLab, str], AbstractContextManager[OpenEngine]]


ENGINES = {
    **{name: Engine(partial(spark_run.spark_spec, name), spark_run.opened) for name in spark_run.QUERIES},
    **{name: Engine(partial(flink_run.flink_spec, name), flink_run.opened) for name in flink_run.QUERIES},
}


def measure_engine(spec: PeerSpec, profile: str = "") -> Study:
    """The runs of one point, in its engine, which is opened once; each has a job of its own, and all may have died."""
    with peer_lab(profile) as lab, ENGINES[spec.peer].opened(spec, lab, profile) as opened:
        return repeated({spec.peer: spec}, lab.store, lambda each: run_counting(each, lab, opened))


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
    what ``opened`` of the engines does; what is not possible is refused before anything is started.
    """
    ours, place = specs_of(points, common), load_profile(profile)
    specs: list[PeerSpec] = []
    for name in engines:
        if name not in ENGINES:
            raise BadInput(f"engines: {name!r} is not known; there are {', '.join(ENGINES)}")
        if place.services != "embedded" or place.spark.on_kubernetes:
            raise BadInput(
                f"profile = {profile!r}: {name} is started beside the embedded services and a Spark of this machine: "
                "use `--profile local`"
            )
        given = {**common, "snapshot_s": checkpoint_s} if name == flink_run.RESCALE else common
        specs.append(ENGINES[name].spec(given))
    require_possible_here([*ours.values(), *specs], profile, ["Flink"] if {*flink_run.QUERIES} & {*engines} else [])
    require_no_spark()
    beside = Study({}, {})
    for spec in specs:
        beside |= measure_engine(spec, profile)
    study = collect(ours, profile) | beside
    study.require_good()
    return study
