"""The daemon of Python workers, whose slots have the fault that is named in a file; none if the file is not there.

Spark starts it instead of ``keyshift.worker.daemon`` where a test says so. The file may change from run to run.
"""

import os
from pathlib import Path
from typing import Any

import faults
from keyshift.protocol import slot
from keyshift.worker import daemon

VARIABLE = "KEYSHIFT_TEST_FAULT"  # in the environment of the daemon: the path of the file
SOUND = slot.SlotMachine


def machine(*arguments: Any, **settings: Any) -> slot.SlotMachine:  # type: ignore[type-arg]
    """A slot with the fault of now."""
    file = Path(os.environ[VARIABLE])
    make = faults.MACHINES[file.read_text()] if file.exists() else SOUND
    return make(*arguments, **settings)


if __name__ == "__main__":
    slot.SlotMachine = machine  # type: ignore[assignment,misc]
    daemon.main()
