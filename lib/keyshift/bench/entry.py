"""How a benchmark is started and left from the command line."""

import signal
import sys

import typer

from keyshift.errors import BadInput, KeyshiftError


def run_app(app: typer.Typer, name: str) -> None:
    """The entry point: errors become one line and an exit status, as with ``keyshift``."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same orderly way out as Ctrl-C
    try:
        app()
    except KeyshiftError as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(2 if isinstance(error, BadInput) else 3)
