"""That a process drives a live job, for others to see in ZooKeeper as long as it lives, whatever it does meanwhile.

That nobody offers events says less: nobody does while a query starts, while a generator skips what was offered before,
or while the verdict is computed.
"""

import contextlib
import os
import platform
import secrets
import threading

from keyshift.endpoints import Endpoints
from keyshift.model.errors import RunsElsewhere, ServiceUnavailable
from keyshift.progress import Say
from keyshift.waiting import wait_until
from keyshift.wire.client import GIVE_UP_S
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import DRIVERS, of_job

WAIT_S = GIVE_UP_S  # by far longer than the session of a process that was killed
LOOK_S = 0.2
AGAIN_S = 1.0  # between two looks at whether the own session was given up


class Presence:
    """The drivers of ``job``, of which this process may become one. ``token``: the job's secret."""

    def __init__(self, endpoints: Endpoints, job: str, token: str) -> None:
        self._endpoints, self._root, self._token = endpoints, of_job(job), token
        self._session: Coordination | None = None
        self._over = threading.Event()
        self._staying = threading.Thread(target=self._stay, name="keyshift-presence", daemon=True)

    def await_none(self, say: Say) -> None:
        """Wait until no process is there: one that was killed is, until its session ends. Raises RunsElsewhere."""
        with contextlib.closing(self._new_session()) as session:
            session.catch_up()
            if not (found := session.read_below(DRIVERS)):
                return
            who = " and ".join(sorted(found.values()))
            say(f"waiting until ZooKeeper has given up {who}, {WAIT_S:g} s at the most")
            if not wait_until(lambda: not session.children(DRIVERS), WAIT_S, LOOK_S):
                raise RunsElsewhere(f"ZooKeeper hears {who} still: the job runs elsewhere")

    def begin(self, first: bool = False) -> None:
        """Be there until ``end``, or the end of the process. ``first``: there may be nothing of the job yet."""
        self._session = self._registered(first)
        self._staying.start()

    def end(self) -> None:
        """Be there no more. Safe to call twice, and without ``begin``."""
        self._over.set()
        if self._session is not None:
            self._staying.join()
            self._session.close()

    def _stay(self) -> None:
        """Be there again where ZooKeeper was away for so long that the session was given up: while a verdict is made,
        or a generator skips what was offered before, the job has no other one that would end it.
        """
        while not self._over.wait(AGAIN_S):
            assert self._session is not None
            try:
                self._session.check()
            except ServiceUnavailable:
                with contextlib.suppress(ServiceUnavailable):  # it is away still
                    before, self._session = self._session, self._registered()
                    before.close()

    def _registered(self, first: bool = False) -> Coordination:
        with contextlib.ExitStack() as undo:
            session = self._new_session()
            undo.callback(session.close)
            if first:
                session.begin()
            name = secrets.token_hex(4)  # of its own: one that was deposed takes nothing away when it wakes
            session.register(DRIVERS[name], f"process {os.getpid()} of host {platform.node()}")
            undo.pop_all()
        return session

    def _new_session(self) -> Coordination:
        return Coordination(self._endpoints.zookeeper, self._root, self._token)
