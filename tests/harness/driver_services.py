"""ZooKeeper, S3 and Spark, as one process of a driver meets them: at each call something may happen.

What they have and what they do is that of ``nodes`` and ``engine``; Kafka is in ``memory_kafka``.
"""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from engine import Bucket, Engine, Query
from memory_kafka import LoggedTopic
from nodes import Session
from places import DriverDied, at, here
from urllib3.exceptions import HTTPError

from keyshift.model.errors import QueryDied, ServiceUnavailable
from keyshift.wire.config import JobConfig
from keyshift.wire.epoch import Epoch
from keyshift.wire.memory import Watch
from keyshift.wire.nodes import Folder, Node

if TYPE_CHECKING:
    from driver_world import Driver, World


def _called(base: type, method: str, call: str) -> Callable[..., Any]:
    """A method of ``base``; it is called as ``call``, when something may happen."""

    def calling(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._calling(call):
            return getattr(base, method)(self, *arguments, **named)

    return calling


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


class DrivenSession(Session):
    """The session of one process, at whose calls something may happen."""

    def __init__(self, world: "World", root: str, epoch: Epoch | None = None) -> None:
        place = here()
        assert place is not None
        self.place, self._world = place, world
        with self._calling("look"):
            super().__init__(world.ensemble, root, epoch)

    def _calling(self, call: str) -> contextlib.AbstractContextManager[None]:
        return self.place.calling(f"zookeeper {call}", self._broken)

    def _broken(self) -> Exception:
        """As after ``GIVE_UP_S`` without a connection: there is no session any more."""
        if hasattr(self, "over"):
            self.lose("injected: was lost")
        return ServiceUnavailable("injected: ZooKeeper was away")

    publish = _called(Session, "publish", "publish")
    acknowledge = _called(Session, "acknowledge", "acknowledge")
    register = _called(Session, "register", "register")
    read = _called(Session, "read", "read")
    children = _called(Session, "children", "children")
    watch = _called(Session, "watch", "watch")
    watch_children = _called(Session, "watch_children", "watch")
    epoch_of = _called(Session, "epoch_of", "look")
    require_epoch = _called(Session, "require_epoch", "look")
    end_epoch = _called(Session, "end_epoch", "end")

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:
        with self._calling("withdraw"):
            if not node.path and self._ensemble.below(self.root):
                self._world.deletes(f"ZooKeeper's nodes of {self.root}")
            super().withdraw(node)

    def claim(self, job: str, first: bool = False) -> Epoch:
        with self._calling("claim"):
            epoch = super().claim(job, first)
            self._world.claimed(self.place)
            return epoch

    def check(self) -> None:
        self.place.check()
        super().check()

    def close(self, prepare_next: bool = False) -> None:
        try:
            self.place.check()
        except KeyboardInterrupt:  # while it confirms: it ends all the same
            super().close(prepare_next)
            raise
        super().close(prepare_next)

    def _arrive(self) -> None:
        with contextlib.suppress(DriverDied):
            self.place.check()
            super()._arrive()

    def _look(self, watch: Watch) -> None:
        self.place.check()
        super()._look(watch)

    def _succeed(self) -> None:
        with contextlib.suppress(DriverDied):
            self.place.check()
            super()._succeed()


# -- S3 ----------------------------------------------------------------------------------------------------------------


class Minio(Bucket):
    """The client of one process, with the objects of the world."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.objects, self.ever = world.bucket.objects, world.bucket.ever
        self._world, self._place = world, here()

    def _calling(self, call: str) -> contextlib.AbstractContextManager[None]:
        place = self._place or here()
        if place is None:
            return contextlib.nullcontext()
        return place.calling(f"minio {call}", lambda: HTTPError("injected: nobody answers"))

    put_object = _called(Bucket, "put_object", "put")
    get_object = _called(Bucket, "get_object", "get")
    list_objects = _called(Bucket, "list_objects", "list")

    def remove_object(self, bucket: str, name: str) -> None:
        with self._calling("remove"):
            if name in self.objects:
                self._world.deletes(name)
            super().remove_object(bucket, name)


# -- Spark -------------------------------------------------------------------------------------------------------------


class DriverEngine(Engine):
    """The Spark session of one driver, over the world's topics."""

    def __init__(self, driver: "Driver") -> None:
        shape = driver.world.shape
        super().__init__(driver.world.seed, LoggedTopic(0), None, shape.batch_s, shape.moves, shape.slow_s)  # type: ignore[arg-type]
        self.driver, self.query = driver, None  # type: ignore[assignment]
        self.sparkContext = SimpleNamespace(applicationId="harness")

    def start_query(
        self, config: JobConfig, checkpoint: Any, batch_s: float, offsets: dict[int, int] | None = None
    ) -> Query:
        self.driver.world.watcher.begins(config.job, config.restore)
        known, self.workload = self.driver.world.kafka.topics, config.make_workload()
        self.topic, self._out = (known.get(name) for name in (config.inputs[0].topic, config.results_topic))
        if self.topic is None or self._out is None:
            raise QueryDied(f"a topic of job {config.job} is not there")
        with at(self.driver.places["spark"]):
            self.query = DrivenQuery(self, config, [(offsets or {}).get(router, 0) for router in range(config.routers)])
        return self.query

    def collect(self, slot: int, values: pa.Array, schema: pa.Schema) -> None:
        for value in values:
            with self.driver.places["spark"].calling("kafka result", lambda: RuntimeError("injected: Kafka is away")):
                self._out.append(slot, value.as_py())

    def stop(self) -> None:
        """The session."""
        self.kill()

    def kill(self) -> None:
        """The JVM is gone, and all its workers."""
        if self.query is not None:
            self.query.die(DriverDied("the JVM is gone"))
        self.end()


class DrivenQuery(Query):
    """Ends and stands still with the driver."""

    def _check(self) -> None:
        self._engine.driver.places["spark"].check()  # type: ignore[attr-defined]
        super()._check()
