"""MinIO: a single server, its program, and its bucket."""

import json
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from keyshift.endpoints import Endpoints
from keyshift.folders import write_whole
from keyshift.model.errors import ServiceUnavailable
from keyshift.objects import Bucket
from keyshift.progress import Say
from keyshift.services.go_programs import GoProgram, go_program
from keyshift.services.service import ANSWER_S, HOST, LOCAL, Argv, Binding, Env, Service

BUCKET = "keyshift"
PROGRAM = GoProgram(  # no binary of it is published any more
    name="minio",
    title="MinIO",
    module="github.com/minio/minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    go_needed=(1, 24),
    asks=("--version",),
    answer="minio version",
    takes="2.5 to 5 minutes on 2 cores",
)


class MinIO(Service):
    """A single MinIO server with one folder, and in it the bucket of keyshift."""

    name, title, deadline_s = "minio", "MinIO", 60.0
    default_ports: ClassVar = {"minio": 19000}

    def __init__(self, home: Path, binding: Binding = LOCAL, credentials: tuple[str, str] | None = None) -> None:
        super().__init__(home, binding)
        self._given = credentials

    def fetch(self, say: Say, cancel: threading.Event) -> Argv:
        """Get the server program; building it is what takes minutes."""
        return [str(go_program(PROGRAM, say, cancel))]

    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        """Give the command and the environment, which have everything."""
        access_key, secret_key = self.credentials()
        # Settings of another MinIO in the user's environment must not leak into this one.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MINIO_", "_MINIO_"))}
        env |= {"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key}
        env |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}  # no console, no asking for updates
        address = f"{self.binding.listen}:{ports['minio']}"
        command = [*program, "server", str(self.data), "--address", address, "--quiet", "--certs-dir", "conf/minio"]
        return command, env

    def credentials(self) -> tuple[str, str]:
        """Access key and secret key: those given, else generated on first use and kept in a file only the user can
        read.
        """
        if self._given:
            return self._given
        file = self.home / "credentials.json"
        try:
            saved = json.loads(file.read_text())
            return saved["access_key"], saved["secret_key"]
        except FileNotFoundError:
            keys = f"keyshift-{secrets.token_hex(4)}", secrets.token_urlsafe(24)
            write_whole(file, json.dumps({"access_key": keys[0], "secret_key": keys[1]}))
            return keys
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServiceUnavailable(
                f"the MinIO credentials in {file} cannot be read; remove the file and call `keyshift up`"
            ) from error

    def check(self, port: int) -> None:
        """Return if it takes our credentials and has the bucket, which is made if it is not there."""
        here = Endpoints("", "", f"{HOST}:{port}", *self.credentials(), bucket=BUCKET)
        Bucket(here, answer_s=ANSWER_S, retries=0).make()
