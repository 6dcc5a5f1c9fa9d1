"""ZooKeeper, S3 and Spark, as one process of a driver meets them: at each call something may happen.

What they have and what they do is that of ``nodes`` and ``engine``; Kafka is in ``memory_kafka``.
"""

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from engine import Engine, Query
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

T = TypeVar("T")

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

    def publish(self, node: Node[T], value: T) -> None:
        with self._calling("publish"):
            super().publish(node, value)

    def acknowledge(self, node: Node[T], value: T) -> None:
        with self._calling("acknowledge"):
            super().acknowledge(node, value)

    def register(self, node: Node[T], value: T) -> None:
        with self._calling("register"):
            super().register(node, value)

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:
        with self._calling("withdraw"):
            if not node.path and self._ensemble.below(self.root):
                self._world.deletes(f"ZooKeeper's nodes of {self.root}")
            super().withdraw(node)

    def read(self, node: Node[T]) -> T | None:
        with self._calling("read"):
            return super().read(node)

    def children(self, folder: Folder[Any]) -> list[str]:
        with self._calling("children"):
            return super().children(folder)

    def _watch(self, watch: Watch) -> None:
        with self._calling("watch"):
            super()._watch(watch)

    def claim(self, job: str, first: bool = False) -> Epoch:
        with self._calling("claim"):
            epoch = super().claim(job, first)
            self._world.claimed(self.place)
            return epoch

    def require_epoch(self) -> None:
        with self._calling("look"):
            super().require_epoch()

    def end_epoch(self) -> None:
        with self._calling("end"):
            super().end_epoch()

    def check(self) -> None:
        self.place.check()
        super().check()

    def close(self, prepare_next: bool = False) -> None:
        self.place.check()
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


class Minio:
    """The client of one process."""

    def __init__(self, world: "World") -> None:
        self._world, self._bucket, self._place = world, world.bucket, here()

    def _calling(self, call: str) -> contextlib.AbstractContextManager[None]:
        place = self._place or here()
        if place is None:
            return contextlib.nullcontext()
        return place.calling(f"minio {call}", lambda: HTTPError("injected: nobody answers"))

    def put_object(self, *arguments: Any, **named: Any) -> None:
        with self._calling("put"):
            self._bucket.put_object(*arguments, **named)

    def get_object(self, *arguments: Any, **named: Any) -> Any:
        with self._calling("get"):
            return self._bucket.get_object(*arguments, **named)

    def list_objects(self, *arguments: Any, **named: Any) -> Any:
        with self._calling("list"):
            return self._bucket.list_objects(*arguments, **named)

    def remove_object(self, bucket: str, name: str) -> None:
        with self._calling("remove"):
            if name in self._bucket.objects:
                self._world.deletes(name)
            self._bucket.remove_object(bucket, name)


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
        self.driver.world.watcher.begins(config.restore)
        known, self.workload = self.driver.world.kafka.topics, config.make_workload()
        self.topic, self._out = (known.get(name) for name in (config.events_topic, config.results_topic))
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
