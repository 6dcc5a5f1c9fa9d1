"""A job whose load changes: its slots, latency, backlog and missed seconds over time, and what that costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from keyshift.analysis.metrics import arrivals_ms, need, per_second
from keyshift.analysis.plots.style import finish, from_zero, heading, plain_log, theme

_GRID = 20  # points per second at which numbers of slots are averaged
_LINES = (("#0072B2", "-"), ("#777777", "--"), ("#D55E00", (0, (1, 1))), ("#009E73", "-."), ("#882255", (0, (4, 1))))
_PANELS = (
    "Load (events/s)",
    "Slots paid for",
    "P99 latency (ms)",
    "Backlog (events; 1: none)",
    "Seconds above the objective",
)


def scaling_timeline(
    latency: pd.DataFrame,
    scaling: pd.DataFrame,
    begin_s: float,
    end_s: float,
    slo_ms: float,
    offered: Sequence[tuple[float, float]] = (),
) -> pd.DataFrame:
    """A run from ``begin_s`` to ``end_s`` (relative to its trigger), by second of creation.

    ``latency`` and ``scaling`` are tables of the run. ``offered``: of a job that was overloaded to the end, since which
    second so many events per second were offered; without it, all that was offered has a result. Columns: second;
    offered_per_s; p50_ms, p99_ms (NaN without results); missed (P99 above ``slo_ms``, or events without a result);
    backlog (events due and not answered at the end of the second); slots that are paid for, averaged: during a
    migration those that come are and those that go still are.
    """
    need(scaling, ["t_s", "stage", "slots", "target", "migrating"], "scaling_timeline")
    seconds = per_second(latency).set_index("second")
    seconds = seconds.reindex(range(int(np.floor(begin_s)), int(np.ceil(end_s))))
    ends = seconds.index.to_numpy("float64") + 1
    created = np.sort(latency["created_s"].to_numpy())
    answered = arrivals_ms(latency) / 1e3
    backlog = np.searchsorted(created, ends) - np.searchsorted(answered, ends)
    results = seconds["count"].fillna(0).to_numpy()
    never = np.zeros(len(ends))  # events without a result
    if offered:
        behind = ends > (created[-1] if len(created) else -np.inf)
        never = np.where(behind, np.maximum(_due(offered, ends).round() - results, 0), 0)
    return pd.DataFrame(
        {
            "second": seconds.index,
            "offered_per_s": results + never,
            "p50_ms": seconds["p50_ms"].to_numpy(),
            "p99_ms": seconds["p99_ms"].to_numpy(),
            "missed": (seconds["p99_ms"] > slo_ms).to_numpy() | (never > 0),
            "backlog": backlog + never.cumsum().astype(int),
            "slots": _paid(scaling, ends - 1),
        }
    )


def _due(offered: Sequence[tuple[float, float]], ends: np.ndarray) -> np.ndarray:
    """Events that are due in the seconds that end at ``ends``."""
    begins, rates = np.array(offered).T
    before = np.append(0.0, np.cumsum(np.diff(begins) * rates[:-1]))  # of each stretch
    return np.diff(np.interp(np.append(ends[0] - 1, ends), begins, before))


def _paid(scaling: pd.DataFrame, begins: np.ndarray) -> np.ndarray:
    """Slots paid for, the mean of each second that begins at one of ``begins``. NaN if nobody has looked."""
    total = np.zeros(len(begins))
    for _, looks in scaling.sort_values("t_s").groupby("stage"):
        most = looks[["slots", "target"]].max(axis=1)
        until_over = (~looks["migrating"].astype(bool)).cumsum()  # a look, and those of its migration
        paid = most.groupby(until_over).cummax().to_numpy("float64")
        grid = (begins[:, None] + (np.arange(_GRID) + 0.5) / _GRID).ravel()
        place = np.searchsorted(looks["t_s"].to_numpy(), grid, side="right") - 1
        total += paid[np.maximum(place, 0)].reshape(len(begins), _GRID).mean(axis=1)
    return total if len(scaling) else np.full(len(begins), np.nan)


def scaling_costs(timelines: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Compute what each job has cost, and what its users got: a row per job, in the order given.

    ``timelines``: a job's name to its ``scaling_timeline``. Columns: job, slot-seconds, missed seconds, late events (%)
    (events of missed seconds), worst P99 (ms), largest backlog, most slots.
    """
    rows = []
    for name, seconds in timelines.items():
        events = seconds["offered_per_s"].sum()
        late = seconds.loc[seconds["missed"], "offered_per_s"].sum()
        rows.append(
            {
                "job": name,
                "slot-seconds": seconds["slots"].sum(),
                "missed seconds": int(seconds["missed"].sum()),
                "late events (%)": 100 * late / events if events else np.nan,
                "worst P99 (ms)": seconds["p99_ms"].max(),
                "largest backlog": int(seconds["backlog"].max()),
                "most slots": seconds["slots"].max(),
            }
        )
    return pd.DataFrame(rows)


