"""One strategy per file; each is registered by one line in ``keyshift.planner``."""
