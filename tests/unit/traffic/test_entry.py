"""The inside of the processes of a run's traffic."""

import json
import subprocess
import sys

PROGRAM = """
import gc, sys
from keyshift.traffic.entry import TrafficConfig, run
run(TrafficConfig, lambda config, commands: (sys.stdout.write(f"{config.topic.name} {gc.get_freeze_count()}"), sys.stdout.flush()))
"""  # noqa: E501


def test_what_was_imported_is_looked_through_by_no_collection():
    told = json.dumps({"topic": {"kafka": "", "name": "t"}, "workload": "keycount", "parameters": {}})
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    topic, frozen = done.stdout.split()
    assert topic == "t" and int(frozen) > 10_000
