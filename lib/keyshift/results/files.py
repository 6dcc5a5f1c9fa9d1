"""Files in folders of an S3 store (MinIO): those of runs, and the records of batches."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, Damaged, NotThere
from keyshift.objects import Bucket

FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*"


class Files:
    """Folders below ``prefix``, each with files. Every method may raise ServiceUnavailable, in one line, in seconds.

    ``client``: see ``Bucket``.
    """

    def __init__(self, endpoints: Endpoints, prefix: str, client: Any = None) -> None:
        self.bucket = Bucket(endpoints, f"{prefix.strip('/')}/", client=client)

    def folders(self) -> list[str]:
        """All folders that hold something, sorted."""
        return sorted(self.bucket.folders())

    def paths(self, begin: str = "") -> list[tuple[str, str]]:
        """Folder and name of each file whose path begins so."""
        parts = (path.partition("/") for path in self.bucket.names(begin))
        return [(folder, name) for folder, _, name in parts]

    def names(self, folder: str) -> list[str]:
        """Names of the files in ``folder``, sorted; empty if there is none."""
        return sorted(name for _, name in self.paths(f"{folder}/"))

    def read(self, folder: str, name: str) -> bytes:
        """The bytes of a file. Raises BadInput if it is not there, or damaged."""
        try:
            return self.bucket.read(f"{folder}/{name}")
        except NotThere:
            raise BadInput(f"{folder}/{name} is not in the store any more: list the runs again") from None
        except Damaged as error:
            raise BadInput(str(error)) from None

    def write(self, folder: str, name: str, content: bytes | Path) -> None:
        """Store a file, or replace one. Raises BadInput for a name that cannot be used, or a file that is not there."""
        if not re.fullmatch(FILE_NAME, name):
            raise BadInput(f"file name {name!r}: use letters, digits, '_', '-' and '.', with '/' between folders")
        try:
            data = content.read_bytes() if isinstance(content, Path) else content
        except OSError as error:
            raise BadInput(f"file {str(content)!r} cannot be stored: {error.strerror}") from None
        self.bucket.put(f"{folder}/{name}", data)

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files of a folder, one after the other, in this order."""
        self.bucket.remove(f"{folder}/{name}" for name in names)
