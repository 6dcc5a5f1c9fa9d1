"""The highest sustained rate of each point of a question, searched in a job of its own, which has a verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from keyshift.experiment.spec import RunSpec
from keyshift.lab.environment import open_lab
from keyshift.lab.run_loop import MakeScript
from keyshift.lab.scripts.highest_rate import RateSearch, expected_s
from keyshift.model.errors import BadInput
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore
from keyshift.studies.study import Points, Study, specs_of

NOTHING_MOVES = {"trigger": "none", "trigger_s": 0.0}  # in any point
BISECTIONS = 3  # of the factor 2 between a rate that is sustained and one that is not
MOST_BISECTIONS = 20  # then a rate is known to within a millionth of it
_TRIED = ["point", "run", "events/s", "offered in time", "sustained", "P50 of a second (ms)", "P99 of a second (ms)"]


@dataclass
class RateStudy(Study):
    """A study with the searches for the highest rate. ``searches``: of each run in ``runs``, likewise."""

    searches: dict[str, list[RateSearch]] = field(default_factory=dict)

    @classmethod
    def of(cls, specs: Mapping[str, RunSpec]) -> "RateStudy":
        """A study of these points, without a run yet."""
        return cls({name: [] for name in specs}, {**specs}, searches={name: [] for name in specs})

    def search(self, point: str, store: ResultStore, bisections: int, run: Callable[[MakeScript], Manifest]) -> None:
        """Add another run of ``point`` and its search, or why it died. ``run``: makes one that follows a script."""
        search = RateSearch(bisections)
        if self.add(point, store, partial(run, search.script)):
            self.searches[point].append(search)

    def rows(self) -> list[dict[str, Any]]:
        """Summary rows as of ``Study``, with what was found, for ``analysis.rates``: ``highest_per_s``, None if none is
        sustained, ``at_least``, see ``RateSearch``, ``above_per_s``, the next one that was tried, None if none was,
        ``lowest_per_s``, of those that were tried, and ``held_p50_ms`` and ``held_p99_ms``, latencies at a part of the
        highest, medians over its seconds.
        """
        found = [search for name in self.runs for search in self.searches[name]]
        ended = [manifest.summary is not None for manifest in self.manifests]
        known = [search for search, there in zip(found, ended, strict=True) if there]
        return [
            row
            | {
                "highest_per_s": search.highest or None,
                "at_least": search.at_least,
                "above_per_s": search.above,
                "lowest_per_s": min(rate for rate, _ in search.tried),
                "held_p50_ms": search.held and search.held.p50_ms,
                "held_p99_ms": search.held and search.held.p99_ms,
            }
            for row, search in zip(super().rows(), known, strict=True)
        ]

    def tried(self) -> pd.DataFrame:
        """A row for each rate that was tried, in this order: its point and run, whether its events were offered in time
        and it is sustained, latencies, which are medians over its seconds.
        """
        rows = [
            (name, manifest.run_id, round(rate), burst.in_time, burst.sustained, burst.p50_ms, burst.p99_ms)
            for name, some in self.runs.items()
            for (manifest, _), search in zip(some, self.searches[name], strict=True)
            for rate, burst in search.tried
        ]
        return pd.DataFrame(rows, columns=_TRIED).set_index("point")


def measure_highest_rates(
    points: Points, common: Mapping[str, Any] | None = None, profile: str = "", bisections: int = BISECTIONS
) -> RateStudy:
    """The runs of ``points``: parameters by name, each over those ``common`` to all. Nothing moves in them.

    Each run has a job of its own, in which rates are tried from its ``rate`` on, each for its ``seconds``; the more
    ``bisections``, the finer. Raises BadInput, before anything is started, for a point that is not possible or moves
    something, and KeyshiftError if all died or none is correct; one that dies does not stop the others.
    """
    specs = specs_to_search(points, common or {}, bisections)
    study = RateStudy.of(specs)
    add_highest_rates(study, specs, profile, bisections)
    study.require_good()
    return study


def specs_to_search(points: Points, common: Mapping[str, Any], bisections: int) -> dict[str, RunSpec]:
    """The specs of ``points``, by their names; see ``measure_highest_rates``. Raises BadInput."""
    if not 0 <= bisections <= MOST_BISECTIONS:
        raise BadInput(f"bisections = {bisections}: must be a number from 0 to {MOST_BISECTIONS}")
    specs = specs_of(points, {**NOTHING_MOVES, **common})
    for name, spec in specs.items():
        once = spec.run.rate_steps or spec.run.events or spec.unsettled
        if spec.scenario.trigger != NOTHING_MOVES["trigger"] or once:
            raise BadInput(
                f"{name}: the rate is searched while nothing moves: trigger must be none (it is "
                f"{spec.scenario.trigger}), rate a number to begin with, frame_ms a number, events empty and "
                "rate_steps empty"
            )
    return specs


def load_s(specs: Mapping[str, RunSpec], bisections: int) -> float:
    """Seconds of load that all searches of ``specs`` take about, one after the other."""
    return sum(expected_s(spec, bisections) * spec.run.repetitions for spec in specs.values())


def add_highest_rates(study: RateStudy, specs: Mapping[str, RunSpec], profile: str, bisections: int) -> None:
    """Add the searches of ``specs``, points of ``study``, each in a job of ours; all may have died."""
    with open_lab([*specs.values()], profile, lasts_s=load_s(specs, bisections), searched=True) as lab:
        for repetition in range(max(spec.run.repetitions for spec in specs.values())):
            for name, spec in specs.items():
                if repetition < spec.run.repetitions:
                    study.search(name, lab.store, bisections, partial(lab.run, spec.repeated(repetition)))
