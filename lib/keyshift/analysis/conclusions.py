"""Comparisons of runs in words, computed from summary rows (``results.manifest.Summary``, as dicts)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

import pandas as pd

from keyshift.analysis.machine import FULL, ROBBED
from keyshift.analysis.statistics import differ
from keyshift.analysis.tables import Point, Row, on_front, owners_only, points, ratio, tradeoffs

TIE = 1.1  # single runs scatter by about this factor: closer ones are called equal


def sentences(summaries: Sequence[Row]) -> list[str]:
    """What the runs show, in sentences computed from them: verdicts first, then spike, silence, completion, recovery.

    Points with a bad verdict are reported and left out of the comparisons: speed does not make up for wrong results.
    Points within 10 % are called the same; where both were repeated, what may be chance (Welch, 95 %) is called so.
    """
    grouped = points(summaries)
    if not grouped:
        return ["There is no run to compare."]
    result = []
    for workload, group in grouped.items():
        prefix = f"{workload}: " if len(grouped) > 1 else ""
        result += [prefix + sentence for sentence in _about(group)]
    return result


def tradeoff_sentences(summaries: Sequence[Row]) -> list[str]:
    """What ``tradeoffs`` shows, in sentences: whom nobody beats, what lies how far above the floor, what stays."""
    frame = tradeoffs(summaries)
    known = frame.dropna(subset=["spike_ms", "completion_s"]).sort_values("completion_s")
    if known.empty:
        return ["No strategy has both a spike and a completion to compare."]
    unbeaten = on_front(known, TIE)
    front, others = (known[chosen] for chosen in (unbeaten, ~unbeaten))
    said = []
    if len(others):
        said.append(
            f"{enumerated(list(front['label']))}: no other strategy is better in both spike and completion. "
            f"{enumerated(list(others['label']))}: there is one that is about as good in both, or better."
        )
    elif len(front) > 1:
        said.append(f"{enumerated(list(front['label']))}: {_traded(front)}.")
    whole = known[~known["stays"]].dropna(subset="floor_s")
    if len(whole):
        fastest = whole[whole["completion_s"] <= TIE * whole["completion_s"].min()]
        of_runs = " (the median of its runs)" if fastest["runs"].iloc[0] > 1 else ""
        complete = "completes first, in" if len(fastest) == 1 else "complete first, in about"
        said.append(
            f"Of what moves everything {enumerated(list(fastest['label']))} {complete} "
            f"{_s(fastest['completion_s'].iloc[0])}{of_runs}; the floor, a bare copy of the same bytes, is "
            f"{_s(fastest['floor_s'].iloc[0])}."
        )
    staying = list(known[known["stays"]]["label"])
    if staying:
        said.append(
            f"{enumerated(staying)}: completion is the change of owner only; state follows later, or stays where it "
            "was."
        )
    return said


def _traded(front: pd.DataFrame) -> str:
    """How those that nobody beats, by completion, are to each other."""
    costs = front[["spike_ms", "completion_s"]].to_numpy("float64")
    if (costs.max(axis=0) <= TIE * costs.min(axis=0)).all():
        return "about the same in both spike and completion"
    if (costs[1:, 1] <= TIE * costs[:-1, 1]).any():
        return "none is better than another in both spike and completion"
    return "each pays for a lower spike with a later completion"


def rescaling_sentences(tables: Mapping[str, pd.DataFrame], names: Sequence[str]) -> list[str]:
    """Who was done first with each migration, and who had the lowest spike. ``tables`` and ``names``: see
    ``rescaling_figure``; of points all of whose runs are correct.
    """
    means = {name: table.groupby("number")[["completion_s", "spike_ms"]].mean() for name, table in tables.items()}
    said = []
    for number, migration in enumerate(names):
        for column, show, verbs, best in (
            ("completion_s", _s, ("was done", "were done"), " first, in"),
            ("spike_ms", _ms, ("had", "had"), " the lowest spike,"),
        ):
            known = {name: float(mean[column].get(number, nan)) for name, mean in means.items()}
            known = {name: value for name, value in known.items() if isfinite(value)}
            if len(known) > 1:
                low = min(known.values())
                first = [name for name, value in known.items() if value <= TIE * low]
                text = f"{enumerated(first)} {verbs[len(first) > 1]}{best}"
                said.append(f"{migration}: {text} {show(low)}.")
    return said


def enumerated(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; there must be one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def digits(value: float) -> str:
    """Two significant digits, without an exponent."""
    if value < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


def doubts(rows: Sequence[Row]) -> list[str]:
    """A sentence for each thing because of which figures of ``rows`` say less: a full machine, an overloaded job."""
    busy = sum((row.get("cpu_busy") or 0.0) >= FULL for row in rows)
    robbed = sum((row.get("cpu_steal") or 0.0) >= ROBBED for row in rows)
    overloaded = sum(bool(row.get("overloaded")) for row in rows)
    said = []
    if busy:
        said.append(
            f"The processors were full before the migration in {busy} of {len(rows)} runs: their latencies "
            "measure the machine."
        )
    if robbed:
        said.append(
            f"The host gave others at least {ROBBED:.0%} of the processors before the migration in {robbed} of "
            f"{len(rows)} runs: their latencies measure the host."
        )
    if overloaded:
        said.append(
            f"The job was overloaded in {overloaded} of {len(rows)} runs: their figures know nothing of the events "
            "that it had not processed."
        )
    return said


def verdict_sentences(rows: Sequence[Row]) -> list[str]:
    """Which runs are correct, and what is wrong with the others."""
    runs, group = len(rows), [point for some in points(rows).values() for point in some]
    correct = [point.label for point in group if not point.bad]
    said = [_wrong(point) for point in group if point.bad]
    if said and correct:
        said.append(f"{enumerated(correct)}: correct, nothing lost, duplicated, reordered or wrong.")
    if not said:
        how_many = {1: "The run is", 2: "Both runs are"}.get(runs, f"All {runs} runs are")
        said = [f"{how_many} correct: nothing lost, duplicated, reordered or wrong."]
    return said


def _about(group: list[Point]) -> list[str]:
    said = verdict_sentences([row for point in group for row in point.rows])
    correct = [point for point in group if not point.bad]
    if not correct:
        return said
    rows = [row for point in correct for row in point.rows]
    said += doubts(rows)
    if still := [_part(point, number) for point in correct if (number := sum(map(_is_still, point.rows)))]:
        said.append(
            f"Nothing moved in {enumerated(still)}: spike and silence would be of any moment, and are not compared."
        )
    hit = [replace(point, rows=some) for point in correct if (some := tuple(filter(is_hit, point.rows)))]
    if any(len(point.rows) > 1 for point in hit):
        said.append("Of points that were repeated, the figures are means over their runs.")
    said += _compare(
        hit,
        lambda row: ratio(row, "spike_ms", "p99_ms"),
        # What is compared are the multiples, so they come first: P99 before may differ.
        one="{best} kept the P99 spike at {low} its value before (a spike of {best_spike}).",
        several="{best} kept the P99 spike at {low} its value before (a spike of {best_spike}); {worst} reached {high} "
        "({worst_spike}): {times}.",
        same="The P99 spike is about the same everywhere, {high} its value before.",
        show=lambda value: f"{digits(value)} ×",
        much="much",
    )
    unknown = [point.label for point in hit if not point.values(lambda row: ratio(row, "spike_ms", "p99_ms"))]
    if unknown:
        said.append(f"P99 before and at its spike are not both known for {enumerated(unknown)}.")
    said += _compare(
        hit,
        lambda row: row.get("silence_ms"),
        one="The longest time without a result is {low} with {best}.",
        several="The longest time without a result is {low} with {best}, {high} with {worst}: {times}.",
        same="The longest time without a result is about the same everywhere, {low}.",
        show=_ms,
    )
    said += _compare(
        hit,
        lambda row: row.get("completion_s"),
        one="{best} completed in {low}{of_best}.",
        several="{best} completed first, in {low}{of_best}; {worst} took {high}: {times}.",
        same="All took about the same time to complete, {low}.",
        show=_s,
    )
    unfinished = [point.label for point in hit if point.lacks("completion_s", moves)]
    if unfinished:
        said.append(f"A completion time is missing for {enumerated(unfinished)}.")
    unrecovered = [point.label for point in hit if point.lacks("recover_s", is_hit)]
    if unrecovered:
        said.append(f"P99 was not seen back under its objective for good with {enumerated(unrecovered)}.")
    return said


def moves(row: Row) -> bool:
    """Whether state was to move in the run, and there was something to move."""
    return row["parameters"].get("trigger") != "none" and not _stood_still(row)


def _stood_still(row: Row) -> bool:
    """Whether a move was requested and no step begun, as all state was where it should be.

    An autoscaler, or a script, asks for a move or not: what its job does without one is compared.
    """
    return row["parameters"].get("trigger") not in ("none", "auto", "script") and row.get("steps") == 0


def is_hit(row: Row) -> bool:
    """Whether something was to happen in the run, from which it had to recover."""
    return moves(row) or bool(row["parameters"].get("fault"))


def _is_still(row: Row) -> bool:
    """Whether nothing happened in the run, though a move was requested."""
    return _stood_still(row) and not is_hit(row)


def _part(point: Point, number: int) -> str:
    """So many of the runs of a point, in words."""
    return point.label if number == len(point.rows) else f"{number} of {len(point.rows)} runs of {point.label}"


def _wrong(point: Point) -> str:
    bad = [row for row in point.rows if row["verdict"] != "ok"]
    counts = [(sum(row[kind] for row in bad), kind) for kind in ("lost", "duplicated", "reordered", "wrong")]
    what = ", ".join(f"{count} {kind}" for count, kind in counts if count) or "another check failed, see its manifest"
    of = f" in {len(bad)} of {len(point.rows)} runs" if len(point.rows) > 1 else ""
    return f"{point.label} is not correct{of} ({what}): it is left out of the comparison."


def _compare(
    group: list[Point],
    measure: Callable[[Row], float | None],
    *,
    one: str,
    several: str,
    same: str,
    show: Callable[[float], str],
    much: str = "long",
) -> list[str]:
    """The sentence for those of ``group`` that know the measure, if there are any."""
    known = sorted(
        ((point, mean) for point in group if (mean := point.mean(measure)) is not None), key=lambda pair: pair[1]
    )
    if not known:
        return []
    (best, low), (worst, high) = known[0], known[-1]
    text = one if len(known) == 1 else same if high <= TIE * low else several
    best_spike, worst_spike = (_ms(point.mean(lambda row: row.get("spike_ms")) or nan) for point in (best, worst))
    return [
        text.format(
            best=best.label,
            low=show(low),
            best_spike=best_spike,
            worst=worst.label,
            high=show(high),
            of_best=" (the change of owner only)" if owners_only(best.rows[0]) else "",
            worst_spike=worst_spike,
            times=_contrast(best, worst, measure, much),
        )
    ]


def _contrast(best: Point, worst: Point, measure: Callable[[Row], float | None], word: str) -> str:
    """How far apart two means are, or that the repetitions do not tell."""
    low, high = best.mean(measure), worst.mean(measure)
    assert low is not None and high is not None  # they are ranked
    if differ(best.values(measure), worst.values(measure)) is False:
        return "that may be chance (Welch, 95 %)"
    return f"{digits(high / low)} times as {word}" if low > 0 else "no multiple of nothing"


def _ms(value: float) -> str:
    return _s(value / 1e3) if value >= 1000 else f"{digits(value)} ms"


def _s(value: float) -> str:
    return f"{digits(value)} s" if value >= 1 else f"{digits(value * 1e3)} ms"
