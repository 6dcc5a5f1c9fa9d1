"""Other engines under the same traffic, and ours without support for migration."""
