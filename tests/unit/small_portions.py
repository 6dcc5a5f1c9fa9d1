"""The tables of a run, some rows at a time, as they come from Kafka and the file of the collector."""

import pyarrow as pa


class Portions:
    """So many ``rows`` of ``events`` and ``results`` at a time, and all ``frames`` at the end, for files in ``folder``.
    ``before``: what was asked of the events.
    """

    def __init__(self, folder, events, frames, results, rows=7):
        self.folder, self.before, self._rows = folder, "nothing", rows
        self._events, self._frames, self._results = events, frames, results

    def events(self, before=None):
        self.before, events = before, self._events
        if before is not None:
            events = events[events["offset"] < events["router"].map(before)]
        tables = [*self._portions(events)]
        yield from ((table, self._frames[:0]) for table in tables[:-1])
        yield tables[-1], self._frames

    def results(self):
        return self._portions(self._results)

    def _portions(self, rows):
        whole = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
        yield whole[:0]
        yield from (whole[begin : begin + self._rows] for begin in range(0, len(whole), self._rows))
