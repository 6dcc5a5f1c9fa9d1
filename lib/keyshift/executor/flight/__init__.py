"""What slots send to each other beside the data path, over Arrow Flight: units, single keys, and short messages.

A stream of units carries the state of one after the other, in chunks whose metadata say what each row belongs to: a
large unit has several chunks, small ones share one. Timers travel with the last rows of their unit. The receiver
acknowledges the units of a chunk when they are installed.

A stream lasts as long as something moves, however much there is: it is ended by silence. What has come of a unit when
it breaks stays where it came, and the next stream goes on behind it.
"""
