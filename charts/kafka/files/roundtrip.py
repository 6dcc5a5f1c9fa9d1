"""One record through the broker and back, in a topic of its own that is removed again."""

import os
import uuid

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

address = os.environ["ADDRESS"]
topic = f"helm-test-{uuid.uuid4().hex[:12]}"
sent = os.urandom(64)

admin = KafkaAdminClient(bootstrap_servers=address)
admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=int(os.environ["NODES"]))])
try:
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    producer.send(topic, sent).get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", group_id=None, consumer_timeout_ms=60_000
    )
    got = [record.value for _, record in zip(range(1), consumer, strict=False)]
    consumer.close()
finally:
    admin.delete_topics([topic])
assert got == [sent], f"{address}: sent 1 record of {len(sent)} bytes, got {[len(value) for value in got]}"
print(f"{address}: a record went in and came out")
