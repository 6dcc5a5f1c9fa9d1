"""Files of jobs in the background."""

import os

import psutil

from keyshift.control.files import JobFile
from keyshift.services import processes


def file_of(name, pid=None, **more):
    """That of a job whose process is this one, or has the number ``pid``, which may be gone."""
    pid = pid or os.getpid()
    process = processes.identity(pid) if psutil.pid_exists(pid) else {"pid": pid, "created": 1.0}
    known = {"url": "http://127.0.0.1:9", "token": "secret", "workload": "keycount", "strategy": "fluid"}
    return JobFile(name=name, **(process | known | {"log": "nowhere"} | more))
