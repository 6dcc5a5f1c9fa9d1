"""A node is written and read by two sessions, and is gone after the first, because it is ephemeral."""

import os
import uuid

from kazoo.client import KazooClient

address = os.environ["ADDRESS"]
path = f"/helm-test-{uuid.uuid4().hex[:12]}"
sent = os.urandom(64)

writer, reader = KazooClient(hosts=address), KazooClient(hosts=address)
writer.start(timeout=60)
reader.start(timeout=60)
writer.create(path, sent, ephemeral=True)
reader.sync(path)
got, _ = reader.get(path)
writer.stop()
reader.sync("/")
left = reader.exists(path)
reader.stop()
assert got == sent, f"{address}: wrote {sent!r}, read {got!r}"
assert left is None, f"{address}: {path} outlived its session"
print(f"{address}: a node was written and read")
