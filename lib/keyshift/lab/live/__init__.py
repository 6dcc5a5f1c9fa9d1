"""A job that runs until it is stopped."""
