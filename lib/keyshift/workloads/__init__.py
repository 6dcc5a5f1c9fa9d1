"""Workloads: the computation, its input, and the results it must give. One folder each, one line here.

A workload is a pydantic model of its parameters, which users set by name. It consists of sources (run in the generator
process) and keyed stages, whose operators run on slots, and it judges results. The operator's code is the same under
every strategy; the oracle does not use it. ``contract`` says what each part promises.
"""

from pydantic.fields import FieldInfo

from keyshift.registry import Registry
from keyshift.workloads.chain import Chain
from keyshift.workloads.contract import ORIGIN, KeyedStage, Operator, Partition, Source, Workload, due, results_due
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.micro import Micro
from keyshift.workloads.nexmark import Nexmark
from keyshift.workloads.stock import Stock
from keyshift.workloads.windowcount import WindowCount
from keyshift.workloads.wordcount import WordCount

__all__ = [
    "ORIGIN",
    "KeyedStage",
    "Operator",
    "Partition",
    "Source",
    "Workload",
    "due",
    "parameters",
    "results_due",
    "workloads",
]

workloads: Registry[type[Workload]] = Registry("workload")
workloads.register(KeyCount.name, KeyCount)
workloads.register(WindowCount.name, WindowCount)
workloads.register(Chain.name, Chain)
workloads.register(Micro.name, Micro)
workloads.register(WordCount.name, WordCount)
workloads.register(Nexmark.name, Nexmark)
workloads.register(Stock.name, Stock)


def parameters(workload: type[Workload]) -> dict[str, FieldInfo]:
    """What a user sets of a workload, by name: its fields, but not ``bins``."""
    fields: dict[str, FieldInfo] = workload.model_fields  # type: ignore[attr-defined]  # of pydantic
    return {name: field for name, field in fields.items() if name != "bins"}
