"""What the seed of a chain of drivers decides before it begins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from places import AT_A_STOP, CALLS, NEEDS_NO_ROOM, WRITES, Fault
from shape import Shape, draw

ENDS = ("kill", "pause", "interrupt", "stop")
DOES = ("die", "die", "die", "pause", "stall", "stall", "fail", "interrupt")
MOST_LIVES = 3  # before the last one


@dataclass(frozen=True)
class Life:
    """Of one driver. ``ends``: what becomes of it after ``seconds``, unless one of its ``faults`` ends it before. With
    ``runs`` they count from when its job does, however slow the machine is.

    ``twice``: two resumes begin it at once. ``woken_s``: a paused one goes on so long after the next one was resumed.
    ``half``: only the driver's own process is paused, and Spark and generator go on. ``forgets_s``: it ends so much
    later, and what ZooKeeper has confirmed meanwhile is lost then, as the machine of both has gone down. ``loses_s``:
    likewise, events that Kafka has confirmed.
    """

    seconds: float
    ends: str
    faults: tuple[Fault, ...] = ()
    twice: bool = False
    woken_s: float = 0.0
    half: bool = False
    runs: bool = False
    forgets_s: float = 0.0
    loses_s: float = 0.0

    def __str__(self) -> str:
        also = "".join(f", {name}" for name in ("twice", "half", "runs", "forgets_s", "loses_s") if getattr(self, name))
        return f"{self.seconds:.2f} s, then {self.ends}{also}; {'; '.join(map(str, self.faults)) or 'no fault'}"


@dataclass(frozen=True)
class Chain:
    """The job, in ``shape``, and the drivers that it has, one after the other. The last one is to stop it."""

    shape: Shape
    lives: tuple[Life, ...]
    rate: float
    requests_s: float  # between two of them, on average
    answer_s: float = 8.0  # in which a driver answers

    def values(self) -> dict[str, Any]:
        """Of the spec of the job."""
        shape = self.shape
        given = {name: value for name, value in shape.parameters.items() if name != "bins"}
        return given | {
            "workload": shape.workload,
            "strategy": shape.strategy,
            "routers": shape.routers,
            "slots": shape.begin_slots,
            "slots_max": shape.slots,
            "rate": self.rate,
            "frame_ms": shape.frame_s * 1000,
            "deadline_s": shape.deadline_s,
            "snapshot_s": shape.snapshot_s,
            "chunk_bytes": max(1024, shape.chunk_bytes),
            "queue_bytes": max(1 << 16, shape.queue_bytes),
            "recoveries": 10,
            "catch_up_s": 20.0,
            "warmup_s": 0.0,
        }

    def __str__(self) -> str:
        lives = "\n".join(f"  life {number}: {life}" for number, life in enumerate(self.lives))
        return f"{self.shape}\nrate {self.rate:g}/s, a request every {self.requests_s:g} s\n{lives}"


def draw_fault(rng: random.Random, deadline_s: float, does: Sequence[str], calls: Sequence[str], first: bool) -> Fault:
    """Any, at any call. ``first``: of the first driver."""
    what = rng.choice(does)
    known = calls or (CALLS if what in ("stall", "fail") else WRITES)
    call = rng.choice([call for call in known if first or call != "kafka create"])
    if what == "fail" and call == NEEDS_NO_ROOM:
        call = "disk replace"
    nth = rng.randrange(CALLS[call])
    seconds = {"stall": rng.choice((0.1, 0.3, deadline_s * 1.2)), "fail": rng.choice((0.0, 0.0, 0.3))}.get(what, 0.0)
    return Fault(what, call, nth, what in ("die", "fail", "pause") and rng.random() < 0.5, seconds)


def draw_chain(
    seed: int,
    lives: tuple[Life, ...] | None = None,
    rate: float | None = None,
    requests_s: float | None = None,
    answer_s: float = 8.0,
    ends: Sequence[str] = ENDS,
    does: Sequence[str] = DOES,
    calls: Sequence[str] = (),
    **pinned: Any,
) -> Chain:
    """A job and its drivers. The fields of a ``Chain`` and those of the shape (see ``shape.draw``) may be given instead
    of drawn; ``ends``, ``does`` and ``calls``: of which ends of lives and faults are drawn.
    """
    rng = random.Random(f"chain {seed}")
    drawn = {
        "snapshot_s": rng.choice((0.05, 0.1, 0.2)),
        "deadline_s": rng.choice((0.6, 2.0, 5.0)),
        "leader_dies": 0.0,
        "restarts": False,
        "dies_at_s": None,
        "fails": rng.choice((0.0, 0.0, 0.05)),
        "flight_s": 0.0,
    }
    if rng.random() < 0.1:
        drawn |= {"strategy": "stop_restart", "kind": "push"}
    shape = draw(seed, **{**drawn, **pinned})

    def life(number: int) -> Life:
        count = rng.choice((0, 1, 1, 2)) if does else 0
        faults = tuple(draw_fault(rng, shape.deadline_s, does, calls, number == 0) for _ in range(count))
        end = rng.choice(ends)
        return Life(
            seconds=0.1 + rng.random() * 0.6,
            ends="stop" if any(fault.call in AT_A_STOP for fault in faults) else end,
            faults=faults,
            twice=rng.random() < 0.25,
            woken_s=rng.choice((0.0, 0.1, 0.4)),
            half=rng.random() < 0.2,
        )

    some = tuple(life(number) for number in range(rng.randint(1, MOST_LIVES)))
    stands = any("pause" in (each.ends, *(fault.does for fault in each.faults)) for each in some)
    if not stands:  # whoever stands has a machine of its own
        down = random.Random(f"down {seed}")
        lost = [down.choice((0.0, 0.0, 0.1, 0.3)) if each.ends == "kill" else 0.0 for each in some]
        some = tuple(replace(each, forgets_s=s, loses_s=s) for each, s in zip(some, lost, strict=True))
    drawn_rate, drawn_requests_s = rng.choice((200.0, 500.0)), rng.choice((0.05, 0.15))
    rates = rate or drawn_rate, requests_s or drawn_requests_s
    return Chain(shape, some if lives is None else lives, *rates, answer_s)
