"""The presets: what the re-created systems and their comparators do, each as one point of the strategy space.

A preset's comment says what characterises the strategy and which setting of which system it stands for. The order is
that in which users see them.
"""

from keyshift.model.keys import Mode
from keyshift.planner.model import Strategy

_CHUNKS_OVER_COPIES = {
    "batch": "per_source",
    "size": 8,
    "replicate": 2,
    "copies": "periodic",
    "handover": "whole",
}

PRESETS = {
    # Nothing is served between the savepoint and the first result of the new query. What everybody has: Flink's native
    # rescale; Spark's stop, offline state repartition and restart.
    "stop_restart": Strategy(
        "savepoint, stop the query, start a new one from it",
        "the native rescale of Flink and Spark",
        mode=Mode(gate="query"),
    ),
    # The query stays up and other slots go on. Records of an affected slot wait upstream, also for units that stay.
    "pause_resume": Strategy(
        "routers hold the records of affected slots until everything has moved",
        "Trisk",
        mode=Mode(gate="router"),
    ),
    # As pause_resume, but records pile up in front of the slots that block.
    "order_unaware": Strategy(
        "affected slots block until everything has moved",
        "Meces' comparator Order-Unaware",
        mode=Mode(gate="slots"),
    ),
    # Shortest completion, and the most records that wait for their unit at the same time.
    "all_at_once": Strategy(
        "everything in one step, unaffected keys keep flowing", "Megaphone sudden; Spacker sync_keys=0"
    ),
    # Lowest spike, as only the records of one unit wait, and as many steps as units.
    "fluid": Strategy("one unit per step, ascending id", "Megaphone fluid", batch="global"),
    # The i-th leaving unit of every source makes the i-th step, so sources work side by side.
    "fluid_per_source": Strategy(
        "one unit of every source per step, ascending id", "Spacker sync_keys=1", batch="per_source"
    ),
    # No slot has more than one unit in hand per direction, as with fluid, in as many steps as the busiest slot has
    # moves: optimal edge colouring, where Megaphone's 'batched' matches repeatedly.
    "matched": Strategy(
        "at most one unit per source and destination, fewest steps", "Megaphone batched", batch="matched"
    ),
    # ``size`` chooses a point between fluid_per_source and all_at_once. Orders id, reverse and random are Spacker's.
    "chunked": Strategy("a chunk of units of every source per step", "Spacker sync_keys=4", batch="per_source", size=4),
    # What most records want is where it should be soonest. Spacker takes the ids for ranks; here heat is measured.
    "hot_first": Strategy(
        "a chunk of units of every source per step, by measured heat",
        "Spacker, key prioritisation",
        order="hottest",
        batch="per_source",
        size=4,
    ),
    # Hand-over in proportion to the dirty bytes, paid for by copying all the time. Spacker resends a dirty unit whole
    # (``handover = whole``) and pushes to all nodes.
    "replicated": Strategy(
        "every second key group is copied before, moves send what changed",
        "Spacker replicate_keys_filter=2",
        replicate=2,
        copies="periodic",
    ),
    # Costs the most copying, as nobody knows yet what will move later. Rhino moves an instance to a worker that has its
    # copy. Here the copy of a unit that moves is made where it goes: ahead in a run, which knows its migrations, and by
    # a live job when one is requested. If a slot dies, the job goes on from a snapshot, not from copies. As re-created
    # for Meces it copies each 60 s, along a ring of 3; here one copy is brought up to date every ``copy_every_s``,
    # which is of the job.
    "rhino": Strategy(
        "everything is copied, to where it goes or along a ring, moves send what changed",
        "Rhino",
        replicate=1,
        copies="periodic",
        holders="ring",
    ),
    # Hot keys move first because they are asked for first; during alignment a bin may travel back for a late record.
    # Meces with num_bins = 16, batch_size = 8, max_fetch_times = 2, fetch_interval_ms = 3. Its gradual migration
    # switches at most one key group (16 bins) of each source at a time, and at most 8 groups in all.
    "meces": Strategy(
        "bins are fetched by the records that need them, others follow behind",
        "Meces",
        order="access",
        batch="per_source",
        size=16,
        cap=128,
        unit="bin",
        bins=16,
        mode=Mode(transfer="fetch", fetch_back=2, fetch_interval_ms=3),
    ),
    # No downtime, and nothing moves that nobody asks for. Old owners serve until then, and may never be free. From a Go
    # runtime with decoupled compute and storage.
    "lazy": Strategy(
        "a key moves with the first record that needs it",
        "lazy migration, decoupled compute and storage",
        order="access",
        unit="key",
        mode=Mode(transfer="access", background=False),
    ),
    # Nothing moves, and every first use of a key pays a round trip; with ``background`` keys migrate as well. The same
    # runtime's useHybrid; its useMigrate is ``background``. Its useCache remembers where a key is, which an assignment
    # says here anyway: ``cache`` keeps values.
    "hybrid": Strategy(
        "keys stay and are used by remote access, with a cache",
        "hybrid state, decoupled compute and storage",
        order="access",
        unit="key",
        mode=Mode(transfer="remote", background=False, cache=True),
    ),
    # All at once first, then chunks over copies of every second key group, of which a dirty one is sent whole. The
    # scenario 'dynamic' of Spacker: sync_keys 0 and filter 0, changePlan(8, 2, 'random'), changePlan(8, 2, 'default').
    "spacker_dynamic": Strategy(
        "all at once, then chunks over copies: another plan for each migration",
        "Spacker changePlan",
        by_migration=({"batch": "all"}, {**_CHUNKS_OVER_COPIES, "order": "random"}, _CHUNKS_OVER_COPIES),
    ),
    # Re-routing does not wait for the transfer, and records of a unit that is not there yet wait in its queue while all
    # others are served. A sub-scale is a step of ``size`` units: routes of all units cannot switch at once and their
    # state still come in several steps. DRRS (2025), as recalled from the paper.
    "drrs": Strategy(
        "sub-scales: routes switch first, units come as records need them",
        "DRRS",
        order="access",
        batch="global",
        size=16,
        mode=Mode(transfer="fetch"),
    ),
}
