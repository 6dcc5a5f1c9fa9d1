"""An object is put, read and removed, in the bucket of the results."""

import io
import os
import uuid

from minio import Minio

address, bucket = os.environ["ADDRESS"], os.environ["KEYSHIFT_BUCKET"]
name = f"helm-test/{uuid.uuid4().hex}"
sent = os.urandom(1024)

store = Minio(address, os.environ["KEYSHIFT_ACCESS_KEY"], os.environ["KEYSHIFT_SECRET_KEY"], secure=False)
store.put_object(bucket, name, io.BytesIO(sent), len(sent))
try:
    answer = store.get_object(bucket, name)
    got = answer.read()
    answer.close()
    answer.release_conn()
finally:
    store.remove_object(bucket, name)
assert got == sent, f"{address}/{bucket}: put {len(sent)} bytes, got {len(got)} others"
print(f"{address}/{bucket}: an object was put and read")
