"""The inside of the processes of a run's traffic."""

import json
import subprocess
import sys

PROGRAM = """
import gc, os
from keyshift.traffic.entry import TrafficConfig, run
from keyshift.traffic.process import say

def body(config, commands):
    print("as a workload says", flush=True)
    os.system("echo as a program says")
    say([config.topic.name, gc.get_freeze_count()])

run(TrafficConfig, body)
"""


def test_what_was_imported_is_looked_through_by_no_collection_and_what_a_workload_prints_is_no_report():
    told = json.dumps({"topic": {"kafka": "", "name": "t"}, "workload": "keycount", "parameters": {}})
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    topic, frozen = json.loads(done.stdout)
    assert topic == "t" and int(frozen) > 10_000
    assert done.stderr.splitlines() == ["as a workload says", "as a program says"]
