"""What a soak comes to: what grows, what went wrong, and the figure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bench.measurements import aligned
from bench.soak.growth import Growth, growth
from bench.soak.plan import Round
from bench.soak.watch import ROLES, Sample
from keyshift.analysis.plots.style import finish, heading, label_lowest, panel_grid
from keyshift.lab.live.status import Status

MEASURES = {"held_mib": "MiB", "threads": "threads", "fds": "open files"}
PROCESSES = "processes"
# Growth per hour that counts as none, beside what chance explains.
MEMORY_MIB, MEMORY_SHARE = 4.0, 0.02  # of a process, and of its median: the larger of the two
COUNTS = 1.0  # threads, files, processes
BINS = 240  # of the soak, at the least


@dataclass(frozen=True)
class Happened:
    """What became of a round: ``outcome`` of the request and of the fault in words; ``bad``: what must not be."""

    round: Round
    began_s: float
    outcome: str
    silence_ms: float | None
    notes: Sequence[str]
    bad: str = ""

    def line(self) -> str:
        """The round in a line for whoever watches."""
        silence = "silence unknown" if self.silence_ms is None else f"silence {self.silence_ms:.0f} ms"
        when = "in the midst" if self.round.in_the_midst else "between"
        to = f"{self.round.strategy} to {self.round.slots} slots, {self.round.fault} {when}"
        return f"{clock(self.began_s)}  {to}: {self.bad or self.outcome}, {silence}"


@dataclass(frozen=True)
class Grown:
    """The growth of one measure of a role; ``found`` is None if no process lived long enough to tell. ``late``: in the
    second half of each life; one step up is no growth.
    """

    role: str
    measure: str
    found: Growth | None
    late: Growth | None
    tolerance: float  # per hour

    @property
    def leaks(self) -> bool:
        """Whether it grows, and not by chance or a little."""
        both = [each for each in (self.found, self.late) if each is not None]
        return bool(both) and not any(each.flat(self.tolerance) for each in both)

    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        if self.found is None:
            return self.role, self.measure, "", "", "", "", "lives too short to tell"
        slope, low, high, median, points = self.found
        numbers = f"{median:.1f}", f"{slope:+.2f}", f"{low:+.2f} to {high:+.2f}", str(points)
        return self.role, self.measure, *numbers, "GROWS" if self.leaks else "flat"


def grown(samples: Sequence[Sample], warm_up_s: float) -> list[Grown]:
    """The growth of every role and measure. ``warm_up_s``: of each process, after its beginning; and of the whole."""
    if not samples:
        return []
    table = pd.DataFrame(samples, columns=Sample._fields)
    bin_s = max(10.0, float(table["t_s"].max()) / BINS)
    found = []
    for role in ROLES:
        some = table[table["role"] == role]
        for measure in MEASURES:
            lives = [one.set_index("age_s")[measure].dropna() for _, one in some.groupby("pid")]
            second_halves = [life.iloc[len(life) // 2 :] for life in lives]
            seen, late = (growth(each, warm_up_s, bin_s) for each in (lives, second_halves))
            tolerance = COUNTS
            if measure == "held_mib":
                tolerance = max(MEMORY_MIB, MEMORY_SHARE * seen.median if seen else 0.0)
            found.append(Grown(role, measure, seen, late, tolerance))
        if len(some):
            count = some.groupby("t_s").size().reindex(table["t_s"].unique(), fill_value=0).sort_index()
            found.append(Grown(role, PROCESSES, growth([count], warm_up_s, bin_s), None, COUNTS))
    return found


def growth_table(rows: Sequence[Grown]) -> str:
    """A table of growth for people."""
    heads = ("role", "measure", "median", "per hour", "95 %", "points", "")
    return aligned([heads, *(row.cells() for row in rows)], left=(0, 1, 6))


def summary(told: Status, happened: Sequence[Happened], rows: Sequence[Grown], more: Sequence[str]) -> dict[str, Any]:
    """The summary as JSON knows it, with its ``problems``, a line each; none: the soak is passed. ``told``: the job's
    last status, empty if it gave no verdict; ``more``: further problems.
    """
    came, manifest = told.get("summary"), told.get("manifest")
    problems = list[str]()
    if came is None or came.verdict != "ok":
        problems.append(f"the verdict is {came.verdict}" if came else "the job gave no verdict")
    problems += told.get("examples", [])
    problems += [f"{clock(each.began_s)} {each.round.fault}: {each.bad}" for each in happened if each.bad]
    for row in rows:
        if row.leaks and row.found:
            slope, low, high, *_ = row.found
            problems.append(f"{row.role}: {row.measure} grows by {slope:.2f} per hour (95 %: {low:.2f} to {high:.2f})")
    return {
        "problems": [*problems, *more],
        "verdict": came.verdict if came else None,
        "summary": came.model_dump(mode="json") if came else None,
        "notes": manifest.notes if manifest else [],
        "rounds": [asdict(each) | {"line": each.line()} for each in happened],
        "growth": [
            {"role": row.role, "measure": row.measure, "tolerance": row.tolerance, "leaks": row.leaks}
            | (row.found._asdict() if row.found else {})
            for row in rows
        ],
    }


def figure(samples: Sequence[Sample], happened: Sequence[Happened], rows: Sequence[Grown], title: str) -> Figure:
    """Memory and threads of each process over time: a row for each role; grey lines are faults."""
    table = pd.DataFrame(samples, columns=Sample._fields)
    table["minutes"] = table["t_s"] / 60
    roles = [role for role in ROLES if (table["role"] == role).any()]
    shown = ("held_mib", "threads", "fds")
    made, axes = panel_grid(len(roles) * len(shown), len(shown), (4.4, 1.7), sharex=True)
    known = {(row.role, row.measure): row for row in rows}
    for number, ax in enumerate(axes):
        role, measure = roles[number // len(shown)], shown[number % len(shown)]
        row, some = known.get((role, measure)), table[table["role"] == role]
        slope = f", {'GROWS by ' if row.leaks else ''}{row.found.slope:.1f} per hour" if row and row.found else ""
        heading(ax, f"{role}: {MEASURES[measure]}{slope}")
        for _, life in some.groupby("pid"):
            life = life.dropna(subset=[measure])
            ax.plot(life["minutes"], life[measure], linewidth=1, color="#0072B2", alpha=0.8)
        ax.set_ylim(0, 1.15 * float(some[measure].max()) + 1)
        for each in happened:
            ax.axvline((each.began_s + each.round.gap_s) / 60, color="#BBBBBB", linewidth=0.5, zorder=0)
    label_lowest(axes, len(shown), "minutes")
    return finish(made, title, [])


def clock(seconds: float) -> str:
    """A time as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