def scaling_figure(
    timelines: Mapping[str, pd.DataFrame], slo_ms: float, title: str = "Slots follow the load"
) -> Figure:
    """Load, slots, P99, backlog and missed seconds of several jobs over the same time; see ``scaling_timeline``."""
    with theme():
        figure, axes = plt.subplots(
            5, 1, figsize=(8.5, 9.5), sharex=True, layout="constrained", height_ratios=(2, 2, 3, 2, 1)
        )
        load, slots, latency, backlog, missed = axes
        for number, (name, seconds) in enumerate(timelines.items()):
            colour, dashes = _LINES[number % len(_LINES)]
            middle = seconds["second"] + 0.5
            how: dict[str, Any] = {"color": colour, "linestyle": dashes, "drawstyle": "steps-mid", "linewidth": 1.8}
            if not number:
                load.fill_between(middle, seconds["offered_per_s"], step="mid", color="#444444", alpha=0.3, linewidth=0)
            slots.plot(middle, seconds["slots"], label=name, **how)
            latency.plot(middle, seconds["p99_ms"], **how)
            backlog.plot(middle, seconds["backlog"].clip(lower=1), **how)
            late = [(float(second), 1.0) for second in seconds.loc[seconds["missed"], "second"]]
            missed.broken_barh(late, (number - 0.35, 0.7), color=colour, linewidth=0)
        latency.axhline(slo_ms, color="black", linewidth=1, linestyle=":")
        latency.annotate(
            f"objective: {slo_ms:g} ms", (0.005, slo_ms), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", fontsize="small", va="bottom",
        )  # fmt: skip
        for ax in (latency, backlog):
            plain_log(ax, "y")
        for ax in (load, slots):
            from_zero(ax)
        missed.set_yticks(range(len(timelines)), list(timelines))
        missed.set_ylim(len(timelines) - 0.5, -0.5)
        missed.grid(visible=False, axis="y")
        for ax, text in zip(axes, _PANELS, strict=True):
            heading(ax, text)
        missed.set_xlabel("time since the autoscaler's first look (s)")
    return finish(figure, title, slots.lines)


def scaling_sentences(costs: pd.DataFrame) -> list[str]:
    """Say what ``scaling_costs`` shows about its first job, against each of the others."""
    need(costs, ["job", "slot-seconds", "missed seconds"], "scaling_sentences")
    first, *others = costs.to_dict("records")
    lines = [
        f"**{first['job']}** costs {first['slot-seconds']:.0f} slot-seconds and misses its objective in "
        f"{_seconds(first['missed seconds'])}."
    ]
    for other in others:
        share = round(first["slot-seconds"] / other["slot-seconds"] - 1, 2)
        price = (
            f"{abs(share):.0%} {'more' if share > 0 else 'fewer'} slot-seconds than"
            if share
            else "about as many slot-seconds as"
        )
        missed = first["missed seconds"] - other["missed seconds"]
        late = f"{_seconds(abs(missed))} {'more' if missed > 0 else 'fewer'} missed" if missed else "as many missed"
        lines.append(f"That is {price} **{other['job']}**, and {late} ({other['missed seconds']} there).")
    return lines


def _seconds(number: float) -> str:
    return f"{number:.0f} second{'' if number == 1 else 's'}"


def scaling_decisions(scaling: pd.DataFrame) -> pd.DataFrame:
    """The looks at which an autoscaler moved, with its numbers, and those at which a move was too dear."""
    need(scaling, ["t_s", "slots", "target", "reason", "stay_cost"], "scaling_decisions")
    compared = scaling[scaling["stay_cost"].notna() | (scaling["slots"] != scaling["target"])]
    columns: Sequence[str] = (
        "t_s", "slots", "target", "offered_per_s", "backlog", "true_per_s", "utilisation",
        "stay_cost", "move_cost", "migration_s", "reason",
    )  # fmt: skip
    return compared[list(columns)].reset_index(drop=True)
