"""A router and a slot without I/O: rows and the time go in; rows, results and effects come out.

The shell around them has the threads, the clock, the channels and the services. They never learn who that is: Spark's
tasks, the simulation in ``tests/property``, or something else. Nothing here is thread-safe: one call at a time.
"""
