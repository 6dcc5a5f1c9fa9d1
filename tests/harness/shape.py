"""What the seed of a run decides before it begins."""

import random
from types import SimpleNamespace
from typing import Any

from keyshift.model.keys import Mode
from keyshift.planner import Strategy, strategies, turn_conflicts
from keyshift.workloads.nexmark import Nexmark

KINDS = ("push", "fetch", "access", "replicated")
WORKLOADS = ("keycount", "windowcount", "chain", "wordcount", "nexmark", "stock")
OF_TWO_SOURCES = "saas"  # is not drawn: each of its sources has all the routers of a shape
QUERIES = ("q3", "q4", "q5", "q6", "q7", "q8", "q11")  # of nexmark: those with state
IN_TURNS = ("keycount", "windowcount", "wordcount", "nexmark", "stock")  # workloads of one stage
OF_STAGES_IN_TURNS = "chain"  # is drawn without turns only
QUICK_S, LONG_S = 0.02, 0.7  # calls of Flight, and batches of slots that work in turns if calls are not that quick
SIMPLE = ("all_at_once", "fluid", "fluid_per_source")  # batches, carried out in any mode
MODES = {
    "push": (Mode(), Mode(gate="slots"), Mode(gate="router")),
    "fetch": tuple(Mode(transfer="fetch", fetch_back=times) for times in (0, 1, 3)),
    "access": (
        *(Mode(transfer="access", background=background) for background in (False, True)),
        *(Mode(transfer="remote", background=b, cache=c) for b in (False, True) for c in (False, True)),
    ),
    "replicated": (),
}


def kind_of(strategy: Strategy) -> str:
    """What makes the state of a strategy move."""
    if any(each.replicate for each in strategy.of_every_migration):
        return "replicated"
    return "access" if strategy.mode.transfer == "remote" else strategy.mode.transfer


