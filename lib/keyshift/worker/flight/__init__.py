"""Units, single keys and short messages between slots, over Arrow Flight and beside the data path.

A stream of units carries the state of one after the other, in chunks whose metadata say what each row belongs to: a
large unit has several chunks, small ones share one. Timers travel with the last rows of their unit. The receiver
acknowledges the units of a chunk when they are installed.

A stream lasts as long as something moves, however much there is; only silence ends it. If it breaks, the fragments of a
unit that have arrived are kept, and the next stream continues behind them.
"""
