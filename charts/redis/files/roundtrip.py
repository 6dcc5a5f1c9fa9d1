"""A value is set, read and removed by a client with the password; without it nobody is answered."""

import os
import uuid

import redis

address = os.environ["ADDRESS"]
host, port = address.rsplit(":", 1)
name = f"helm-test/{uuid.uuid4().hex}"
sent = os.urandom(1024)

server = redis.Redis(host, int(port), password=os.environ["KEYSHIFT_REDIS_PASSWORD"], socket_timeout=60)
server.set(name, sent, ex=60)
got = server.get(name)
server.delete(name)
policy = server.info()["maxmemory_policy"]
try:
    redis.Redis(host, int(port), socket_timeout=60).ping()
except redis.AuthenticationError:
    refused = True
else:
    refused = False
assert got == sent, f"{address}: set {len(sent)} bytes, got {got!r}"
assert policy == "noeviction", f"{address}: its maxmemory-policy is {policy}"
assert refused, f"{address}: answers without the password"
print(f"{address}: a value was set and read")
