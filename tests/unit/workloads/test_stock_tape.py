"""Tapes: what a line means, which lines are refused, and how a tape is played and written."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from keyshift.checks import check_workload
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput
from keyshift.workloads.stock import Stock
from keyshift.workloads.stock.oracle import Exchange
from keyshift.workloads.stock.source import ROUTERS, Played, laps, resting
from keyshift.workloads.stock.tape import FORMS, ORDERS, read
from keyshift.workloads.stock.writing import waiting, write

SHORT = "7|A|20260105 09:30:00|10.25|100|400|600001|B"
DELETION = "7|D|||||600001|"


def full(**changes) -> str:
    given = {"order": "7", "code": "A", "date": "20260105", "time": "09:30:00", "price": "10.25", "executed": "100"}
    given |= {"volume": "400", "security": "600001", "account": "A1", "side": "B"} | changes
    columns = ["-"] * 23
    for name, column in FORMS["full"].columns.items():
        columns[column] = given[name]
    return "|".join(columns)


@pytest.fixture
def tape(tmp_path):
    def written(*lines: str) -> str:
        file = tmp_path / "a.tape"
        file.write_text("".join(f"{line}\n" for line in lines))
        return str(file)

    return written


# -- what lines mean ---------------------------------------------------------------------------------------------------


def test_the_columns_of_both_forms_are_where_they_are_published(tape):
    whole = [str(place) for place in range(23)]
    whole[:11] = ["9", "A", *whole[2:5], "20260105", "09:30:00", "7", "10.5", "11", "12"]
    whole[22] = "S"
    expected = {"order": 0, "deletes": False, "buys": False, "price": 105_000, "volume": 1}
    assert read(tape("|".join(whole))).orders.to_pylist() == [expected | {"security": "11", "account": "13"}]
    row = {"order": 0, "deletes": False, "buys": True, "price": 102_500, "volume": 300}
    assert read(tape(SHORT)).orders.to_pylist() == [row | {"security": "600001", "account": ""}]


def test_a_deletion_needs_no_price_and_what_the_exchange_did_is_dropped(tape):
    lines = [SHORT, "7|X|||5|5||", "8||nonsense|-|-|-|-|-", "end", DELETION, "end"]
    found = read(tape(*lines))
    assert (found.form, found.lines, found.slices, found.dropped, found.bad) == ("short", 6, 2, 2, 0)
    assert found.orders["deletes"].to_pylist() == [False, True]
    assert found.orders["order"].to_pylist() == [0, 0]
    assert found.seconds == 0.1
    Path(file := tape()).write_bytes(f"\ufeff{SHORT}\r\nend\r\n".encode())
    found = read(file)
    assert (found.bad, found.slices, found.orders.num_rows) == (0, 1, 1), (
        "without line ends and a mark at the beginning"
    )


BAD = {
    "date": ("2026-01-05", "has '2026-01-05' in column 5, date: expected a date as yyyyMMdd"),
    "time": ("0930", "has '0930' in column 6, time: expected a time as HH:mm:ss"),
    "price": ("10,25", "has '10,25' in column 8, price: expected a price above 0"),
    "executed": ("401", "has '401' in column 9, executed: expected a whole number, not more than the volume"),
    "volume": ("-1", "has '-1' in column 10, volume: expected a whole number"),
    "security": ("", "has '' in column 11, security: expected a text"),
    "account": ("", "has '' in column 13, account: expected a text"),
    "side": ("b", "has 'b' in column 22, side: expected B or S"),
    "order": ("", "has '' in column 0, order: expected a text"),
}


@pytest.mark.parametrize("column", BAD)
def test_a_bad_line_is_counted_and_shown_with_line_column_and_value(tape, column):
    value, words = BAD[column]
    found = read(tape(full(), full(**{column: value}), "end", full()))
    assert (found.bad, found.orders.num_rows) == (1, 2)
    assert str(found.examples[0]).startswith(f"line 2 {words}")


@pytest.mark.parametrize("price", ["0", "0.0000", "1.23456", "1e3", "nan", "-1", "1234567890"])
def test_what_is_no_price_is_refused_and_prices_are_exact(tape, price):
    assert read(tape(full(), full(price=price))).bad == 1
    exact = {"0.0001": 1, "999999999.9999": 9_999_999_999_999, "007": 70_000}
    assert read(tape(*(full(price=each) for each in exact))).orders["price"].to_pylist() == [*exact.values()]


def test_lines_of_another_width_are_bad_and_bad_lines_stop_everything_or_are_skipped_and_told(tape, capsys):
    found = read(tape("a|b", SHORT, full(), "end"))
    assert (found.form, found.bad) == ("short", 2)
    told = [str(line) for line in found.examples]
    assert told == ["line 1 has 2 columns, expected 8", "line 3 has 23 columns, expected 8"]
    file = tape(SHORT, SHORT.replace("B", "Q"), "nonsense", SHORT)
    with pytest.raises(BadInput, match=r"2 of 4 lines cannot be read; the first: line 2 has 'Q' in column 7, side"):
        make_spec({"workload": "stock", "tape": file})
    workload = make_spec({"workload": "stock", "tape": file, "on_bad_line": "skip"}).workload
    assert "tape a.tape: 2 of 4 lines cannot be read and are left out" in capsys.readouterr().err
    assert workload.read_tape.orders.num_rows == 2


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "no tape; .* there is no line with any"),
        (b"end\n", "no tape"),
        (b"once upon a time\n", "no tape; lines have 8 columns or 23 and more, .* the first line has 1"),
        (b"7|X|||5|5||\n", "there is no order in it"),
        (SHORT.replace("B", "Q").encode(), "there is no order in it; line 1 has 'Q' in column 7"),
        (SHORT.encode() + b"\n7|A|\xff\n", "line 2, byte 5 is 0xff, which is not UTF-8 there"),
    ],
)
def test_a_file_that_is_no_tape_is_refused(tmp_path, content, words):
    file = tmp_path / "a.tape"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        read(str(file))


def test_books_of_accounts_need_a_tape_with_accounts(tape):
    with pytest.raises(BadInput, match=r"keyed_by = account: .* has no account; set keyed_by=security"):
        make_spec({"workload": "stock", "tape": tape(SHORT), "keyed_by": "account"})
    assert make_spec({"workload": "stock", "tape": tape(full()), "keyed_by": "account"})


# -- how a tape is played ----------------------------------------------------------------------------------------------


def orders(*rows: tuple[int, bool]) -> pa.RecordBatch:
    """Numbers of orders, and whether they are deleted."""
    row = {"buys": True, "price": 1, "volume": 1, "security": "a", "account": "b"}
    return pa.RecordBatch.from_pylist([{"order": o, "deletes": d} | row for o, d in rows], schema=ORDERS)


def numbered(batch: pa.RecordBatch) -> list[tuple[int, bool]]:
    return list(zip(batch["order"].to_pylist(), batch["deletes"].to_pylist(), strict=True))


def test_at_its_end_the_exchange_closes_and_other_routers_begin_elsewhere_and_leave_no_order_either():
    lap = [(0, False), (1, False), (0, True), (2, False)]
    taken = Played(laps(orders(*lap), 1, 0)).take(np.arange(12))
    closed = [*lap, (1, True), (2, True)]
    assert numbered(taken) == [((n + first) * ROUTERS, d) for first in (0, 3) for n, d in closed]
    lap = orders(*[(n, False) for n in range(50)], *[(n, True) for n in range(25)])
    for router in range(1, 4):
        taken = numbered(next(laps(lap, 1, router)))
        assert {number % ROUTERS for number, _ in taken} == {router}
        assert len({number for number, _ in taken}) == 50
        last = dict(taken)  # by number, what was told last
        assert all(last.values())
    assert numbered(next(laps(lap, 1, 1))) != [(n + 1, d) for n, d in numbered(next(laps(lap, 1, 0)))]


@pytest.mark.parametrize("other", [{"security": "600002"}, {"account": "A2"}])
def test_at_its_end_orders_of_one_number_are_deleted_in_each_book(tape, other):
    lap = next(laps(read(tape(full(), full(**other), full(order="8"), full(order="8", code="D"))).orders, 1, 0))
    names = ("order", "deletes", "security", "account")
    first, second = ((0, True, *({"security": "600001", "account": "A1"} | more).values()) for more in ({}, other))
    assert [*zip(*(lap[name].to_pylist() for name in names), strict=True)][4:] == [first, second]


# -- orders that are drawn ---------------------------------------------------------------------------------------------


def taken(count, router=0, **changes):
    return Stock(**({"open_orders": 200, "seed": 3} | changes)).partition(router).take(np.arange(count)).to_pandas()


def test_securities_are_traded_as_zipf_has_it_and_in_bursts_one_has_half_of_the_orders():
    quiet = taken(100_000, burst_share=0.0, securities=10)
    shares = quiet.loc[~quiet["deletes"], "security"].value_counts(normalize=True).sort_index().to_numpy()
    weights = 1 / np.arange(1, 11)
    assert shares == pytest.approx(weights / weights.sum(), rel=0.05)
    burst = taken(100_000, burst_share=1.0, securities=10_000, security_skew=0)
    first = burst.loc[~burst["deletes"], "security"].to_numpy()[: 64 * 500].reshape(500, 64)
    most = np.array([max(Counter(stretch).values()) for stretch in first])
    assert most.mean() == pytest.approx(32, rel=0.05)


def test_every_order_is_deleted_once_later_on():
    events = taken(20_000)
    order, deletes = events["order"], events["deletes"]
    entered, deleted = order[~deletes], order[deletes]
    assert entered.is_unique and deleted.is_unique and set(deleted) <= set(entered)
    waiting = (~deletes).astype(int) - deletes.astype(int)
    assert waiting.cumsum().iloc[5000:].mean() == pytest.approx(200, rel=0.1)
    first = {number: place for place, number in reversed(list(enumerate(order)))}
    assert not any(deletes[first[number]] for number in first)


def test_routers_have_orders_of_their_own_around_the_same_prices():
    one, other = taken(5000, 0), taken(5000, 1)
    assert not set(one["order"]) & set(other["order"])
    hot = [events[(events["security"] == "600000") & ~events["deletes"]]["price"] for events in (one, other)]
    assert abs(hot[0].mean() - hot[1].mean()) < 200  # two cents


# -- tapes that are written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_tape_that_was_written_has_the_orders_that_were_drawn(tmp_path, form):
    workload = Stock(securities=20, open_orders=100, resting=0, seed=5)
    lines = list(write(workload, form, rate=2000, seconds=2))
    file = tmp_path / "a.tape"
    file.write_text("\n".join(lines))
    found = read(str(file))
    assert (found.form, found.bad, found.slices) == (form, 0, 40)
    assert found.orders.num_rows == pytest.approx(4000, rel=0.3)
    drawn = workload.partition(0).take(np.arange(10_000)).to_pandas()
    entered = found.orders.to_pandas()
    entered = entered[~entered["deletes"]].reset_index(drop=True)
    same = ["buys", "price", "volume", "security", *(["account"] if form == "full" else [])]
    expected = drawn[~drawn["deletes"]].reset_index(drop=True)[: len(entered)]
    assert entered[same].equals(expected[same])
    assert lines == list(write(workload, form, rate=2000, seconds=2))


def test_the_lines_of_a_tape_tell_what_was_executed():
    columns = FORMS["short"].columns
    lines = write(Stock(securities=5, open_orders=50, resting=0), "short", 2000, 2)
    executed, codes = Counter(), Counter()
    for row in (line.split("|") for line in lines if line != "end"):
        order, code, volume, now = (row[columns[name]] for name in ("order", "code", "volume", "executed"))
        codes[code] += 1
        assert int(now) > executed[order] if code == "X" else int(now) == executed[order]
        executed[order] = int(now)
        assert executed[order] <= int(volume) - (code == "D")
    assert min(codes[code] for code in "AXD") > 100
    assert codes["X"] % 2 == 0


def test_a_tape_begins_with_the_orders_that_rest_and_they_still_do_at_its_end(tmp_path):
    workload = Stock(securities=10, open_orders=50, resting=60, accounts=300, seed=5)
    file = tmp_path / "a.tape"
    file.write_text("\n".join(write(workload, "full", 2000, 0.5)))
    found = read(str(file))
    assert found.bad == 0 and found.slices > 10 + 600 / 2000 * 20 * 0.5
    first, columns = found.orders.slice(0, 600).to_pandas(), ["buys", "price", "volume", "security", "account"]
    assert first[columns].equals(resting(workload).to_pandas()[columns])
    assert first["account"].nunique() > 200 and not first["deletes"].any()
    assert waiting(found.orders.slice(0, 600)) == 600
    assert 500 < waiting(found.orders) < 750
    assert waiting(found.orders) == len(still_open(found.orders.to_pandas()))


def still_open(orders):
    """By the oracle's books, which are others."""
    books = {security: Exchange() for security in orders["security"].unique()}
    for row in orders.itertuples():
        books[row.security].tell(0, row.order, row.deletes, row.buys, row.price, row.volume)
    return [order for book in books.values() for buys in (True, False) for order in book.left(buys)]


@pytest.mark.parametrize("keyed_by", ["security", "account"])
def test_a_tape_keeps_the_contract(tmp_path, keyed_by):
    file = Path(tmp_path) / "a.tape"
    orders = Stock(securities=20, open_orders=30, accounts=40, resting=2)
    file.write_text("\n".join(write(orders, "full", 1000, 1)))
    check_workload(Stock(tape=str(file), keyed_by=keyed_by, key_groups=8))
