"""Who leads the slots of a replicated job now, and who has led them, as its order log has it."""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping

from keyshift.model import messages
from keyshift.model.keys import SlotId
from keyshift.ordering import Record
from keyshift.traffic.topics import Topic
from keyshift.wire.coordination import Coordination
from keyshift.wire.election import candidates


def leading(participant: Coordination, job: str, slots: Mapping[str, int], living: Container[int]) -> Counter[int]:
    """How many slots of ``job`` each of the ``living`` replicas leads now, by its number. ``slots``: see ``leaders``.
    ``participant``: of any replica.

    One that was killed stands until its session ends, so the first that lives counts: it leads then. Raises
    ServiceUnavailable.
    """
    led = Counter[int]()
    for stage, number in slots.items():
        for slot in range(number):
            stand = candidates(participant, job, stage, SlotId(slot))
            led.update([each for each in stand if each in living][:1])
    return led


def leaders(log: Topic, slots: Mapping[str, int]) -> str:
    """A line: by slot the replicas that have led, one term after the other, and how many records counted for nothing.
    ``slots``: of each stage by its name, in the order of the chain.

    A term behind the first one means that the leader before had died, had come to the end of its batch, got nothing any
    more, or was taken for dead: that one may have written what counts no more.
    """
    led: dict[int, list[str]] = defaultdict(list)
    terms: dict[int, int] = defaultdict(int)
    late = 0
    for slot, records in log.records():
        for each in records:
            record: Record = messages.decode(Record, each.value)
            if not record.number and record.term > terms[slot]:
                terms[slot] = record.term
                led[slot].append(each.key.decode())
            late += record.term < terms[slot]
    places = [f"{name} slot {slot}" for name, number in slots.items() for slot in range(number)]
    if len(slots) == 1:
        places = [f"slot {slot}" for slot in range(len(places))]
    by_slot = "; ".join(f"{places[slot]}: {', '.join(replicas)}" for slot, replicas in sorted(led.items()))
    return f"leaders, term by term: {by_slot}; records of terms that were over: {late}"
