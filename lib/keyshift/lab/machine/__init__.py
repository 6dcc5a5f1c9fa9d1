"""The machine that a run takes place on: what a run uses of it, what a load costs, how quickly bytes are copied."""
