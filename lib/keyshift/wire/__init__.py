"""What the processes of a job tell each other, and how: ZooKeeper, savepoint files, settings, faults."""
