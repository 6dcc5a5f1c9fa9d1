"""As much of kazoo's client as sessions and trees need, over a dictionary: nothing expires, nothing is watched."""

import threading
from types import SimpleNamespace

from kazoo.exceptions import ConnectionClosedError, NodeExistsError, NoNodeError, NotEmptyError

from keyshift.wire.tree import GuardedWrites, Tree


class Client:
    """``intruders`` are written, one at a time, when somebody asks what is below a node; ``lost``: nothing is deleted
    any more.
    """

    def __init__(self):
        self.nodes, self.intruders, self.lost = {"/job": b""}, [], False
        self.handler, self.stopped, listeners = Handler(), False, set()
        self.listeners, self.add_listener, self.remove_listener = listeners, listeners.add, listeners.discard

    def tell(self, *states):
        """The listeners hear that the connection changes."""
        for state in states:
            for listener in [*self.listeners]:
                listener(state)

    def stop(self):
        self.stopped = True

    close = stop

    def retry(self, act, *arguments, **more):
        return act(*arguments, **more)

    def get(self, path):
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path], None

    def get_async(self, path):
        return SimpleNamespace(get=lambda: self.get(path))

    def get_children(self, path):
        names = self._below(path)
        if self.intruders:
            self.nodes[self.intruders.pop()] = b""
        return names

    def _below(self, path):
        self.get(path)
        return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(f"{path}/")})

    def create(self, path, data=b"", ephemeral=False):
        if path in self.nodes:
            raise NodeExistsError
        self.get(path.rsplit("/", 1)[0])
        self.nodes[path] = data

    def set_data(self, path, data):
        self.get(path)
        self.nodes[path] = data

    def delete(self, path):
        if self.lost:
            raise ConnectionClosedError
        if self._below(path):
            raise NotEmptyError
        del self.nodes[path]

    def transaction(self):
        """What the service refuses is among the results."""
        acts, done = [], []

        def commit():
            for act, arguments in acts:
                try:
                    done.append(act(*arguments))
                except (NodeExistsError, NoNodeError, NotEmptyError) as error:
                    done.append(error)
            return done

        def operation(act):
            return lambda *arguments: acts.append((act, arguments))

        operations = {name: operation(getattr(self, name)) for name in ("create", "set_data", "delete")}
        return SimpleNamespace(commit=commit, **operations)

    def tree(self, root="/job"):
        """Of another session."""
        return Tree(self, root, GuardedWrites(self, root, None))


class Handler:
    """``threads``: all that were begun."""

    def __init__(self):
        self.threads = []

    def spawn(self, act):
        self.threads.append(threading.Thread(target=act, daemon=True))
        self.threads[-1].start()
