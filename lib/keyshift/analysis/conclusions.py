"""Comparisons of runs in words, computed from summary rows (``results.manifest.Summary``, as dicts)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import takewhile
from math import isfinite, nan

import pandas as pd

from keyshift.analysis.machine import doubts
from keyshift.analysis.metrics import HOLD_S
from keyshift.analysis.statistics import differ
from keyshift.analysis.tables import (
    TIE,
    Point,
    SummaryRow,
    copied_before,
    is_hit,
    on_front,
    owners_only,
    points,
    ratio,
    shared,
    tradeoffs,
    why_early,
)

ONCE = 2.0  # as TIE, of single runs: ten equal ones had spikes of 36 to 73 ms (docs/performance.md)
FRAMES = 2  # silences of up to so many frames are there at any time


def tie(*runs: int) -> float:
    """The factor up to which figures are called equal, each of which is of so many runs."""
    return TIE if min(runs) > 1 else ONCE


def sentences(summaries: Sequence[SummaryRow]) -> list[str]:
    """What the runs show, in sentences computed from them: verdicts first, then spike, silence, completion, recovery.

    Points with a bad verdict are reported and left out of the comparisons: speed does not make up for wrong results.
    Points within 10 % are called the same, or within a factor of 2 if one of them ran once, and all that are the same
    as the best are named with it; where both were repeated, what may be chance (Welch, 95 %) is called so. Who was not
    seen to recover, or has units that did not come, is the best in neither spike nor silence.
    """
    grouped = points(summaries)
    if not grouped:
        return ["There is no run to compare."]
    result = []
    for workload, group in grouped.items():
        prefix = f"{workload}: " if len(grouped) > 1 else ""
        result += [prefix + sentence for sentence in _about(group)]
    return result


def tradeoff_sentences(summaries: Sequence[SummaryRow]) -> list[str]:
    """What ``tradeoffs`` shows, in sentences: whom nobody beats, what lies how far above the floor, what stays.

    As in ``plots.strategies.pareto``, nobody beats another one whose floor differs.
    """
    frame = tradeoffs(summaries)
    known = frame.dropna(subset=["spike_ms", "completion_s"]).sort_values("completion_s")
    if known.empty:
        return ["No strategy has both a spike and a completion to compare."]
    equal = tie(*known["runs"])
    if shared(known["floor_s"]):
        said = [*_unbeaten(known, equal), *_fastest(known, equal)]
    else:
        said = [
            "Their floors differ, by the state that moves or by when that was measured: they are not compared in spike "
            "and completion."
        ]
    if len(staying := known.loc[known["stays"], "label"]):
        said.append(
            f"{enumerated(staying)}: completion is the change of owner only; state follows later, or stays where it "
            "was."
        )
    if len(copied := known.loc[known["copied"] & ~known["stays"], "label"]):
        said.append(
            f"{enumerated(copied)}: copies were made before; completion is of what had no copy where it went, or had "
            "changed since."
        )
    return said


def _unbeaten(known: pd.DataFrame, equal: float) -> list[str]:
    """Whom nobody beats in both spike and completion, and who is not compared. ``equal``: a factor."""
    seen = known[known["recovered"]]
    unbeaten = on_front(seen[["spike_ms", "completion_s"]], equal)
    front, others = (seen[chosen] for chosen in (unbeaten, ~unbeaten))
    said = []
    if len(others):
        said.append(
            f"{enumerated(front['label'])}: no other strategy is better in both spike and completion. "
            f"{enumerated(others['label'])}: there is one that is about as good in both, or better."
        )
    elif len(front) > 1:
        said.append(f"{enumerated(front['label'])}: {_traded(front, equal)}.")
    if len(unseen := known.loc[~known["recovered"], "label"]):
        said.append(
            f"{enumerated(unseen)}: not compared in both, as the load ended before all runs were seen to recover."
        )
    return said


def _fastest(known: pd.DataFrame, equal: float) -> list[str]:
    """Who completes first of those that move everything behind the request, and how far above the floor."""
    whole = known[~(known["stays"] | known["copied"])].dropna(subset="floor_s")
    if whole.empty:
        return []
    fastest = whole[whole["completion_s"] <= equal * whole["completion_s"].min()]
    many, took = len(fastest) > 1, _span(_s, fastest["completion_s"].min(), fastest["completion_s"].max())
    if fastest["runs"].max() > 1:
        took += " (medians of their runs)" if many else " (the median of its runs)"
    names = enumerated(fastest["label"])
    if len(whole) == 1:
        found = f"{names} moves everything, in {took}"
    else:
        found = f"Of what moves everything {names} {'complete' if many else 'completes'} first, in {took}"
    return [f"{found}; the floor, a bare copy of the same bytes, is {_s(fastest['floor_s'].iloc[0])}."]


def _traded(front: pd.DataFrame, equal: float) -> str:
    """How those that nobody beats, by completion, are to each other. ``equal``: a factor."""
    costs = front[["spike_ms", "completion_s"]].to_numpy("float64")
    if (costs.max(axis=0) <= equal * costs.min(axis=0)).all():
        return "about the same in both spike and completion"
    if (costs[1:, 1] <= equal * costs[:-1, 1]).any():
        return "none is better than another in both spike and completion"
    return "each pays for a lower spike with a later completion"


def rescaling_sentences(
    tables: Mapping[str, pd.DataFrame], names: Sequence[str], rows: Sequence[SummaryRow] = ()
) -> list[str]:
    """Who was done first with each migration, and who had the lowest spike; with them all whose difference may be
    chance (Welch, 95 %). A point of which a run does not know a completion or a spike is not compared, nor is the spike
    of the last migration if a run was not seen to recover from it.

    ``tables`` and ``names``: see ``rescaling_figure``; of points all of whose runs are correct. ``rows``: summary rows
    of the runs, named by their points: whether only owners change, whether copies were made before, and whether the
    runs were seen to recover.
    """
    of = {name: [row for row in rows if row["strategy"] == name] for name in tables}
    said = []
    for number, migration in enumerate(names):
        runs = {
            name: table.loc[table["number"] == number, ["completion_s", "spike_ms"]] for name, table in tables.items()
        }
        known = {name: costs for name, costs in runs.items() if len(costs) and not costs.isna().to_numpy().any()}
        # The spike of a migration is looked for until the next request, that of the last one until the load ends.
        last = number == len(names) - 1
        unseen = [name for name in known if last and not Point(name, {}, tuple(of[name])).recovered]
        for column, show, verbs, best in (
            ("completion_s", _s, ("was done", "were done"), " first, in"),
            ("spike_ms", _ms, ("had", "had"), " the lowest spike,"),
        ):
            left_out = unseen if column == "spike_ms" else []
            values = {name: costs[column].tolist() for name, costs in known.items() if name not in left_out}
            if len(values) > 1:
                first = _least(values)
                text = f"{enumerated(first)} {verbs[len(first) > 1]}{best}"
                said.append(f"{migration}: {text} {_span(show, min(first.values()), max(first.values()))}.")
        if unseen:
            ended = "as the load ended before all runs were seen to recover"
            said.append(f"{migration}: {enumerated(unseen)}: not compared in spike, {ended}.")
        if unknown := [name for name in runs if name not in known]:
            said.append(f"{migration}: {enumerated(unknown)}: not compared, as a completion or a spike is not known.")
    for what, words in (
        (lambda some: any(map(owners_only, some)), "completion is the change of owner only"),
        (copied_before, "copies were made before some of these migrations"),
    ):
        if names_of := [name for name, some in of.items() if what(some)]:
            said.append(f"{enumerated(names_of)}: {words}.")
    return said


def _least(values: Mapping[str, list[float]]) -> dict[str, float]:
    """The means of those with the least, and of all who may be as good."""
    means = {name: sum(of_runs) / len(of_runs) for name, of_runs in values.items()}
    best = min(means, key=means.__getitem__)
    most = means[best] * tie(*map(len, values.values()))
    return {name: mean for name, mean in means.items() if mean <= most or differ(values[best], values[name]) is False}


def enumerated(some: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; ``a; b, with c`` if a name has a comma itself. There must be one."""
    names = list(some)
    if any("," in name for name in names):
        return "; ".join(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def digits(value: float) -> str:
    """Two significant digits, without an exponent."""
    if value < 1:
        return f"{Decimal(f'{value:.2g}'):f}"
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


def verdict_sentences(rows: Sequence[SummaryRow]) -> list[str]:
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
    elif len(hit) > 1:
        said.append(
            f"Each point ran once: what is within a factor of {ONCE:g} is called the same, as equal runs differ by as "
            "much."
        )
    open_ended = [point.label for point in hit if not point.recovered]
    cut = [point.label for point in hit if point.incomplete]
    unseen = {*open_ended, *cut}
    unfinished = [point.label for point in hit if point.lacks("completion (s)")]
    said += _compare(
        hit,
        _multiple,
        # What is compared are the multiples, so they come first: P99 before may differ.
        one="{best} kept the P99 spike at {low} its value before (a spike of {best_spike}).",
        several="{best} kept the P99 spike at {low} its value before (a spike of {best_spike}); {worst} reached {high} "
        "({worst_spike}): {times}.",
        same="The P99 spike is about the same everywhere, {high} its value before at the most.",
        show=_times,
        much="much",
        unseen=unseen,
    )
    unknown = [point.label for point in hit if not point.values(_multiple)]
    if unknown:
        said.append(f"P99 before and at its spike are not both known for {enumerated(unknown)}.")
    frames = (row["parameters"].get("frame_ms") for point in hit for row in point.rows)
    said += _compare(
        hit,
        lambda row: row.get("silence_ms"),
        one="The longest time without a result is {low} with {best}.",
        several="The longest time without a result is {low} with {best}, {high} with {worst}: {times}.",
        same="The longest time without a result is about the same everywhere, {span}.",
        show=partial(_span, _ms),
        least=FRAMES * max((ms for ms in frames if isinstance(ms, int | float)), default=0.0),
        unseen=unseen,
    )
    said += _compare(
        [point for point in hit if point.label not in unfinished],
        lambda row: row.get("completion_s"),
        one="{best} completed in {low}{of_best}.",
        several="{best} completed first, in {low}{of_best}; {worst} took {high}{of_worst}: {times}.",
        same="All took about the same time to complete, {span}{of_all}.",
        show=partial(_span, _s),
    )
    if unfinished:
        said.append(f"A completion time is missing for {enumerated(unfinished)}.")
    if open_ended:
        said.append(
            f"The load ended before {HOLD_S} seconds in a row under the objective were seen behind the migration, or "
            f"the last fault, with {enumerated(open_ended)}: spike and silence may be larger than what is known."
        )
    if cut:
        said.append(
            f"Not all units came where they should with {enumerated(cut)}: spike and silence are of the others."
        )
    return said


def _multiple(row: SummaryRow) -> float | None:
    """The spike as a multiple of P99 before. One below it is not so many times better: there was no spike."""
    found = ratio(row, "spike_ms", "p99_ms")
    return None if found is None or not isfinite(found) else max(1.0, found)


def _is_still(row: SummaryRow) -> bool:
    """Whether nothing happened in the run, though a move was requested."""
    return row["parameters"].get("trigger") != "none" and not is_hit(row)


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
    measure: Callable[[SummaryRow], float | None],
    *,
    one: str,
    several: str,
    same: str,
    show: Callable[[float, float], str],
    much: str = "long",
    least: float = 0.0,
    unseen: Collection[str] = (),
) -> list[str]:
    """The sentence for those of ``group`` that know the measure, if there are any.

    ``show``: two values in words, the lower one first. ``least``: what is not above it is the same. ``unseen``: labels
    of points of which nobody knows how much more it would have been: they can be worse than the best one, but neither
    that nor the same.
    """
    known = sorted(
        ((point, mean) for point in group if (mean := point.mean(measure)) is not None), key=lambda pair: pair[1]
    )
    seen = [pair for pair in known if pair[0].label not in unseen]
    if not seen:
        return []
    best, low = seen[0]

    def alike(pair: tuple[Point, float]) -> bool:
        point, mean = pair
        return mean <= tie(*(len(each.values(measure)) for each in (best, point))) * max(low, least)

    known = [pair for pair in known if pair[0].label not in unseen or not alike(pair)]
    first, apart = [*takewhile(alike, known)], [pair for pair in known if not alike(pair)]
    worst, high = (apart or known)[-1]
    text = one if len(known) == 1 else several if apart else same
    at_least = "at least " if worst.label in unseen else ""
    spikes_ms = [point.mean(lambda row: row.get("spike_ms")) or nan for point, _ in first]
    return [
        text.format(
            best=enumerated(point.label for point, _ in first),
            low=show(low, first[-1][1]),
            best_spike=_span(_ms, min(spikes_ms), max(spikes_ms)),
            worst=worst.label,
            high=at_least + show(high, high),
            span=show(low, high),
            of_best=_early([point for point, _ in first]),
            of_worst=_early([worst]),
            of_all=_early([point for point, _ in known]),
            worst_spike=_ms(worst.mean(lambda row: row.get("spike_ms")) or nan),
            times=_contrast(best, worst, measure, much, at_least),
        )
    ]


