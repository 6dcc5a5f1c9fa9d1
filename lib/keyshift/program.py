"""How a program of ours begins and ends: signals, one line for what went wrong, and the exit status."""

import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from keyshift.model.errors import BadInput, KeyshiftError

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one: the terminal is closed, or its line lost
INTERRUPTED = 130  # an exit status


class GoesOn(KeyshiftError):
    """Who has waited was interrupted. What it has waited for goes on in another process, as the message says."""


def run_program(app: Callable[[], object], name: str = "keyshift") -> NoReturn:
    """Run ``app`` (of typer, or any other) and leave the process with its exit status.

    An error of ours is one line that begins with ``name``: status 2 for bad input, 3 for any other. One that nobody has
    thought of shows where it happened: 3, too, as 1 is a bad verdict. Ctrl-C, SIGTERM and the end of the terminal
    (SIGHUP, unless ``nohup`` has it ignored) take the same orderly way out: status 130.
    """
    interrupted, then = False, "what it had started is stopped"

    def said(text: str) -> None:
        with suppress(OSError):  # the terminal may be gone
            sys.stderr.write(text)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        if number == signal.SIGHUP:  # a terminal that goes sends several, and the next would interrupt the tidying up
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in INTERRUPTS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    status: str | int | None = 0
    try:
        app()
    except SystemExit as leaving:
        status = leaving.code
    except KeyboardInterrupt:  # typer makes a status of it
        interrupted = True
    except GoesOn as error:
        interrupted, then = True, str(error)
    except KeyshiftError as error:
        said(f"{name}: {error}\n")
        status = 2 if isinstance(error, BadInput) else 3
    except Exception:
        said(traceback.format_exc())
        status = 3
    if interrupted:
        said(f"{name}: interrupted; {then}\n")
        status = INTERRUPTED
    sys.exit(status)


@contextmanager
def interrupts_wait(heard: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait until the end of the block, so that what has to be cleaned up is: whoever
    sees nothing happen presses Ctrl-C twice, and ``timeout -s INT`` sends two. ``heard`` is called for the first. One
    that is ignored stays so.

    They interrupt the main thread; in another one there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def wait(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:  # the next one may come within this call, which may hold a lock
            heard()

    heeded = [number for number in INTERRUPTS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, wait) for number in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def end(process: "subprocess.Popen[bytes]", within_s: float) -> None:
    """Ask a child to end, and end it by force if it has not within so many seconds; returns when it is gone."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    process.kill()
    process.wait()


@contextmanager
def ending_with_us(pids: Sequence[int]) -> Iterator[None]:
    """Let these processes end when ours is gone while inside, however it ends: then a watchdog's standard input
    ends.
    """
    watchdog = subprocess.Popen(
        ["/bin/sh", "-c", f"read line; kill {' '.join(map(str, pids))} 2>/dev/null; exit 0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watchdog.kill()
        watchdog.communicate()
