"""Processes that speak in messages; with what they are for: tests/integration."""

import os
import sys

import pytest

from keyshift.model.errors import ServiceUnavailable
from keyshift.traffic.messages import Ready
from keyshift.traffic.process import JsonProcess
from waits import until

SAYS = """
from keyshift.traffic.messages import Ready
from keyshift.traffic.process import say
{first}
say(Ready())
input()
"""


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts a process that says this first, and then that it is ready."""
    begun = []

    def begin(heard, first="pass"):
        (tmp_path / "small_talk.py").write_text(SAYS.format(first=first))
        monkeypatch.syspath_prepend(tmp_path)
        begun.append(JsonProcess("small_talk", None, Ready, heard, {"PYTHONPATH": os.pathsep.join(sys.path)}))
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()


def test_a_line_that_is_no_report_is_told_to_who_looks_and_those_behind_it_are_heard(begin):
    heard = []
    process = begin(heard.append, "print('a debug line')")
    until(lambda: heard == [Ready()])
    with pytest.raises(ServiceUnavailable, match="the small_talk process said 'a debug line': "):
        process.check()


def test_what_fails_in_who_hears_a_report_is_told_to_who_looks(begin):
    def heard(report):
        raise KeyError("nobody knows this slot")

    process = begin(heard)

    def told():
        try:
            process.check()
        except ServiceUnavailable as error:
            return "nobody knows this slot" in str(error)

    until(told)
