"""Files of the events of runs."""

import time
from pathlib import Path
from typing import Annotated

import typer

from keyshift.cli.options import WORKLOAD, Json, SettingsOption, WorkloadOption, print_rows
from keyshift.progress import tell
from keyshift.registry import named_values


def write(
    file: Annotated[Path, typer.Argument(help="Where to write it: a new file, Parquet.")],
    workload: WorkloadOption = WORKLOAD,
    settings: SettingsOption = [],  # noqa: B006 - typer wants a list
    as_json: Json = False,
) -> None:
    """Write the events that a run with these parameters would be offered; starts nothing.

    A run with the same workload, its parameters that events depend on (seed, keys, …), and routers is offered them by
    --set events=FILE; its load may not need more events.
    """
    from keyshift.experiment.loads import write_events
    from keyshift.experiment.spec import make_spec

    spec = make_spec({"workload": workload} | named_values(settings))
    begin = time.perf_counter()
    events = write_events(spec, file)
    took_s = time.perf_counter() - begin
    row = {"events": events, "bytes": file.stat().st_size, "load_s": spec.run.load_s, "took_s": round(took_s, 3)}
    print_rows([row], as_json)
    tell(f"{file}: offer them with `keyshift run --workload {spec.workload.name} --set events={file} …`")


def show(file: Annotated[Path, typer.Argument(help="The file.")], as_json: Json = False) -> None:
    """What is in a file: for each source its partitions, and how many events they have in all and at the least.

    The parameters with which they were drawn are told on standard error.
    """
    from keyshift.workloads.event_files import EventFile

    found = EventFile(str(file))
    tell(f"workload={found.head.workload} " + " ".join(f"{name}={v}" for name, v in found.head.parameters.items()))
    rows = []
    for source, partitions in found.head.partitions.items():
        events = [found.events[source, number] for number in range(partitions)]
        row = {"workload": found.head.workload, "source": source, "partitions": partitions}
        rows.append(row | {"events": sum(events), "least": min(events)})
    print_rows(rows, as_json)