def _early(group: Sequence[Point]) -> str:
    """What ``why_early`` says, in brackets, of which points if not of all; nothing if of none."""
    early: dict[str, list[str]] = {}
    for point in group:
        early.setdefault(why_early(point.rows), []).append(point.label)
    said = [why if len(early) == 1 else f"{enumerated(names)}: {why}" for why, names in early.items() if why]
    return f" ({'; '.join(said)})" if said else ""


def _contrast(
    best: Point, worst: Point, measure: Callable[[SummaryRow], float | None], word: str, at_least: str
) -> str:
    """How far apart two means are, or that the repetitions do not tell. ``at_least``: words before a multiple."""
    low, high = best.mean(measure), worst.mean(measure)
    assert low is not None and high is not None  # they are ranked
    if differ(best.values(measure), worst.values(measure)) is False:
        return "that may be chance (Welch, 95 %)"
    return f"{at_least}{digits(high / low)} times as {word}" if low > 0 else "no multiple of nothing"


def _times(low: float, high: float) -> str:
    """Multiples of what was before; up to 1 they are none."""
    if low > 1:
        return _span(lambda value: f"{digits(value)} ×", low, high)
    return f"no more than {digits(high)} ×" if high > 1 else "no more than"


def _span(show: Callable[[float], str], low: float, high: float) -> str:
    """Both numbers, or one if they look alike."""
    return " to ".join(dict.fromkeys((show(low), show(high))))


def _ms(value: float) -> str:
    return _s(value / 1e3) if value >= 1000 else f"{digits(value)} ms"


def _s(value: float) -> str:
    return f"{digits(value)} s" if value >= 1 else f"{digits(value * 1e3)} ms"
