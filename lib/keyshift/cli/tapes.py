"""Tapes of a stock exchange, for the workload ``stock``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from keyshift.cli.options import Json, SettingsOption, print_rows
from keyshift.model.errors import BadInput
from keyshift.progress import tell
from keyshift.registry import named_values, unknown


def write(
    file: Annotated[Path, typer.Argument(help="Where to write it: a new file.")],
    seconds: Annotated[float, typer.Option(min=0.05, max=100_000, help="How long the exchange is open.")] = 10.0,
    rate: Annotated[
        float,
        typer.Option(
            min=1,
            max=1e6,
            help="Orders and deletions per second, on average, before those are left out whose order was executed "
            "whole.",
        ),
    ] = 1000.0,
    form: Annotated[Literal["full", "short"], typer.Option(help="All columns, or eight.")] = "full",
    settings: SettingsOption = [],  # noqa: B006 - typer wants a list
) -> None:
    """Write a tape as the workload draws it; --set takes its parameters, such as securities.

    It begins with the orders that rest (resting for each security), told at the same rate; the seconds come behind.
    """
    from keyshift.experiment.spec import make_spec
    from keyshift.workloads import parameters
    from keyshift.workloads.files import new_file
    from keyshift.workloads.stock import Stock
    from keyshift.workloads.stock.writing import write as lines_of

    values, known = named_values(settings), list(parameters(Stock))
    for name in values:
        if name in ("seconds", "rate"):
            raise BadInput(f"--set {name}: a run has that, and a tape the option --{name}")
        if name.removeprefix("workload.") not in known:
            raise unknown("parameter of a tape", name, known)
    workload = make_spec({"workload": Stock.name} | values).workload
    assert isinstance(workload, Stock)
    if workload.tape:
        raise BadInput(f"tape = {workload.tape!r}: a tape is written of drawn orders; leave it out")
    with new_file(f"tape {str(file)!r}", file) as out:
        out.writelines(f"{line}\n".encode() for line in lines_of(workload, form, rate, seconds))
    tell(f"{file}: {seconds:g} s of a stock exchange; play it with `--workload stock --set tape={file}`")


def check(
    file: Annotated[Path, typer.Argument(help="The tape.")],
    as_json: Json = False,
) -> None:
    """What is in a tape, and which lines cannot be read (the first ten of them). Exit status 1 if there are any.

    waiting: orders in the books at its end, of 32 bytes of state each.
    """
    import pyarrow.compute as pc

    from keyshift.workloads.stock.tape import read
    from keyshift.workloads.stock.writing import waiting

    tape = read(str(file))
    orders = tape.orders
    deletions = pc.sum(orders["deletes"]).as_py()
    facts = {
        "form": tape.form,
        "lines": tape.lines,
        "orders": orders.num_rows - deletions,
        "deletions": deletions,
        "dropped": tape.dropped,
        "bad": tape.bad,
        "securities": pc.count_distinct(orders["security"]).as_py(),
        "accounts": pc.count_distinct(orders["account"]).as_py() if tape.form == "full" else None,
        "seconds": tape.seconds,
        "waiting": waiting(orders),
        "events_per_s": round(orders.num_rows / tape.seconds, 1) if tape.seconds else None,
    }
    for example in tape.examples:
        tell(example)
    print_rows([facts], as_json)
    raise typer.Exit(int(tape.bad > 0))
