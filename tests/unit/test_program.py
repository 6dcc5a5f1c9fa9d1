"""A program of ours ends with one line and an exit status."""

import contextlib
import errno
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.program import INTERRUPTS, GoesOn, ending_with_us, interrupts_wait, run_program
from keyshift.progress import tell
from keyshift.waiting import wait_until


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    signal.signal(signal.SIGHUP, lambda *_: None)  # these tests may run under nohup
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(app: Callable[[], object]) -> object:
    with pytest.raises(SystemExit) as left:
        run_program(app, "the-program")
    return left.value.code


@pytest.mark.parametrize(("error", "status"), [(BadInput, 2), (ServiceUnavailable, 3), (KeyshiftError, 3)])
def test_an_error_of_ours_is_one_line_and_its_status(capsys, error, status):
    def app() -> None:
        raise error("rate = 0: must be more")

    assert ended(app) == status
    assert capsys.readouterr().err == "the-program: rate = 0: must be more\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_of_the_program_itself_is_kept(capsys, status):
    assert ended(lambda: sys.exit(status)) == status
    assert ended(lambda: None) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("by_typer", [True, False])
@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_program_that_is_interrupted_tidies_up_and_says_so(capsys, number, by_typer):
    tidied = []

    def app() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            tidied.append(1)
            if by_typer:
                sys.exit(1)
            raise

    assert ended(app) == 130
    assert tidied == [1]
    assert capsys.readouterr().err == "the-program: interrupted; what it had started is stopped\n"


@pytest.mark.parametrize("number", INTERRUPTS)
def test_a_program_that_only_waited_for_what_goes_on_does_not_say_that_it_is_stopped(capsys, number):
    def app() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise GoesOn("the job goes on") from None

    assert ended(app) == 130
    assert capsys.readouterr().err == "the-program: interrupted; the job goes on\n"


def test_a_program_under_nohup_goes_on_when_its_terminal_is_closed(capsys):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ended(lambda: signal.raise_signal(signal.SIGHUP)) == 0
    assert capsys.readouterr().err == ""


class Closed:
    """A terminal that is gone."""

    def write(self, text: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        pass


def test_a_program_whose_terminal_is_closed_tidies_up_though_it_cannot_say_so(monkeypatch):
    """The terminal sends the signal, and so does its shell."""
    tidied = []

    def app() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            tell("stopping what it had started")
            signal.raise_signal(signal.SIGHUP)
            tidied.append(1)

    monkeypatch.setattr(sys, "stderr", Closed())
    assert ended(app) == 130
    assert tidied == [1]


def test_any_other_error_is_a_fault_that_shows_where_and_is_no_bad_verdict(capsys):
    def app() -> None:
        raise ZeroDivisionError("a fault")

    assert ended(app) == 3
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ZeroDivisionError: a fault")


KEEPER = """
import subprocess, sys, time
from keyshift.program import ending_with_us
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
with ending_with_us([child.pid]):
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_what_ends_with_us_ends_even_if_we_are_killed():
    with subprocess.Popen([sys.executable, "-c", KEEPER], stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        child = psutil.Process(int(keeper.stdout.readline()))
        assert child.is_running()
        keeper.kill()

    def gone() -> bool:
        return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    try:
        assert wait_until(gone, 60)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def test_behind_the_block_it_goes_on():
    with subprocess.Popen(["sleep", "60"]) as child:
        with ending_with_us([child.pid]):
            pass
        assert child.poll() is None
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_presses_ctrl_c_again_does_not_interrupt_the_tidying_up(capsys, number):
    tidied = []

    def app() -> None:
        try:
            signal.raise_signal(number)
        finally:
            with interrupts_wait():
                signal.raise_signal(number)
                signal.raise_signal(number)
                tidied.append(1)
            tidied.append("was interrupted behind it")

    assert ended(app) == 130
    assert tidied == [1]
    assert capsys.readouterr().err == "the-program: interrupted; what it had started is stopped\n"


def test_nothing_is_interrupted_behind_a_tidying_up_in_peace():
    signal.signal(signal.SIGINT, before := signal.default_int_handler)
    with interrupts_wait():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_comes_while_the_one_before_is_heard_of_is_not_told_once_more():
    """The setting of an event, which is interrupted, has its lock: another one would wait for that for ever."""
    heard = []

    def hear():
        heard.append("once")
        if len(heard) < 5:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: heard.append("behind it"))
    with interrupts_wait(hear):
        signal.raise_signal(signal.SIGTERM)
    assert heard == ["once", "behind it"]


def test_what_is_ignored_stays_so_and_whoever_tidies_up_hears_of_the_others():
    heard = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: heard.append("behind it"))
    with interrupts_wait(lambda: heard.append("inside")):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert heard == ["inside"]
    assert heard == ["inside", "behind it"]
