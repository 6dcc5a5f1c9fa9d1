"""What is kept of every second: little, and it reads like what was told."""

from small_room import room_of

from keyshift.model.records import Second
from keyshift.traffic.seconds import Seconds

TOLD = [Second(1_764_000_000 + number, number, number / 2 or None, float(number)) for number in range(1000)]


def test_it_reads_like_a_list_of_what_was_told():
    seconds = Seconds()
    assert len(seconds) == 0 and not seconds
    for report in TOLD:
        seconds.append(report)
    assert list(seconds) == TOLD and seconds[-1] == TOLD[-1] and seconds[990:] == TOLD[990:]
    assert list(reversed(seconds)) == TOLD[::-1]
    assert {type(value) for value in seconds[0]} == {int, float, type(None)}
    assert room_of(seconds) < 40 * len(TOLD), "bytes: eight for each of four numbers, and some ahead"