class Shape(SimpleNamespace):
    """Times in seconds, probabilities between 0 and 1."""

    @property
    def point(self) -> Strategy:
        """The strategy."""
        return strategies.get(self.strategy)

    @property
    def parameters(self) -> dict[str, Any]:
        """The workload's own."""
        given = {"key_groups": 8, "bins": self.point.bins, "seed": 0}
        keyed = {"keys": self.keys, "skew": 0.3, "state_bytes": 40}
        own: dict[str, dict[str, Any]] = {
            "keycount": keyed,
            "windowcount": keyed | {"window_ms": 60, "delay_ms": 20, "late_share": 0.05, "idle_ms": 80},
            "chain": keyed | {"chain": self.chain},
            "wordcount": {"words": self.keys, "skew": 0.3, "window_ms": 60 * self.timed},
            "nexmark": {
                **{"query": self.query, "window_ms": 200, "slide_ms": 50, "gap_ms": 30, "session_bids": 3},
                **{"delay_ms": 20, "auction_ms": 100},
            },
            "saas": {"customers": self.keys // 5, "employees": 3, "spread": 4, "alerts": 3},
            "stock": {
                **{"securities": self.keys // 5, "accounts": self.keys, "resting": 5, "open_orders": 50},
                "keyed_by": "account" if self.timed else "security",
            },
        }
        return given | own[self.workload]


def draw(
    seed: int, kind: str | None = None, workload: str | None = None, ordering: str = "none", **pinned: Any
) -> Shape:
    """The shape of a run. ``kind`` of transfer, ``workload`` and single fields may be given instead of drawn.

    With an ``ordering`` only what is possible with one is drawn.
    """
    rng, in_turns = random.Random(seed), ordering != "none"
    kind = kind or rng.choice([kind for kind in KINDS if not in_turns or kind != "access"])
    simple = kind != "replicated" and rng.random() < 0.6
    named = [
        name
        for name, point in strategies.items()
        if kind_of(point) == kind and not point.restarts and not (in_turns and [*turn_conflicts(point)])
    ]
    modes = [mode for mode in MODES[kind] if not in_turns or (mode.gate == "none" and not mode.fetch_back)]
    routers, slots = rng.randint(1, 3), rng.randint(2, 4)
    shape = Shape(
        strategy=rng.choice(SIMPLE) if simple else rng.choice(named),
        mode=rng.choice(modes) if simple else None,  # of every step, instead of the strategy's own
        workload=workload or rng.choice(IN_TURNS if in_turns else WORKLOADS),
        routers=routers,
        slots=slots,
        begin_slots=rng.randint(1, slots),
        keys=rng.choice((30, 120)),
        chunk_bytes=rng.choice((200, 4000)),
        # Little room makes slots stop reading. A record that waits for its key takes 2 KiB, and a failing stream that
        # has one key at a time would take minutes for all of them.
        queue_bytes=rng.choice((2000 if kind != "access" else 16_000, 1 << 26)),
        frame_s=rng.choice((0.008, 0.015)),
        # By router, of any stage: how long its rows are on their way to slots, at the most.
        slow_s=tuple(rng.choice((0.0, 0.0, 0.01, 0.04)) for _ in range(routers)),
        batch_s=rng.choice((None, 0.25, 0.7)),  # None: one batch
        moves=rng.choice((0.0, 0.5, 1.0)),  # probability that slots change their processes between two batches
        zookeeper_s=rng.choice((0.0, 0.005, 0.03)),  # until a watch or an acknowledgement is there, at the most
        expires_s=rng.choice((None, None, 0.3)),  # between two sessions that expire, on average
        # Share of Flight's calls that fail before they have worked, and of those that do so after it.
        fails=rng.choice((0.0, 0.1, 0.2)),
        flight_s=rng.choice((0.0, 0.02, 0.1)),  # what a Flight call takes beside its work, at the most
        # Probability that the coordinator dies at a message that it sends or hears.
        leader_dies=rng.choice((0.0, 0.0, 0.05)),
        # Probability that a migration takes the place of the one before; half as often it only cancels it.
        overlaps=rng.choice((0.0, 0.3)),
        restarts=rng.random() < 0.15,  # with a savepoint and another number of slots, under load
        dies_at_s=rng.random() * 2 if rng.random() < 0.1 else None,  # when the query dies
        # Of a "worker" that is killed, or a "session" that a task has lost for good.
        dies_by=rng.choice(("worker", "session")),
        snapshot_s=rng.choice((0.0, 0.1, 0.3)),  # from one snapshot to the next; 0: none
        store_s=rng.choice((0.0, 0.0, 0.05, 0.3)),  # what it takes to write a segment of a snapshot, at the most
        store_fails=rng.choice((0.0, 0.0, 0.0, 0.1)),  # share of those segments that cannot be written
        query=rng.choice(QUERIES),  # of nexmark
        timed=rng.random() < 0.5,  # wordcount has windows; stock, which knows no time, is keyed by account
        slots_per_process=random.Random(f"processes {seed}").choice((1, 1, 2)),
        # Probability that Spark says goodbye to a process as soon as its slots are at their end.
        leaves=random.Random(f"goodbyes {seed}").choice((0.0, 0.5)),
        ordering=ordering,  # the order protocol in front of slots
        heartbeat_s=0.02,
        chain="counter,counter",  # the stages of chain
        slots_behind=0,  # of each stage behind the first; 0: as many as that has
        seconds=2.0,  # of load
        deadline_s=30.0,
        held_s=0.0,  # so long after the others one process of slots comes to its rows, in the second batch
    )
    if in_turns:  # what waits there is no reason to stop reading
        query = rng.choice([query for query in QUERIES if len(Nexmark(query=query).stages) == 1])
        stages = shape.workload == OF_STAGES_IN_TURNS  # they do not come to a snapshot at one epoch
        # A batch has to last longer than it takes to begin, which each stage does when all of its state is here: a job
        # that falls behind, by more with each batch, comes late to its savepoint, which is appointed.
        flight_s = min(shape.flight_s, QUICK_S) if stages else shape.flight_s
        own = {"batch_s": LONG_S} if shape.batch_s and (stages or flight_s > QUICK_S) else {}
        own |= {"snapshot_s": 0.0} if stages else {}
        pinned = {"queue_bytes": 1 << 26, "query": query, "flight_s": flight_s} | own | pinned
    assert pinned.keys() <= vars(shape).keys()
    vars(shape).update(pinned)
    return shape
