"""The MinIO server program: see ``go_programs``. No binary of MinIO is published any more."""

import threading
from pathlib import Path

from keyshift.folders import Say, silent
from keyshift.services.go_programs import GoProgram, go_program

MINIO = GoProgram(
    name="minio",
    title="MinIO",
    module="github.com/minio/minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    go_needed=(1, 24),
    asks=("--version",),
    answer="minio version",
    takes="2.5 to 5 minutes on 2 cores",
)


def minio_binary(say: Say = silent, cancel: threading.Event | None = None) -> Path:
    """The path of a MinIO server program; if there is none yet it is built, which takes 2.5 to 5 minutes on 2 cores.

    ``say`` gets a progress line every 15 s. Two callers at once, in any process, build once.
    Raises ServiceUnavailable naming the log if it cannot be built, Cancelled once ``cancel`` is set.
    """
    return go_program(MINIO, say, cancel)
