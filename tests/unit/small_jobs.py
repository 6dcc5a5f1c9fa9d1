"""Files of jobs in the background."""

import os

import psutil

from keyshift.control.files import JobFile


def file_of(name, pid=None, **more):
    """That of a job whose process is this one, or has the number ``pid``, which may be gone."""
    pid = pid or os.getpid()
    created = psutil.Process(pid).create_time() if psutil.pid_exists(pid) else 1.0
    known = {"url": "http://127.0.0.1:9", "token": "secret", "workload": "keycount", "strategy": "fluid"}
    return JobFile(name=name, pid=pid, created=created, **(known | {"log": "nowhere"} | more))
