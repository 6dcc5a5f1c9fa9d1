"""SaaS monitoring: who shares documents publicly. Two sources: what consumers of a service do, and rules that say what
is to raise an alert.

Rules of a customer are joined with the customer's documents; global rules go to a copy for each key of the next stage,
where what both find is united, qualified by a JSON path, and alerts are raised once each; then they are counted by
employee. Written from the published description of the application that KaZoo and LiveRobin were measured with.
"""

from functools import cached_property, partial
from typing import ClassVar

from pydantic import Field, model_validator

from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.keyed import Grouped
from keyshift.workloads.saas import oracle, stages
from keyshift.workloads.saas.source import CONSUMER, CONTROL, ConsumerPartition, ControlPartition, documents, rules


class Saas(Grouped):
    """Parameters of the workload. A key exists as soon as something of it has come."""

    name: ClassVar[str] = "saas"
    summary: ClassVar[str] = "alerts about documents that are shared publicly: events joined with rules of two sources"
    skew: ClassVar[float] = 0.0  # every customer is as likely as every other one

    customers: int = Field(default=250, ge=1, le=1_000_000, description="number of customers")
    employees: int = Field(default=10_000, ge=1, le=1_000_000, description="employees of each customer")
    document_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of consumer events about documents; all others are filtered out",
    )
    global_share: float = Field(
        default=0.2, ge=0, le=1, description="share of control events that are rules for all customers"
    )
    alerts: int = Field(default=8, ge=1, le=1000, description="number of different alerts that rules may raise")
    spread: int = Field(
        default=32, ge=1, le=1 << 15, description="keys of the qualifier; a global rule has a copy for each of them"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Saas":
        if self.spread > self.customers:
            raise ValueError(f"spread = {self.spread}: must be at most customers = {self.customers}")
        return self

    @property
    def sources(self) -> tuple[Source, ...]:
        """What consumers do, and the rules. The rate of the latter is the published one of a second source."""
        return (
            Source(
                "consumer",
                CONSUMER,
                partial(ConsumerPartition, self),
                map=documents,
                drawn_with=("seed", "customers", "employees", "document_share"),
            ),
            Source(
                "control",
                CONTROL,
                partial(ControlPartition, self),
                map=partial(rules, self.spread),
                rate=5.0,
                drawn_with=("seed", "customers", "global_share", "alerts"),
            ),
        )

    @cached_property
    def stages(self) -> tuple[KeyedStage, ...]:  # type: ignore[override]
        """The join with rules, the qualifier, and the counter."""
        return stages.chain(self)

    wrong = oracle.wrong
