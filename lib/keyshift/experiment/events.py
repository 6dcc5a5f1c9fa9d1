"""The events that a run draws, in a file: other runs are offered the same."""

import sys
from pathlib import Path

from tqdm import tqdm

from keyshift.experiment.loads import schedules_of
from keyshift.experiment.spec import RunSpec
from keyshift.model.errors import BadInput
from keyshift.workloads.event_files import event_writer

GROUP_EVENTS = 1 << 16  # in a row group, and in memory at once


def write_events(spec: RunSpec, path: Path) -> int:
    """Write all events of ``spec`` into a new file, with times since the start of the load; gives how many.

    Raises BadInput if it does not draw them, how many is not known yet, or the file cannot be written.
    """
    run = spec.run
    if run.events:
        raise BadInput(f"events = {run.events!r}: a file is written of drawn events; leave it out")
    if "rate" in spec.unsettled:
        raise BadInput("rate = auto: is chosen when a run begins, and a file needs to know it; give a number")
    schedules = list(schedules_of(spec.workload, spec.routers_of, spec.loads, run.load_s))
    whole = int(sum(sum(schedule.total) for _, schedule in schedules))
    with (
        event_writer(path, spec.workload, spec.routers_of) as out,
        tqdm(total=whole, unit=" events", desc=path.name, leave=False, file=sys.stderr, disable=None) as bar,
    ):
        for source, schedule in schedules:
            for number, events in enumerate(map(int, schedule.total)):
                partition = source.partition(number)
                for begin in range(0, events, GROUP_EVENTS):
                    end = min(events, begin + GROUP_EVENTS)
                    out.write(source.name, number, partition.take(schedule.times(number, begin, end)))
                    bar.update(end - begin)
    return whole
