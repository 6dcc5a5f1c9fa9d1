"""Workloads: the computation, its input, and the results it must give. One file or folder each, one name here.

A workload is a pydantic model of its parameters, which users set by name. It consists of sources (run in the generator
process) and keyed stages, whose operators run on slots, and it judges results. The operator's code is the same under
every strategy; the oracle does not use it. ``contract`` says what each part promises.

One of a notebook's cell is ``define``d, and sent to the processes of a job as a parcel.
"""

from typing import TypeVar

from pydantic.fields import FieldInfo

from keyshift.parcel import packed, unpacked
from keyshift.registry import Registry
from keyshift.workloads.chain import Chain
from keyshift.workloads.contract import (
    ORIGIN,
    KeyedStage,
    Operator,
    Partition,
    Source,
    Workload,
    due,
    results_due,
    taken_names,
    untold,
    uses_time,
)
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.micro import Micro
from keyshift.workloads.nexmark import Nexmark
from keyshift.workloads.saas import Saas
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
    "model_of",
    "parameters",
    "parcel_of",
    "results_due",
    "taken_names",
    "untold",
    "uses_time",
    "workload",
    "workloads",
]

workloads: Registry[type[Workload]] = Registry("workload")
for known in (KeyCount, WindowCount, Chain, Micro, WordCount, Nexmark, Stock, Saas):
    workloads.register(known.name, known)


def parameters(workload: type[Workload]) -> dict[str, FieldInfo]:
    """Return what a user sets of a workload, by name: its fields, but not ``bins``."""
    fields: dict[str, FieldInfo] = workload.model_fields  # type: ignore[attr-defined]  # of pydantic
    return {name: field for name, field in fields.items() if name != "bins"}


W = TypeVar("W", bound=type[Workload])


def workload(model: W) -> W:
    """A decorator: from now on the class of a notebook's cell is known by its ``name``, here and in jobs.

    Raises BadInput if the name is no word, or belongs to the library.
    """
    workloads.define(model.name, model)
    return model


def parcel_of(model: type[Workload]) -> str:
    """Pack what ``model_of`` needs in another process beside the name: nothing if the library has it.

    Raises BadInput if it cannot be sent.
    """
    return packed(model, model.__module__, model.__name__) if model.name in workloads.defined() else ""


def model_of(name: str, parcel: str = "") -> type[Workload]:
    """The workload of this name, from its parcel if it has one. Raises BadInput if nobody knows it."""
    return unpacked(parcel) if parcel else workloads.get(name)
