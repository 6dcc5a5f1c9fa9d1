"""Files of jobs in the background."""

import os
import platform

import psutil

from keyshift.control.files import JobFile, Kept
from keyshift.driver.job import Past
from keyshift.lab.live.journal import Journal
from keyshift.model.keys import Versions
from keyshift.services import processes

ENTRY = "12ab"


def file_of(name, pid=None, **more):
    """That of a job whose process is this one, or has the number ``pid``, which may be gone."""
    pid = pid or os.getpid()
    gone = {"pid": pid, "created": 1.0, "born": "", "host": platform.node()}
    process = processes.identity(pid) if psutil.pid_exists(pid) else gone
    known = {"url": "http://127.0.0.1:9", "token": "secret", "workload": "keycount", "strategy": "fluid"}
    return JobFile(name=name, **(process | known | {"log": "nowhere", "entry": ENTRY} | more))


def journal_of(run):
    """Of a job that has just begun."""
    past = {"past": Past({}, [], [], [], Versions(), None, 0), "plans": {}, "migrations": [], "targets": {}}
    known = {"run_id": run, "token": "secret", "attempt": 0, "slots": {}}
    return Journal(**known, **past, began_at=1.0, trigger=0.0, rates={"events": 10.0})


def keep(jobs, name, **known):
    """Write the journal of the job ``name``, whose run is ``2026-NAME``."""
    run = f"2026-{name}"
    jobs.journal(name).keep(Kept(**{"run_id": run, "token": "secret", "sources": {}} | known), journal_of(run))
