"""How much of an interruption the readers of results notice: silence, late results, and latency before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from keyshift.analysis.conclusions import digits, enumerated, tie
from keyshift.analysis.metrics import FAULT, arrivals_ms, need
from keyshift.analysis.tables import SPIKE, SummaryRow, correct
from keyshift.analysis.timelines import faults
from keyshift.model.errors import BadInput

SILENCE = "silence (s)"
BEFORE = ("P50 before (ms)", "P99 before (ms)")
AFTER = ("P50 after (ms)", "P99 after (ms)")
AGAIN = "normal again after (s)"
MEASURES = (SILENCE, SPIKE, *BEFORE, *AFTER, AGAIN)
LEAST_S = 1e-3  # of a silence; no result is closer to the next one than the clock tells
AROUND_S = 2.0  # a silence that is longer counts whole


def interruptions(rows: Sequence[SummaryRow], latencies: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """One row per strategy: runs, verdict, silence in s, spike in ms, P50 and P99 before and after in ms, and seconds
    until latency was normal again. Medians over the runs that are correct; NaN for what is not known, and if a run of
    them was not seen to be normal again. Silence and spike are not known if one left units where they were.

    ``rows``: of summaries, whatever their verdict. ``latencies``: of each strategy the latency tables of its correct
    runs, in the order of their rows. *After* is what was created behind the recovery; nothing, if it never came.
    Raises BadInput if rows and tables do not belong together.
    """
    found = []
    for name in dict.fromkeys(row["strategy"] for row in rows):
        mine = [row for row in rows if row["strategy"] == name]
        good = correct(mine)
        tables = latencies.get(name, [])
        if len(tables) != len(good):
            raise BadInput(f"interruptions: {name} has {len(good)} correct runs and {len(tables)} latency tables")
        each = [_one(row, table) for row, table in zip(good, tables, strict=True)]
        measured = pd.DataFrame(each, columns=list(MEASURES), dtype=float)
        medians = measured.median().to_dict()
        medians[AGAIN] = measured[AGAIN].median(skipna=False)
        if any(row.get("incomplete") for row in good):  # with the units that stayed it might have been worse
            medians |= dict.fromkeys((SILENCE, SPIKE), np.nan)
        verdict = "ok" if len(good) == len(mine) else f"bad ({len(mine) - len(good)} of {len(mine)})"
        found.append({"strategy": name, "runs": len(mine), "verdict": verdict, **medians})
    if not found:
        raise BadInput("interruptions: no run given")
    return pd.DataFrame(found, columns=["strategy", "runs", "verdict", *MEASURES]).set_index("strategy")


def _one(row: SummaryRow, latency: pd.DataFrame) -> tuple[float | None, ...]:
    """The ``MEASURES`` of a run."""
    need(latency, ["created_s", "latency_ms"], "interruptions")
    recovered = row.get("recover_s")
    behind = latency["latency_ms"][latency["created_s"] >= (np.inf if recovered is None else max(recovered, 1.0))]
    p50, p99 = np.percentile(behind, (50, 99)) if len(behind) else (np.nan, np.nan)
    silence_ms = row.get("silence_ms")
    silence_s = None if silence_ms is None else silence_ms / 1000
    return silence_s, row.get("spike_ms"), row.get("p50_ms"), row.get("p99_ms"), p50, p99, recovered


def fault_moments(metrics: pd.DataFrame) -> list[float]:
    """When something was made to fail, in seconds from the trigger, ascending. ``metrics``: the table of a run."""
    return [at_s for at_s, _ in faults(metrics, [FAULT])]


def silences_around(latency: pd.DataFrame, moments: Sequence[float]) -> pd.DataFrame:
    """The longest time between two results around each of ``moments`` (seconds from the trigger): a row for each, with
    the columns moment_s, before_s and silence_s.

    *Before* is of results that came in the ``AROUND_S`` before the moment: what such a stretch has anyway. The
    *silence* ends behind the moment, and begins at most ``AROUND_S`` behind it. NaN where no two results came.
    """
    need(latency, ["created_s", "latency_ms"], "silences_around")
    arrivals = arrivals_ms(latency) / 1e3
    begins, ends = arrivals[:-1], arrivals[1:]

    def longest(chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
        return float((ends - begins)[chosen].max()) if chosen.any() else np.nan

    rows = [
        {
            "moment_s": moment,
            "before_s": longest((begins >= moment - AROUND_S) & (ends <= moment)),
            "silence_s": longest((ends > moment) & (begins < moment + AROUND_S)),
        }
        for moment in moments
    ]
    return pd.DataFrame(rows, columns=["moment_s", "before_s", "silence_s"], dtype="float64")


def interruption_sentences(table: pd.DataFrame, of: str) -> list[str]:
    """The silence of strategy ``of`` against that of each other one all of whose runs are correct, in sentences.
    ``table``: of ``interruptions``. Who was not seen to recover can be silent for longer than another one, but neither
    for less nor for as long.
    """
    need(table, [SILENCE, AGAIN, "runs", "verdict"], "interruption_sentences")
    table = table[table["verdict"] == "ok"]
    silences = {str(name): float(silence) for name, silence in table[SILENCE].dropna().items()}
    if of not in silences:
        return [f"{of} is not compared: a run of it is not correct, or none says how long its results stop."]
    runs, unseen = table["runs"].to_dict(), set(table.index[table[AGAIN].isna()])
    least = {name: "at least " if name in unseen else "" for name in silences}
    mine = silences.pop(of)
    said = [f"{of}: no result for {least[of]}{digits(mine)} s{', the median of its runs' if runs[of] > 1 else ''}."]
    for name, silence in silences.items():
        low, high = sorted((max(silence, LEAST_S), max(mine, LEAST_S)))
        shorter, longer = (of, name) if silence > mine else (name, of)
        alike = high <= tie(runs[of], runs[name]) * low
        if shorter in unseen or (alike and longer in unseen):
            ended = enumerated(each for each in (name, of) if each in unseen)
            said.append(f"{name} and {of} are not compared: the load ended before the recovery of {ended} was seen.")
        elif alike:
            said.append(f"{name} is silent for about as long as {of}, {digits(silence)} s.")
        else:
            times = f"{least[longer]}{digits(high / low)} times"
            said.append(f"{longer} is silent {times} as long as {shorter}, {digits(silence)} s.")
    return said


def steady_sentences(table: pd.DataFrame, of: str) -> list[str]:
    """The latency of ``of`` before a migration, and that of others as a multiple; see ``interruption_sentences``.

    One that is not above 0, as of a clock of Kafka's log that is behind, says nothing, and has no multiple.
    """
    need(table, [*BEFORE, "verdict"], "steady_sentences")
    told = table.loc[table["verdict"] == "ok", list(BEFORE)]
    known = {str(name): (float(p50), float(p99)) for name, p50, p99 in told[(told > 0).all(axis=1)].itertuples()}
    if of not in known:
        return [f"{of} is not compared: a run of it is not correct, or none says what its latency is."]
    p50, p99 = known.pop(of)
    said = [f"{of}: P50 {digits(p50)} and P99 {digits(p99)} ms before the request."]
    for name, other in known.items():
        ratios = [digits(mine / theirs) for mine, theirs in zip(other, (p50, p99), strict=True)]
        said.append(f"{name} has {ratios[0]} times the P50 and {ratios[1]} times the P99 of {of}.")
    return said
