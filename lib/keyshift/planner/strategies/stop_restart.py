"""Stop the query with a durable snapshot and start it anew at the other parallelism."""

from keyshift.planner.model import Strategy
from keyshift.planner.strategies.all_at_once import propose

STRATEGY = Strategy(
    "savepoint, stop the query, start a new one from it",
    "the native rescale of Flink and Spark",
    propose,
    restarts=True,
)
