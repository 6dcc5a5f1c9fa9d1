"""Stop the query with a durable snapshot and start it anew at the other parallelism.

Characteristic: nothing is served between the savepoint and the first result of the new query. What everybody has.
Source: the native rescale of Flink; Spark's stop, offline state repartition and restart.
"""

from keyshift.keys import Mode
from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "savepoint, stop the query, start a new one from it",
    "the native rescale of Flink and Spark",
    mode=Mode(gate="query"),
)
