"""Code that runs in the driver: a job, its stages, who leads them, snapshots, the query."""
