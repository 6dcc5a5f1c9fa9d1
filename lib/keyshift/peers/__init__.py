"""Other engines under the same traffic."""
