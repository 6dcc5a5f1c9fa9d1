"""What came of a run, compared with what must have come of it."""
