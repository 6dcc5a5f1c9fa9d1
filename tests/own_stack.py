"""Services that a test has for itself."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from keyshift.services.stack import Stack


@contextlib.contextmanager
def stopped_with_us(stack: Stack) -> Iterator[None]:
    """Services outlive whoever starts them; these are stopped, by a process that sees our end if we are killed."""
    code = "import sys; from keyshift.services.stack import Stack; sys.stdin.read(); Stack().down()"
    environment = os.environ | {"KEYSHIFT_HOME": str(stack.home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True):
        try:
            yield
        finally:
            stack.down()
