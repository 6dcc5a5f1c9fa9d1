"""A server of ZooKeeper that is behind the others, in memory."""

from keyshift.wire.memory import MemoryCoordination


class Behind(MemoryCoordination):
    """Sees what there was when ``then`` was made, and hears of nothing, until it catches up. Of what it writes all know
    at once.
    """

    def __init__(self, memory, root, then):
        super().__init__(memory, root)
        self._then = then

    def catch_up(self):
        super().catch_up()
        self._then = None

    def read(self, node):
        if self._then is None:
            return super().read(node)
        there = self._then.get(f"{self.root}/{node.path}")
        return None if there is None else node.decode(there.data)

    def watch(self, *what):
        if self._then is None:
            super().watch(*what)
