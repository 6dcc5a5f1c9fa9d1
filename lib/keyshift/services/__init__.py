"""Kafka, ZooKeeper and MinIO as processes of ours, and the programs they need: Java, jars, what is built from Go."""
