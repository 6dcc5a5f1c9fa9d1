"""The highest sustained rate of each point of a question, searched in a job of its own, which has a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from keyshift.lab.environment import open_lab
from keyshift.lab.scripts.highest_rate import RateSearch, expected_s
from keyshift.model.errors import BadInput
from keyshift.studies.study import Study, specs_of

NOTHING_MOVES = {"trigger": "none", "trigger_s": 0.0}  # in any point


@dataclass
class RateStudy(Study):
    """A study with the searches for the highest rate. ``searches``: of each run in ``runs``, likewise."""

    searches: dict[str, list[RateSearch]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Summary rows as of ``Study``, with what was found, for ``analysis.rates``: ``highest_per_s``, None if none is
        sustained, ``above_per_s``, the next one that was tried, None if none was, ``lowest_per_s``, of those that were
        tried, and ``held_p50_ms`` and ``held_p99_ms``, latencies at a part of the highest.
        """
        found = [search for name in self.runs for search in self.searches[name]]
        ended = [manifest.summary is not None for manifest in self.manifests]
        known = [search for search, there in zip(found, ended, strict=True) if there]
        return [
            row
            | {
                "highest_per_s": search.highest or None,
                "above_per_s": min((rate for rate, _ in search.tried if rate > search.highest), default=None),
                "lowest_per_s": min(rate for rate, _ in search.tried),
                "held_p50_ms": search.held and search.held.p50_ms,
                "held_p99_ms": search.held and search.held.p99_ms,
            }
            for row, search in zip(super().rows(), known, strict=True)
        ]

    def tried(self) -> pd.DataFrame:
        """A row for each rate that was tried, in this order: its point and run, whether it is sustained, latencies."""
        rows = [
            {
                "point": name,
                "run": manifest.run_id,
                "events/s": round(rate),
                "sustained": burst.sustained,
                "p50 (ms)": burst.p50_ms,
                "p99 (ms)": burst.p99_ms,
            }
            for name, some in self.runs.items()
            for (manifest, _), search in zip(some, self.searches[name], strict=True)
            for rate, burst in search.tried
        ]
        return pd.DataFrame(rows).set_index("point")


def measure_highest_rates(
    points: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any] | None = None,
    profile: str = "",
    bisections: int = 3,
) -> RateStudy:
    """The runs of ``points``: parameters by name, each over those ``common`` to all. Nothing moves in them.

    Each run has a job of its own, in which rates are tried from its ``rate`` on, each for its ``seconds``; the more
    ``bisections``, the finer. Raises BadInput, before anything is started, for a point that is not possible or moves
    something, and KeyshiftError if all died or none is correct; one that dies does not stop the others.
    """
    specs = specs_of(points, {**NOTHING_MOVES, **(common or {})})
    for name, spec in specs.items():
        once = spec.run.rate_steps or spec.run.events or spec.unsettled
        if spec.scenario.trigger != NOTHING_MOVES["trigger"] or once:
            raise BadInput(
                f"{name}: the rate is searched while nothing moves: trigger must be none (it is "
                f"{spec.scenario.trigger}), rate a number to begin with, frame_ms a number, events empty and "
                "rate_steps empty"
            )
    study = RateStudy({name: [] for name in specs}, specs, searches={name: [] for name in specs})
    lasts_s = sum(expected_s(spec, bisections) * spec.run.repetitions for spec in specs.values())
    with open_lab([*specs.values()], profile, lasts_s=lasts_s) as lab:
        for repetition in range(max(spec.run.repetitions for spec in specs.values())):
            for name, spec in specs.items():
                if repetition >= spec.run.repetitions:
                    continue
                search = RateSearch(bisections)
                if study.add(name, lab.store, partial(lab.run, spec.repeated(repetition), search.script)):
                    study.searches[name].append(search)
    study.require_good()
    return study
