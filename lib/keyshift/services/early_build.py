"""Builds MinIO while ``make`` still installs the rest, and stops if that ``make`` ends: ``early_build PID_OF_MAKE``.

When it runs, only ``platformdirs`` and ``psutil`` are installed (``FIRST`` in the Makefile): nothing else may be
imported from here. Whoever needs MinIO waits at the lock of the build; what fails here is told there.
"""

import signal
import sys
import threading
from contextlib import suppress

import psutil

from keyshift.errors import KeyshiftError
from keyshift.folders import Cancelled
from keyshift.services.minio_binary import minio_binary


def main(owner: int) -> None:
    """Build MinIO unless there is one; give up as soon as the process ``owner`` is gone."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with Ctrl-C ignored
    cancel = threading.Event()
    threading.Thread(target=_cancel_after, args=(owner, cancel), daemon=True).start()
    with suppress(Cancelled, KeyboardInterrupt, KeyshiftError):
        minio_binary(lambda line: print(line, file=sys.stderr), cancel)  # noqa: T201 - the one line of progress make shows


def _cancel_after(owner: int, cancel: threading.Event) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(owner).wait()
    cancel.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
