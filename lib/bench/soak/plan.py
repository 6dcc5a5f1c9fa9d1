"""What happens in a soak, and when: drawn from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

DRIVER = "kill:driver"  # the job's process, by us: it is resumed
FAULTS = (
    "kill:slot",
    "stop:slot:3s",
    "stop:slot:12s",  # longer than its session with ZooKeeper lasts
    "kill:coordinator",
    "stop:coordinator:3s",
    "kill:daemon",
    "restart:zookeeper",
    "restart:kafka",
    "restart:minio:3s",
    "stop:zookeeper:4s",
    "stop:kafka:4s",
    "stop:minio:12s",
    DRIVER,
)
STRATEGIES = (
    *("fluid", "all_at_once", "matched", "chunked", "pause_resume", "order_unaware", "fluid_per_source"),
    *("lazy", "hybrid", "drrs", "replicated", "rhino", "hot_first", "stop_restart"),
)
BESIDE_S = 1.5  # so soon after the request of a migration a fault is likely to hit it
T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """At ``at_s`` seconds the state is to move to ``slots`` by ``strategy``; ``gap_s`` later there is a ``fault``."""

    at_s: float
    strategy: str
    slots: int
    gap_s: float
    fault: str

    @property
    def in_the_midst(self) -> bool:
        """Whether the fault comes while the migration may be under way; else when it should be over."""
        return self.gap_s <= BESIDE_S


def rounds(
    seed: int,
    seconds: float,
    every_s: float,
    slots_max: int,
    faults: Sequence[str] = FAULTS,
    strategies: Sequence[str] = STRATEGIES,
) -> list[Round]:
    """A round each ``every_s``, as long as it ends before ``seconds``.

    Every fault comes once before any comes again, and so do strategies. Half of the faults, by chance, come in the
    midst of the migration, the others half a round later.
    """
    random = Random(seed)
    bags = _bag(random, faults), _bag(random, strategies)
    found: list[Round] = []
    slots = 0
    while (at_s := every_s * (len(found) + 0.5)) + every_s <= seconds:
        slots = random.choice([each for each in range(1, slots_max + 1) if each != slots])
        gap_s = random.uniform(0, BESIDE_S) if random.random() < 0.5 else every_s / 2
        fault, strategy = (next(bag) for bag in bags)
        found.append(Round(at_s, strategy, slots, round(gap_s, 3), fault))
    return found


def _bag(random: Random, things: Sequence[T]) -> Iterator[T]:
    while True:
        yield from random.sample(things, len(things))
