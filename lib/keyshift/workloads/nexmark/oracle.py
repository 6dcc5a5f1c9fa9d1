"""What must come out of ``nexmark``, told by SQL over the events (``sql``). Not by the operators' code.

No event is late, so what a query gives is determined by the input. The watermarks say only what of it was due by the
end, and the timers in the final state say where that ends: for a key and a time of which there is a timer, all is still
in the state, otherwise its rows have come.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from keyshift.state.timers import EVENT
from keyshift.workloads.contract import ORIGIN_NAMES
from keyshift.workloads.nexmark.operators import ROW, taken
from keyshift.workloads.nexmark.sql import AT_ONCE, ENTRIES, LAST, OF_SESSIONS, ROWS
from keyshift.workloads.tables import RESULT, Tables, lengths, lines, misplaced
from keyshift.workloads.times import Times

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

# Of queries with a second stage, behind one that is keyed by auction.
_KEYED_BY = {"q4": "category", "q5": "start", "q6": "seller", "q7": "start"}


def wrong(
    workload: "Nexmark",
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterator[pd.DataFrame],
    times: Times | None = None,
) -> Iterator[str]:
    """See ``Workload.wrong``. One line for each event that is answered otherwise, row, entry, and timer."""
    if workload.query not in ROWS:
        yield from _wrong_maps(workload, events, results)
        yield from (f"there are {len(part)} keys in the final state of a query without state" for part in final)
        return
    assert times is not None  # all others use time
    first, *others = workload.stages
    fields = [field.name for field in workload.stages[-1].result_fields]
    of_event = results["position"] >= 0
    blanks = dict(zip(fields, taken(workload.stages[-1].result_fields[1:]), strict=True))
    odd = np.any([(results[name] != value).to_numpy() for name, value in blanks.items()], axis=0)
    text = RESULT + " tells more than that the event was taken in"
    at_once = of_event & (results["kind"] == ROW) & (workload.query in AT_ONCE)
    yield from lines(results, of_event & odd & ~at_once, text)
    if others:  # elsewhere the results of events are known to have their keys
        both = results.loc[of_event, [*ORIGIN_NAMES, "key"]].merge(
            events[[*ORIGIN_NAMES, "key"]], on=ORIGIN_NAMES, suffixes=("", "_offered")
        )
        yield from lines(both, both["key"] != both["key_offered"], RESULT + ": key {key}, expected {key_offered}")
    fired = results[~of_event]
    yield from lines(fired, fired["kind"] != ROW, "timer of key {key} set to {t}: kind {kind}, expected " + str(ROW))

    states: list[list[pd.DataFrame]] = [[], []]
    for part in final:
        yield from misplaced(workload, part)
        for number in range(2):
            states[number].append(part[part["stage"] == number])
    entries = yield from _entries(states[0], first.operator().state_schema.names)

    parameters = {"window": workload.window_us, "slide": workload.slide_us, "gap": workload.gap_us}
    ask = Tables({**parameters, "delay": workload.delay_us, "most": workload.session_bids}, events=events)
    rows = ask(ROWS[workload.query])
    kept = ask(ENTRIES[workload.query]) if workload.query in ENTRIES else rows.rename(columns={"t": "due"})
    timers = times.timers_of(EVENT)[["unit", "key", "time"]]
    homes = workload.units_of(timers["key"])
    yield from lines(timers, timers["unit"] != homes, "timer of key {key} set to {time} is in unit {unit}")
    waiting = pd.MultiIndex.from_frame(timers[["key", "time"]])

    def waits(table: pd.DataFrame, time: str) -> Any:
        return pd.MultiIndex.from_frame(table[["key", time]]).isin(waiting)

    due = kept[kept["due"] > 0]
    text = "key {key} has no timer set to {due}, and no router had come so far"
    yield from lines(due, ~waits(due, "due") & (due["due"] > times.least).to_numpy(), text)
    known = pd.MultiIndex.from_frame(due[["key", "due"]])
    text = "final state of key {key}: a timer is set to {time}, and nothing is due then"
    yield from lines(timers, ~waiting.isin(known), text)

    waiting_still, behind = waits(kept, "due"), kept.get("behind", np.zeros(len(kept), bool))
    stays = kept[~behind & ((kept["due"] == 0) | waiting_still)]
    came = kept[behind & ~waiting_still].assign(due=0)
    yield from _unlike("final state", pd.concat([stays, came]).drop(columns="behind", errors="ignore"), entries)
    if workload.query in AT_ONCE:
        yield from _wrong_at_once(workload.query, ask, results[at_once])
    told = rows[~waits(rows, "t")]
    if others:
        fired = fired.rename(columns={"key": _KEYED_BY[workload.query], "auction": "key"})
    yield from _unlike("rows told", told, fired)
    if others:
        yield from _wrong_last(workload.query, ask, told, fired, states[1])


def _wrong_maps(workload: "Nexmark", events: pd.DataFrame, results: pd.DataFrame) -> Iterator[str]:
    """A query without state gives for an event what the event has. Which events have a result is judged elsewhere."""
    fields = [field.name for field in workload.stages[-1].result_fields]
    both = results[[*ORIGIN_NAMES, *fields]].merge(events, on=ORIGIN_NAMES, suffixes=("_told", ""))
    odd = np.any([(both[f"{name}_told"] != both[name]).to_numpy() for name in fields], axis=0)
    text = RESULT + ": " + ", ".join(f"{name} {{{name}_told}}, expected {{{name}}}" for name in fields)
    yield from lines(both, odd, text)


def _entries(parts: list[pd.DataFrame], fields: list[str]) -> Generator[str, None, pd.DataFrame]:
    """One line for each key of the first stage whose lists give no entries, and for each entry that lacks a value.

    Returns the final state of the others, a row for each entry: columns key and ``fields``.
    """
    kept = _together(parts, ["key", *fields])
    sizes = lengths(kept, fields)
    good = (sizes == sizes[0]).all(axis=0) & (sizes[0] > 0)
    yield from lines(kept, ~good, "final state of key {key}: lists of other lengths, or none")
    entries = kept[good].explode(fields, ignore_index=True)
    lacks = entries[fields].isna().to_numpy().any(axis=1)
    yield from lines(entries, lacks, "final state of key {key}: an entry lacks a value")
    texts = {"name", "city", "state"}
    return entries[~lacks].astype({name: np.int64 for name in ["key", *fields] if name not in texts})


def _together(parts: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """Parts of a state, of which there may be none: then it has no rows."""
    return pd.concat([*(part for part in parts if len(part)), pd.DataFrame(columns=columns)])[columns]


def _unlike(what: str, expected: pd.DataFrame, found: pd.DataFrame) -> Iterator[str]:
    """One line for each row that is expected more often, or less often, than it is found."""
    names = list(expected.columns)
    counts = [table[names].value_counts(dropna=False) for table in (expected, found)]
    both = pd.concat(counts, axis=1, keys=["expected", "times"]).fillna(0).astype(int).reset_index()
    text = f"{what}: " + ", ".join(f"{name} {{{name}}}" for name in names) + ": {times} times, expected {expected}"
    yield from lines(both, both["expected"] != both["times"], text)


def _wrong_at_once(query: str, ask: Tables, fired: pd.DataFrame) -> Iterator[str]:
    """Rows that are results of events. Which events those are, and how far sessions had come, depends on the order."""
    known = ask(OF_SESSIONS[query], fired=fired)
    strange = known["of_start"].isna()
    text = RESULT + ": key {key} is told with {count} from {start} to {last}, which cannot be"
    yield from lines(known, strange, text)
    found = known[~strange].drop(columns=["start", "last"]).rename(columns={"of_start": "start", "of_last": "last"})
    yield from _unlike("rows told at once", ask(AT_ONCE[query]), found.astype({"start": np.int64, "last": np.int64}))


def _wrong_last(
    query: str, ask: Tables, told: pd.DataFrame, fired: pd.DataFrame, state: list[pd.DataFrame]
) -> Iterator[str]:
    """The state of the last stage, and what each row tells of it; rows may have come in any order."""
    expected, by = ask(LAST[query], rows=told), _KEYED_BY[query]
    tables = [expected.copy(), _together(state, list(expected.columns))]
    for name in [name for name in expected if expected[name].dtype == object]:
        for table in tables:
            # Lists cannot be counted. None at all counts as an empty one, which nothing expects.
            table[name] = table[name].map(lambda value: () if value is None else tuple(value))
    yield from _unlike("final state of the last stage", *tables)
    text = f"{by} {{{by}}}, auction {{key}}, price or count {{value}}: "
    if query in ("q5", "q7"):
        both = fired.assign(value=fired["count" if query == "q5" else "price"])
        most = both.groupby(by)["value"].transform("max")
        known: Any = pd.MultiIndex.from_frame(both[[by, "best"]]).isin(pd.MultiIndex.from_frame(both[[by, "value"]]))
        odd = ~both["best"].between(both["value"], most) | ~known
        yield from lines(both, odd, text + "is told with the best {best}, which cannot be")
    else:
        so_far = "count" if query == "q4" else "seq"  # rows of the key: the order in which they came
        both = fired.assign(value=fired["price"]).sort_values([by, so_far])
        text += "is told with total {total} of {count}, which cannot be"
        sold = both.groupby(by)
        odd = both[so_far] != sold.cumcount() + 1
        if query == "q4":
            odd |= both["total"] != sold["price"].cumsum()
        else:
            totals = [total for _, sales in sold for total in _totals(sales)]
            odd |= (both["total"] != totals) | (both["count"] != both["seq"].clip(upper=10))
        yield from lines(both, odd, text)


def _totals(sales: pd.DataFrame) -> Iterator[int]:
    """Behind each of a seller's sales, the sum of the ten of them so far that closed last."""
    last: list[tuple[int, int, int]] = []
    for sale in zip(sales["expires"], sales["key"], sales["price"], strict=True):
        last = sorted([*last, sale])[-10:]
        yield sum(price for *_, price in last)
