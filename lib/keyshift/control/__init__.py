"""A live job for other processes: HTTP with a token, metrics for Prometheus, and jobs in the background."""
