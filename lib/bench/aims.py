"""What the runs of ``bench.strategies`` say of the aims.

A row is one of ``Study.rows``: the summary of a run. Of ``all_at_once`` it has ``copy_s``, too: the seconds of a bare
copy of the same bytes between as many processes, made right after the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.measurements import Measurement

CALM = ("fluid", "matched", "meces", "lazy")  # presets that users should hardly notice
AT_MOST_BEFORE = 2.0  # their spike, times the P99 before
# Their spike, against that of the presets that a naive user would take.
AT_MOST_OF = {"order_unaware": 1 / 5, "stop_restart": 1 / 20}
AT_MOST_COPY = 1.5  # completion of all_at_once, times a bare copy of the same bytes

Row = Mapping[str, Any]


def aims(rows: Sequence[Row]) -> list[Measurement]:
    """The aims that these runs can tell about: each compares neighbours of a repetition, correct ones only."""
    known: dict[tuple[str, str], dict[int, float]] = {}  # of a preset, a figure in ms by the seed
    for row in rows:
        for figure, value in _figures(row):
            if value is not None:
                known.setdefault((row["strategy"], figure), {})[row["parameters"]["seed"]] = value

    def against(measure: str, ours: tuple[str, str], other: tuple[str, str], aim: float | None) -> Measurement:
        mine, others = known.get(ours, {}), known.get(other, {})
        both = [seed for seed in mine if others.get(seed)]
        return Measurement("d", measure, "ms", [mine[seed] for seed in both], [others[seed] for seed in both], aim)

    found = []
    for preset in CALM:
        spike, spike_of = (preset, "spike"), f"spike of {preset}, against"
        found.append(against(f"{spike_of} P99 before", spike, (preset, "before"), AT_MOST_BEFORE))
        for other, at_most in AT_MOST_OF.items():
            found.append(against(f"{spike_of} that of {other}", spike, (other, "spike"), at_most))
    whole, hand_over, copy = (("all_at_once", figure) for figure in ("completion", "hand-over", "copy"))
    found.append(against("completion of all_at_once, against a bare copy", whole, copy, AT_MOST_COPY))
    found.append(against("of it transfer and install, against the same", hand_over, copy, None))
    return [row for row in found if row.keyshift]


def _figures(row: Row) -> Iterator[tuple[str, float | None]]:
    """What aims are about, in ms; nothing of a run that is not correct."""
    if row["verdict"] == "ok":
        yield from {"spike": row["spike_ms"], "before": row["p99_ms"]}.items()
        seconds = {"completion": row["completion_s"], "hand-over": hand_over_s(row), "copy": row.get("copy_s")}
        yield from ((figure, None if value is None else value * 1000) for figure, value in seconds.items())


def hand_over_s(row: Row) -> float | None:
    """Seconds from the last unit aligned to the last one in place: what travels, travels in that time."""
    phases = [row["phases"][name] for name in ("transfer", "install")]
    return None if row["completion_s"] is None or None in phases else float(sum(phases))
