"""Binds the protocol to Spark, Kafka, Flight, ZooKeeper and MinIO."""
