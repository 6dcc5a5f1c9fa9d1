"""Files of jobs in the background."""

import os
import platform

import psutil

from keyshift.control.files import JobFile
from keyshift.services import processes

ENTRY = "12ab"


def file_of(name, pid=None, **more):
    """That of a job whose process is this one, or has the number ``pid``, which may be gone."""
    pid = pid or os.getpid()
    gone = {"pid": pid, "created": 1.0, "born": "", "host": platform.node()}
    process = processes.identity(pid) if psutil.pid_exists(pid) else gone
    known = {"url": "http://127.0.0.1:9", "token": "secret", "workload": "keycount", "strategy": "fluid"}
    return JobFile(name=name, **(process | known | {"log": "nowhere", "entry": ENTRY} | more))
