from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from keyshift.checks import check_workload
from keyshift.model.errors import BadInput
from keyshift.model.frames import keys_of
from keyshift.model.keys import units_of
from keyshift.workloads import wordcount
from keyshift.workloads.wordcount import WordCount, word
from workload_runs import run, verdict

SAMPLE = Path(__file__).parents[3] / "data" / "moving.txt"
WINDOW_US = 20_000


def make(**changes) -> WordCount:
    return WordCount(**({"key_groups": 8, "words": 30, "skew": 0.5, "seed": 3, "window_ms": 20} | changes))


# -- texts -------------------------------------------------------------------------------------------------------------


def test_words_are_runs_of_letters_in_lower_case_in_their_order(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffTo keep, to MOVE;\n\n\u00dcber-all: to keep".encode())
    words, numbers = wordcount.read_words(str(file))
    assert [words[number] for number in numbers] == ["to", "keep", "to", "move", "über", "all", "to", "keep"]
    assert len(words) == 5


@pytest.mark.parametrize(
    "content, message",
    [
        (b"good\nfine \xff word\n", "line 2, byte 6 is 0xff, which is not UTF-8 there; convert the file"),
        (b"cut off: \xe2\x82", "line 1, byte 10 is 0xe2"),
        (b"\xef\xbb\xbfmark\xff", "line 1, byte 8 is 0xff"),
        (b" ... \n", "there is no word in it"),
        (b"", "there is no word in it"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_the_place(tmp_path, content, message):
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    for text, words in ((file, message), (tmp_path, r"cannot be read \(Is a directory\)")):
        with pytest.raises(BadInput, match=words):
            make(text=str(text)).sources[0].require()


def test_a_router_reads_the_whole_text_over_and_over_again():
    words, numbers = wordcount.read_words(str(SAMPLE))
    source = make(text=str(SAMPLE)).sources[0].partition(0)
    taken = source.take(np.zeros(2 * len(numbers), np.int64))["word"].to_pylist()
    assert Counter(taken) == Counter({w: 2 * n for w, n in Counter(words[i] for i in numbers).items()})
    assert taken[: len(numbers)] == taken[len(numbers) :]


def test_routers_share_what_their_words_are_taken_from(monkeypatch):
    made = []
    for name in ("read_words", "keys_of"):
        real = getattr(wordcount, name)
        monkeypatch.setattr(wordcount, name, lambda given, name=name, real=real: made.append(name) or real(given))
    for workload in (make(text=str(SAMPLE)), make()):
        [source] = workload.sources
        for router in range(3):
            source.partition(router)
    assert made == ["read_words", "keys_of"]


def test_other_numbers_have_other_words_whose_key_groups_are_drawn_in_proportion_to_zipf_weights():
    made = [word(number) for number in range(20_000)]
    assert len(set(made)) == 20_000
    assert all(w.isalpha() for w in made)
    workload = make(words=1000, skew=1.0)
    taken = workload.sources[0].partition(0).take(np.zeros(100_000, np.int64))
    groups = units_of(keys_of(taken["word"]).to_numpy(), 8)
    weights = 1 / np.arange(1, 9)
    assert np.bincount(groups, minlength=8) / 100_000 == pytest.approx(weights / weights.sum(), rel=0.05)


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_ms", [0, 20])
def test_it_keeps_the_contract_with_a_text_and_with_or_without_windows(window_ms):
    check_workload(make(text=str(SAMPLE), window_ms=window_ms))


def test_windows_that_have_closed_are_told_once_the_others_are_in_the_state_and_one_before_its_time_is_wrong():
    workload = make()
    made = run(workload, frames=9)
    assert verdict(workload, made).ok
    fired = made.results[made.results["position"] == -1]
    assert set(fired["t"]) == set(range(WINDOW_US, made.times.least + 1, WINDOW_US))
    left = {start for part in made.final for starts in part["starts"] for start in starts}
    assert left == {made.times.least // WINDOW_US * WINDOW_US}
    assert fired["count"].sum() == (made.events["t"] < max(fired["t"])).sum()
    part = next(part for part in made.final if len(part))
    entry = part.iloc[0]
    told = {"word": entry["words"][0], "start": entry["starts"][0], "count": entry["counts"][0]}
    early = fired.iloc[[0]].assign(key=entry["key"], **told)
    early["t"] = early["start"] + WINDOW_US
    final = [part.drop(index=part.index[0]) if each is part else each for each in made.final]
    found = verdict(workload, made, results=pd.concat([made.results, early]), final=final)
    assert any("not later than all routers had come" in line for line in found.examples)


def test_words_that_share_a_key_are_counted_apart(monkeypatch):
    def few(words):
        return pa.array(keys_of(words).to_numpy() % 3)

    monkeypatch.setattr(wordcount, "keys_of", few)
    for window_ms in (0, 20):
        workload = make(window_ms=window_ms)
        made = run(workload)
        assert verdict(workload, made).ok, verdict(workload, made).examples
        assert made.events["key"].nunique() == 3
        assert made.events["word"].nunique() > 20
        assert max(len(set(words)) for part in made.final for words in part["words"]) > 3


OTHERS = {"count": 10**6, "word": "nobody", "start": 7}
OF_WORDS = [("count", 0), ("kind", 1), *OTHERS.items()]
OF_WINDOWS = [("kind", 0), ("t", 3), ("key", 5), *OTHERS.items()]


@pytest.mark.parametrize(
    "window_ms, kind, column, value",
    [
        *((window_ms, wordcount.WORD, *change) for window_ms in (0, 20) for change in OF_WORDS),
        *((20, wordcount.WINDOW, *change) for change in OF_WINDOWS),
    ],
)
def test_another_result_of_a_word_or_of_a_window_is_wrong(window_ms, kind, column, value):
    workload = make(window_ms=window_ms)
    made = run(workload)
    made.results.loc[made.results.index[made.results["kind"] == kind][5], column] = value
    assert verdict(workload, made).wrong


def beyond_all_that_came(rows):
    return {rows.index[-1]: 10**6}


def that_two_have(rows):
    of_another = rows["router"] != rows["router"].shift(fill_value=rows["router"].iloc[0])
    row = rows.index[of_another][0]
    return {row: rows.at[row, "count"] - 1}


def out_of_order(rows):
    one = rows.index[rows["router"] == rows["router"].shift(-1)][0]
    other = rows.index[rows.index.get_loc(one) + 1]
    return {one: rows.at[other, "count"], other: rows.at[one, "count"]}


@pytest.mark.parametrize("counts", [beyond_all_that_came, that_two_have, out_of_order])
def test_a_count_that_nothing_but_its_neighbours_show_is_wrong(counts):
    workload = make(window_ms=0)
    made = run(workload, frames=20)
    word = made.results["word"].mode()[0]
    for row, count in counts(made.results[made.results["word"] == word].sort_values("count")).items():
        made.results.loc[row, "count"] = count
    assert verdict(workload, made).wrong == 1


@pytest.mark.parametrize(
    "column, other", [("unit", lambda unit: (unit + 1) % 8), ("counts", lambda counts: counts[1:].tolist())]
)
def test_a_key_in_another_unit_or_with_lists_that_do_not_fit_is_told(column, other):
    workload = make(window_ms=0)
    made = run(workload)
    part = next(part for part in made.final if len(part))
    part.at[part.index[0], column] = other(part[column].iloc[0])
    told = "final state of key {key} in unit {unit}, slot {slot}: expected".format_map(part.iloc[0])
    assert any(told in line for line in verdict(workload, made).examples)
