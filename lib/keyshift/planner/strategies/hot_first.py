"""Some units of every source at a time, the busiest first.

Characteristic: what most records want is where it should be soonest; needs the measured heat. Source: Spacker's key
prioritisation, which assumes the ids to be ranks; here heat is measured.
"""

from keyshift.planner.model import Strategy

STRATEGY = Strategy(
    "a chunk of units of every source per step, by measured heat",
    "Spacker, key prioritisation",
    order="hottest",
    batch="per_source",
    size=4,
)
