"""A program of ours ends with one line and an exit status."""

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from keyshift.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.program import run_program


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(app: Callable[[], object]) -> object:
    with pytest.raises(SystemExit) as left:
        run_program(app, "the-program")
    return left.value.code


@pytest.mark.parametrize(("error", "status"), [(BadInput, 2), (ServiceUnavailable, 3), (KeyshiftError, 3)])
def test_an_error_of_ours_is_one_line_and_its_status(capsys, error, status) -> None:
    def app() -> None:
        raise error("rate = 0: must be more")

    assert ended(app) == status
    assert capsys.readouterr().err == "the-program: rate = 0: must be more\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_status_of_the_program_itself_is_kept(capsys, status) -> None:
    assert ended(lambda: sys.exit(status)) == status
    assert ended(lambda: None) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_interrupted_tidies_up_and_says_so(capsys, number) -> None:
    tidied = []

    def app() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:  # as typer does
            tidied.append(1)
            sys.exit(1)

    assert ended(app) == 130
    assert tidied == [1]
    assert capsys.readouterr().err == "the-program: interrupted; what it had started is stopped\n"


def test_any_other_error_is_a_fault_and_shows_where() -> None:
    def app() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_program(app)
