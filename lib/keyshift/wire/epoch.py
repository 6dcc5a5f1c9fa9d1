"""Who drives a job: one process at a time, the one that has claimed it last.

A claim is one write of the node ``driver`` of the job, and the version of that node is the driver's *epoch*. What a
driver writes in ZooKeeper is one transaction with a check of that version, so a driver that was paused, and whose job
another one has claimed meanwhile, is told so at its next write. When a job is over its driver deletes the node, or who
forgets the job: then nobody can claim it any more, and all that is left of the job may go, the root of the job last. So
a root without that node is what a job has left of which not all was deleted yet.
"""

from typing import NamedTuple

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from keyshift.model.errors import Deposed, JobOver, NotThere
from keyshift.wire.nodes import of_job


class Epoch(NamedTuple):
    """The epoch of one driver."""

    job: str
    number: int

    def also(self, transaction: TransactionRequest) -> None:
        """Let ``transaction`` be done only if nobody else has claimed the job."""
        transaction.check(_node(self.job), self.number)

    def require(self, client: KazooClient) -> None:
        """Refuse to go on if another driver has claimed the job, or has ended it: Deposed. What is read next is not
        older.
        """
        found = newest(client, self.job)
        if found is None:
            raise Deposed(
                f"job {self.job} has no driver in ZooKeeper any more: another process has ended it, or ZooKeeper has "
                "lost it; this one ends and deletes nothing"
            )
        if found != self:
            raise Deposed(
                f"job {self.job} runs in another process now (epoch {found.number}, ours was {self.number}); "
                "this one ends and leaves everything to it"
            )

    def end(self, client: KazooClient) -> None:
        """End the job: nobody can claim it any more. Raises Deposed if it is another's."""
        try:
            client.retry(client.delete, _node(self.job), self.number)
        except NoNodeError:
            pass  # it was over, or is: an answer that was lost
        except BadVersionError:
            self.require(client)


def newest(client: KazooClient, job: str) -> Epoch | None:
    """Give the epoch of the driver that has claimed the job last; None if nobody can claim it. What is read next is not
    older.
    """
    client.retry(client.sync, _node(job))  # another server may be behind
    found = client.retry(client.exists, _node(job))
    return None if found is None else Epoch(job, found.version)


def claimed(client: KazooClient, job: str) -> Epoch:
    """Claim the job for a new driver. Raises JobOver if the job is over and has left something here, and NotThere if
    nothing is here: then it is over as well, or is in another ZooKeeper.
    """
    try:
        return Epoch(job, client.retry(client.set, _node(job), b"").version)
    except NoNodeError:
        if client.retry(client.exists, of_job(job)):
            raise JobOver(f"job {job} is over and cannot be resumed; what it left is not deleted yet") from None
        raise NotThere(f"ZooKeeper has nothing of job {job}: it is over, or never was, and cannot be resumed") from None


def begun(client: KazooClient, job: str) -> Epoch:
    """Begin the epoch of the first driver of a job."""
    client.retry(client.ensure_path, _node(job))
    return claimed(client, job)


def _node(job: str) -> str:
    return f"{of_job(job)}/driver"
