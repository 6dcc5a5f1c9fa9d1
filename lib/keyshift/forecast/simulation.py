"""Migrations on a cluster that is not at hand, by points and common parameters, as ``study.measure`` takes them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field

from keyshift.experiment.scenario import Part
from keyshift.forecast import Cluster, Costs, Load, check_costs, require_possible, simulated
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment
from keyshift.planner import MEANINGS, Strategy, change, in_units, make_plan, require_units, strategies
from keyshift.planner.targets import scale, zipf_mass
from keyshift.refusals import made
from keyshift.registry import unknown

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)
}


def amount(text: str | float) -> float:
    """Bytes (``10TB``, ``64GiB``) or bytes per second (``10Gbit``, ``1.25GB``): a number alone is bytes.

    Raises ValueError for anything else.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kMGTP]?|[KMGTP]i)(B|bit)?(?:/s)?\s*", str(text))
    if not found:
        raise ValueError("must be a number with a unit of bytes or bits")
    number, prefix, unit = found.groups()
    return float(number) * _SCALES[prefix] / (8 if unit == "bit" else 1)


Amount = Annotated[float, BeforeValidator(amount)]


class ClusterPart(Part):
    """The cluster, its job and what is offered to it. Nothing here is measured: all of it is what is asked about."""

    slots: int = Field(default=1000, ge=1, le=100_000, description="slots that own state before the migration")
    to_slots: int = Field(default=1100, ge=1, le=100_000, description="slots that own state after it")
    state: Amount = Field(default=1e13, gt=0, allow_inf_nan=False, description="all state: 10TB, 64GiB")
    key_bytes: Amount = Field(default=1024.0, gt=0, allow_inf_nan=False, description="of it for each key")
    rate: float = Field(default=1e6, gt=0, allow_inf_nan=False, description="events per second offered")
    skew: float = Field(default=0.0, ge=0, le=10, description="Zipf exponent over key groups; 0 is uniform")
    key_groups: int = Field(default=32_768, ge=1, le=1 << 17, description="number of key groups")
    routers: int = Field(default=16, ge=1, le=4096, description="routers, one per Kafka partition")
    frame_ms: float = Field(default=100.0, gt=0, le=10_000, description="milliseconds between frames of a partition")
    copy_every_s: float = Field(default=1.0, gt=0, le=1e6, description="seconds between rounds of copying")
    host_slots: int = Field(default=10, ge=1, le=4096, description="slots on a host")
    cores: int = Field(default=16, ge=1, le=4096, description="cores of a host")
    link: Amount = Field(default=1.25e9, gt=0, allow_inf_nan=False, description="of a host, each way: 10Gbit, 1.25GB")
    seed: int = Field(default=1, ge=0, description="of orders that draw, and of who asks for state first")


class Question(NamedTuple):
    """What ``simulate`` is asked about a strategy, by its name."""

    name: str
    strategy: Strategy
    cluster: ClusterPart


def questions(points: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any] | None = None) -> dict[str, Question]:
    """Questions of ``points``, see ``simulate``. Raises BadInput for one that is not possible, or if there is none."""
    if not points:
        raise BadInput("simulate: no point given; name a strategy")
    return {name: _question({**(common or {}), **given}) for name, given in points.items()}


def simulate(
    costs: Costs, points: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Simulate the migrations of ``points``, each by name with ``strategy``, its settings and fields of
    ``ClusterPart``, over those ``common`` to all; nothing is run.

    A row for each point: point, strategy, the fields of ``ClusterPart``, and those of ``forecast.Simulated`` that are
    numbers. Raises BadInput for a point that is not possible or cannot be simulated, before any is, and for one that
    would take too long; see ``forecast.simulated``.
    """
    every = {point: (asked, *_case(asked)) for point, asked in questions(points, common).items()}
    for asked, current, target, load in every.values():
        check_costs(asked.strategy, current, target, load, costs)
    rows = []
    for point, ((name, strategy, cluster), current, target, load) in every.items():
        hosts = Cluster(cluster.host_slots, cluster.cores, cluster.link)
        plan = make_plan(strategy, current, target, load.rates.tolist(), cluster.seed)
        found = simulated(strategy, plan, current, target, load, hosts, costs, cluster.seed)
        numbers = {each: value for each, value in vars(found).items() if isinstance(value, int | float)}
        rows.append({"point": point, "strategy": name} | cluster.model_dump() | numbers)
    return pd.DataFrame(rows)


def _question(values: Mapping[str, Any]) -> Question:
    name = str(values.get("strategy", "fluid"))
    preset, of_cluster = strategies.get(name), ClusterPart.model_fields
    for each in values:
        if each not in ("strategy", *of_cluster, *MEANINGS):
            raise unknown("parameter", each, ["strategy", *of_cluster, *MEANINGS])
    cluster: ClusterPart = made(ClusterPart, {each: value for each, value in values.items() if each in of_cluster})
    if (most := max(cluster.slots, cluster.to_slots)) > cluster.key_groups:
        raise BadInput(f"slots = {most}: more than key groups ({cluster.key_groups}); raise key_groups")
    strategy = change(preset, {each: value for each, value in values.items() if each in MEANINGS}).of_migration(0)
    require_possible(strategy)
    require_units(strategy, cluster.key_groups)
    return Question(name, strategy, cluster)


def _case(asked: Question) -> tuple[Assignment, Assignment, Load]:
    """Where the units of a question are and are to be, and what is offered to them."""
    _, strategy, cluster = asked
    groups = Assignment.contiguous(cluster.key_groups, cluster.slots)
    current, target = in_units(strategy, groups), in_units(strategy, scale(groups, cluster.to_slots))
    units = len(current.owner)
    mass = np.repeat(np.array(zipf_mass(cluster.key_groups, cluster.skew)) / strategy.bins, strategy.bins)
    load = Load(
        rates=cluster.rate * mass,
        unit_bytes=np.full(units, cluster.state / units),
        unit_keys=np.full(units, cluster.state / cluster.key_bytes / units),
        routers=cluster.routers,
        frame_s=cluster.frame_ms / 1000,
        copy_every_s=cluster.copy_every_s,
    )
    return current, target, load
