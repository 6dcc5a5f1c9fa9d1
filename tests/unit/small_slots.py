"""Slots of a small job with Flight between them; ZooKeeper and the bucket are dictionaries, rows come from the test."""

import threading
import time
from dataclasses import replace

import pyarrow as pa
from small_bucket import Bucket
from small_job import CONFIG, DEADLINE_S

from keyshift.model import frames
from keyshift.model.keys import Assignment
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.row import BARRIER, DATA, SAVEPOINT, SNAPSHOT, TICK, Row
from keyshift.wire import nodes
from keyshift.wire.config import result_schema, slot_schema
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.slot import opening
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.slot.opening import make_slot

BEGIN_US = 1_000_000_000_000


def until(condition, meanwhile=lambda: None):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        meanwhile()
        time.sleep(0.002)


class Nodes:
    """What is in ZooKeeper below the root of the job; a watch is called by who changes its node, without the lock."""

    def __init__(self):
        self.values, self.watches, self.lock = {}, [], threading.Lock()

    def put(self, node, value):
        with self.lock:
            self.values[node.path] = node.encode(value)
        self._tell(node)

    def put_new(self, node, value):
        with self.lock:
            self.values.setdefault(node.path, node.encode(value))

    def remove(self, node):
        with self.lock:
            self.values.pop(node.path, None)
        self._tell(node)

    def get(self, node):
        data = self.values.get(node.path)
        return None if data is None else node.decode(data)

    def _tell(self, node):
        for of, call in list(self.watches):
            if of == node:
                call(self.get(node))


class Session:
    """As much of ``Coordination`` as a slot uses."""

    def __init__(self, nodes):
        self._nodes, self._closed = nodes, False

    def read(self, node):
        return self._nodes.get(node)

    def require(self, node):
        value = self.read(node)
        assert value is not None, node
        return value

    def publish(self, node, value):
        self._nodes.put(node, value)

    register = publish

    def acknowledge(self, node, value):
        if not self._closed:
            self._nodes.put_new(node, value)

    def withdraw(self, node):
        self._nodes.remove(node)

    def watch(self, node, call, gone=lambda: None):
        def heard(value):
            if not self._closed:
                gone() if value is None else call(value)

        self._nodes.watches.append((node, heard))
        heard(self.read(node))

    def check(self):
        pass

    def close(self, prepare_next=False):
        self._closed = True


class SmallJob:
    """The job and its processes. ``config``: what is different from that of ``small_job``."""

    def __init__(self, monkeypatch, **config):
        self.config = replace(CONFIG, reserve_bytes=0, **config)
        self.workload = self.config.make_workload()
        self.nodes, self.bucket, self._hosts, self._tasks = Nodes(), Bucket(), [], []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(opening, "Coordination", lambda hosts, root, secret="": Session(self.nodes))
        monkeypatch.setattr(opening, "SavepointStore", lambda endpoints, job: self.store())
        assignment = Assignment.contiguous(self.config.key_groups, self.config.slots)
        self.nodes.put(nodes.ASSIGNMENT, PublishAssignment(assignment))

    def store(self):
        made = SavepointStore(self.config.endpoints, self.config.job)
        made._bucket._client = self.bucket
        return made

    def process(self):
        """Another process for slots."""
        self._hosts.append(SlotHost(self.config))
        self._hosts[-1].warm = True
        return self._hosts[-1]

    def ends(self, host):
        """The process is gone."""
        self._hosts.remove(host)
        host.close()

    def opened(self, slot, host):
        self._monkeypatch.setattr(opening, "host_for", lambda config: host)
        self._tasks.append(make_slot(self.config, slot))
        self._tasks[-1].start()
        return self._tasks[-1]

    def end(self, task, then=lambda: None):
        """The end of its input, and of its batch; gives its last results."""
        values = []
        until(task.settled, lambda: values.extend(task.wait()))
        then()
        task.seal()
        task.close()
        return self.rows(values)

    def publish(self, version, *steps):
        """Steps, of which the last has this version."""
        first = version - len(steps) + 1
        self.nodes.put(nodes.STEPS, nodes.PublishedSteps(version, tuple(enumerate(steps, first)), 0, ""))

    def say(self, task, kind, version=1, payload=b"", router=0, watermark=0, offset=0):
        """A row of a router; gives the rows of results."""
        row = Row(kind, router, version, offset, watermark, pa.py_buffer(payload))
        return self.rows(task.on_rows([row]))

    def barrier(self, task, version=1, router=0):
        return self.say(task, BARRIER, version, router=router)

    def tick(self, task, watermark, router=0):
        return self.say(task, TICK, router=router, watermark=watermark)

    def savepoint(self, task, name="sp", router=0):
        return self.say(task, SAVEPOINT, payload=name.encode(), router=router)

    def snapshot(self, task, version, name="sn", router=0):
        return self.say(task, SNAPSHOT, version, name.encode(), router=router)

    def data(self, task, keys, version=1, router=0, watermark=BEGIN_US):
        """A row of events, one for each of ``keys``."""
        schema = slot_schema(self.workload.stages[0])
        columns = {"key": keys, "position": range(len(keys)), "unit": self.workload.units[list(keys)]}
        events = pa.RecordBatch.from_arrays(
            [pa.array(columns.get(field.name, [watermark] * len(keys)), field.type) for field in schema], schema=schema
        )
        return self.say(task, DATA, version, events.serialize().to_pybytes(), router, watermark)

    def rows(self, values):
        schema = result_schema(self.workload.stages[0])
        return [row for value in values for row in frames.decode(value, schema)[0].to_pylist()]

    def keys_of(self, unit):
        return [key for key in range(self.config.parameters["keys"]) if self.workload.units[key] == unit]

    def close(self):
        for task in self._tasks:
            task.close()
        for host in self._hosts:
            host.close()
