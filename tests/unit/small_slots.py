"""Slots of a small job with Flight between them; ZooKeeper and the bucket are in memory, rows come from the test."""

from dataclasses import replace

import pyarrow as pa
from small_job import CONFIG

from keyshift.model import frames
from keyshift.model.keys import Assignment
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.row import BARRIER, DATA, SAVEPOINT, SNAPSHOT, TICK, Row
from keyshift.wire import nodes
from keyshift.wire.config import result_schema, slot_schema
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.slot import host as slot_host
from keyshift.worker.slot import opening
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.slot.opening import make_slot
from memory_bucket import MemoryBucket
from waits import until

BEGIN_US = 1_000_000_000_000


class SmallJob:
    """The job and its processes. ``config``: what is different from that of ``small_job``."""

    def __init__(self, monkeypatch, **config):
        self.config = replace(CONFIG, reserve_bytes=0, **config)
        self.workload = self.config.make_workload()
        self.memory, self.bucket, self._hosts, self._tasks = Memory(), MemoryBucket(), [], []
        self._monkeypatch = monkeypatch
        for module in (opening, slot_host):
            monkeypatch.setattr(module, "Coordination", lambda _, root, secret: MemoryCoordination(self.memory, root))
        monkeypatch.setattr(opening, "SavepointStore", lambda endpoints, job: self.store(job))
        self.publish_assignment()

    def publish_assignment(self):
        """The first one of the job of ``config``."""
        assignment = Assignment.contiguous(self.config.key_groups, self.config.slots)
        self.nodes = MemoryCoordination(self.memory, self.config.root)
        self.nodes.begin()
        self.nodes.publish(nodes.ASSIGNMENT, PublishAssignment(assignment))

    def listens(self, node):
        """Whether a slot does, to a node."""
        path = f"{self.config.root}/{node.path}"
        return any(watch.path == path for session in self.memory.sessions for watch in session.watches)

    def store(self, job=""):
        return SavepointStore(self.config.endpoints, job or self.config.job, self.bucket)

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

    def settled(self, host=None, slot=0):
        """A slot in a new batch, in a process of its own or that of ``host``: its state is there."""
        task = self.opened(slot, host or self.process())
        until(lambda: task.shared.core.machine.settled)
        return task

    def begun(self, host=None, keys=(), version=1, slot=0):
        """As ``settled``: all routers have said their first barrier, and one of them events."""
        task = self.settled(host, slot)
        for router in range(self.config.routers):
            self.barrier(task, version, router)
        if keys:
            self.data(task, keys, version)
        return task

    def end(self, task, then=lambda: None):
        """The end of its input, and of its batch; gives its last results."""
        batches = []
        until(task.settled, lambda: batches.extend(task.wait()))
        then()
        task.seal()
        task.close()
        return self.rows(batches)

    def publish(self, version, *steps):
        """Steps, of which the last has this version."""
        first = version - len(steps) + 1
        self.nodes.publish(nodes.STEPS, nodes.PublishedSteps(version, tuple(enumerate(steps, first)), 0, ""))

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

    def data(self, task, keys, version=1, router=0, watermark=BEGIN_US, at=None, offset=0):
        """A row of events, one for each of ``keys``; their times are ``at``, or the watermark."""
        payload = self.events(keys, at or watermark)
        return self.say(task, DATA, version, payload, router, watermark, offset)

    def events(self, keys, at):
        """The payload of a row of events of ``keys``, at this time."""
        schema = slot_schema(self.workload.stages[0])
        columns = {"key": keys, "position": range(len(keys)), "unit": self.workload.units[list(keys)]}
        arrays = [pa.array(columns.get(field.name, [at] * len(keys)), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()

    def frames(self, batches):
        """The result frames in what a slot gives to Spark, and what is said with each."""
        schema = result_schema(self.workload.stages[0])
        return [frames.decode(value.as_py(), schema) for batch in batches for value in batch.column(0)]

    def rows(self, batches):
        return [row for frame, _ in self.frames(batches) for row in frame.to_pylist()]

    def keys_of(self, unit):
        return [key for key in range(self.config.parameters["keys"]) if self.workload.units[key] == unit]

    def close(self):
        for task in self._tasks:
            task.close()
        for host in self._hosts:
            host.close()
