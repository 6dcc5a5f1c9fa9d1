"""What runs need, and that they are refused where it is not there: of one job, replicas, executors."""

import pytest

from keyshift.experiment.spec import make_spec
from keyshift.folders import MIB
from keyshift.model.errors import BadInput
from keyshift.place.needs import GIB, Needs, Resources, executors, moved_together, needs_of, require_needs, services
from keyshift.place.profile import Profile, SparkProfile, load_profile
from keyshift.state import backends

ALONE = make_spec({"keys": 1000, "state_bytes": 1024, "routers": 2, "slots": 2, "to_slots": 4})
# Of 2 routers, 2 slots.
SEVERAL = make_spec({"replicas": 3, "ordering": "live_robin", "keys": 1000, "state_bytes": 1024})
HERE, LARGE = Profile(), Resources(cpus=8, memory=64 * GIB, free=64 * GIB)
PODS = Profile(spark=SparkProfile(master="k8s://https://api", executors=2, cores=4, memory_overhead="512m"))


def test_memory_is_that_of_all_tasks_and_of_the_keys_that_exist_in_every_process():
    # 6 tasks know the keys, and so do the generator and the verdict; a payload is in one of them.
    assert needs_of(ALONE) == Needs(
        cores=6,
        processors=1,
        keys_bytes=1000 * (1024 + 32 * 8),
        slots_bytes=1000 * (1024 + 32 * 6),
        memory=(700 + 6 * 150) * MIB + 128 * 8192 + 1000 * (1024 + 32 * 8),
        verdict_bytes=(4 + 24) * 2000 * (230 + 260),
        servers=(),
    )


@pytest.fixture
def own_backends(registered):
    for name, where in (("shelf", {"files": True}), ("depot", {"server": "Depot"})):
        registered(backends, **{name: backends.get("memory")._replace(**where)})


def test_each_replica_has_tasks_and_state_of_its_own():
    needs = needs_of(SEVERAL)
    assert (needs.cores, needs.processors) == (12, 3)
    assert needs.keys_bytes == 3 * 1000 * (1024 + 32 * 4) + 1000 * 32 * 2
    assert needs.memory == 3 * ((700 + 4 * 150) * MIB + 128 * 8192) + needs.keys_bytes
    spare = needs_of(make_spec(SEVERAL.parameters() | {"spares": 2}))
    assert (spare.cores, spare.processors, spare.memory) == (12, 3, needs.memory + 2 * 700 * MIB)


@pytest.mark.parametrize(
    ("given", "keys_bytes", "servers"),
    [
        ({"backend": "rocksdb"}, 1000 * 32 * 8, ()),
        ({"backend": "shelf"}, 1000 * 32 * 8, ()),
        ({"backend": "hybrid"}, 1000 * (1024 + 32 * 8), ("Redis",)),
        ({"backend": "depot"}, 1000 * (1024 + 32 * 8), ("Depot",)),
        ({"exist": "once used", "skew": 0.0}, 0, ()),
        ({"workload": "nexmark", "keys": None, "state_bytes": None}, 0, ()),
    ],
)
def test_state_counts_where_it_is(own_backends, given, keys_bytes, servers):
    values = {"keys": 1000, "state_bytes": 1024} | given
    needs = needs_of(make_spec({name: value for name, value in values.items() if value is not None}))
    assert (needs.keys_bytes, needs.servers) == (keys_bytes, servers)


@pytest.mark.parametrize(("chain", "counters"), [("counter,map,counter", 2), ("map,map", 0)])
def test_each_counter_of_a_chain_has_all_payloads_and_a_map_has_none(chain, counters):
    given = {"workload": "chain", "chain": chain, "keys": 1000, "state_bytes": 1024}
    in_memory, in_files = (needs_of(make_spec(given | more)) for more in ({}, {"backend": "rocksdb"}))
    assert in_memory.slots_bytes - in_files.slots_bytes == counters * 1000 * 1024


def test_what_a_verdict_takes_is_told_and_nothing_is_refused_for_it():
    load = {"workload": "saas", "rate": 3e6, "rates": "control:1e6", "warmup_s": 30, "seconds": 200}
    spec = make_spec(load)
    assert needs_of(spec).verdict_bytes == 920 * 2 * GIB, "events of all sources, the warm-up included"
    in_parts = {"rate": 1e6, "warmup_s": 0, "seconds": 200, "key_groups": 1000, "skew": 0}
    frames = 2 * 200 * 50
    assert needs_of(make_spec(in_parts)).verdict_bytes == 200_000_000 * 100 + frames * 48, "on disk, but for latencies"
    skewed = (needs_of(make_spec(in_parts | {"skew": 3})).verdict_bytes - frames * 48) / 200_000_000
    assert skewed == pytest.approx(700 / 1.202, rel=1e-3), "one key group has most, and is judged at once"
    few = needs_of(make_spec(in_parts | {"seconds": 5, "trigger_s": 1})).verdict_bytes
    assert few == (700 << 20) + 2 * 5 * 50 * 48
    replicas, snapshots = {"replicas": 2, "ordering": "live_robin"}, {"verify": "snapshots", "snapshot_s": 1.0}
    for whole in ({"seconds": 4, "trigger_s": 1}, replicas, snapshots):
        events = 1_000_000 * whole.get("seconds", 200)
        assert needs_of(make_spec(in_parts | whole)).verdict_bytes == events * 230 + (260 << 20)
    require_needs(spec, HERE, Resources(cpus=2, memory=24 * GIB, free=24 * GIB))


def test_runs_one_after_the_other_need_the_most_of_each():
    both = needs_of(ALONE) | needs_of(SEVERAL)
    assert (both.cores, both.processors, both.memory) == (12, 3, needs_of(SEVERAL).memory)
    remote = needs_of(make_spec({"backend": "remote"}))
    assert (Needs() | remote | Needs(servers=("Depot", "Redis"))).servers == ("Redis", "Depot")


def test_units_that_a_slot_writes_for_longer_than_the_deadline_are_not_refused():
    """It says how much it has written, which is waited for."""
    require_needs(make_spec({"key_groups": 1 << 18, "slots": 2, "skew": 0.0, "deadline_s": 1}), HERE, LARGE)


ALL_AT_ONCE = {"strategy": "all_at_once", "key_groups": 1 << 20, "skew": 0.0, "deadline_s": 250}


def test_a_step_of_more_units_than_move_in_time_is_refused_with_the_number_that_do():
    with pytest.raises(BadInput, match=r"moves 524288 units, .* so 262 s, and deadline_s = 250; .* cap = 500000"):
        require_needs(make_spec(ALL_AT_ONCE), HERE, LARGE)
    require_needs(make_spec(ALL_AT_ONCE | {"cap": 500_000}), HERE, LARGE)
    require_needs(make_spec(ALL_AT_ONCE | {"deadline_s": 270}), HERE, LARGE)


@pytest.mark.parametrize(
    ("given", "units"),
    [
        ({"strategy": "all_at_once"}, 65536),
        ({"strategy": "all_at_once", "cap": 1000}, 1000),
        ({"strategy": "all_at_once", "then": "2"}, 65536),
        ({"strategy": "all_at_once", "trigger": "none"}, 0),
        ({"strategy": "fluid", "size": 700}, 700),
        ({"strategy": "chunked", "size": 700}, 1400),
        ({"strategy": "matched"}, 2),
        ({"strategy": "stop_restart"}, 0),
        ({"strategy": "all_at_once", "key_groups": 1 << 13, "unit": "bin", "bins": 16}, 65536),
    ],
)
def test_the_largest_step_is_known_before_anything_starts(given, units):
    spec = make_spec({"key_groups": 1 << 17, "skew": 0.0, "slots": 2, "to_slots": 4, "deadline_s": 100} | given)
    assert moved_together(spec) == units


def test_units_take_memory_and_as_many_as_there_is_room_for_are_named():
    spec = make_spec(ALL_AT_ONCE | {"deadline_s": 300, "keys": 1000})
    with pytest.raises(BadInput, match=r"lower .*, or key_groups to (\d+)$") as refused:
        require_needs(spec, HERE, Resources(cpus=2, memory=8 * GIB, free=8 * GIB))
    fit = make_spec(ALL_AT_ONCE | {"deadline_s": 300, "keys": 1000, "key_groups": int(str(refused.value).split()[-1])})
    require_needs(fit, HERE, Resources(cpus=2, memory=8 * GIB, free=8 * GIB))


def test_what_fits_is_not_refused():
    for spec in (ALONE, SEVERAL):
        needed = needs_of(spec).memory
        require_needs(spec, HERE, Resources(3, needed, needed))
    require_needs(ALONE, HERE, Resources(1, needs_of(ALONE).memory, free=0))  # who else has memory now may leave it
    require_needs(ALONE, PODS, Resources(1, 1, 1))  # it runs elsewhere
    assert needs_of(SEVERAL).cores > PODS.spark.executors * PODS.spark.cores
    require_needs(SEVERAL, PODS, Resources(1, 1, 1))  # each replica has executors of its own


MANY = make_spec({"keys": 1 << 20, "state_bytes": 1024})
HUGE = make_spec({"keys": 32_768_000_000, "skew": 0.0, "key_groups": 1 << 15})
CLUSTER = Profile(spark=SparkProfile(master="local-cluster"))
APART = load_profile("local-apart")


@pytest.mark.parametrize(
    ("spec", "place", "resources", "words"),
    [
        (SEVERAL, HERE, LARGE._replace(cpus=2), "each needs a processor at the least, so 3, and this machine has 2;"),
        (SEVERAL, HERE, LARGE._replace(free=GIB), r"3\.8 GiB of memory .* 1\.0 GiB are free; lower replicas, slots"),
        (ALONE, HERE, LARGE._replace(memory=GIB), r"1\.6 GiB of memory .* 1\.0 GiB are there; lower slots, routers"),
        (HUGE, HERE, LARGE, r"GiB of memory .* for keys, and 64\.0 GiB are there; .*keys = 32768000000, .*'once used'"),
        (SEVERAL, CLUSTER, LARGE, "each would have executors of its own on this machine, .* `--profile local`, or one"),
        (ALONE, APART, LARGE._replace(memory=4 * GIB), r"[45]\.\d GiB of .*GiB for \d executors, .*lower spark\.exec"),
        (make_spec({"to_slots": 7}), PODS, LARGE, r"the run has 9 routers and slots.* set spark\.executors to 3"),
        (MANY, PODS, LARGE, r"1\.2 GiB of keys in its slots .* have 1\.0 GiB for that; raise .*spark\.memory_overhead"),
    ],
)
def test_what_is_missing_is_named_with_what_is_there(spec, place, resources, words):
    with pytest.raises(BadInput, match=words) as refused:
        require_needs(spec, place, resources)
    assert "\n" not in str(refused.value)


def test_keys_that_are_in_a_server_need_no_room_in_executors(own_backends):
    require_needs(make_spec({"keys": 1 << 20, "state_bytes": 1024, "backend": "depot"}), PODS, LARGE)


def test_executors_and_services_are_those_of_the_profile():
    assert executors(HERE, Needs(9)) == "no executors, Spark in one process"
    assert executors(Profile(spark=SparkProfile(master="local-cluster", executors=2)), Needs(9)) == (
        "2 executors of 5 cores, processes of this machine, which take 1.1 GiB more"
    )
    assert executors(APART, Needs(9)) == "9 executors of 1 core, processes of this machine, which take 4.8 GiB more"
    assert executors(PODS, needs_of(SEVERAL)).startswith("3 of 6 executors of 4 cores in pods")
    spare = needs_of(make_spec(SEVERAL.parameters() | {"spares": 2}))
    assert executors(PODS, spare).startswith("3 of 10 executors"), "those of a spare stand idle, and are there"
    assert executors(PODS, Needs(7)).startswith(
        "2 of 2 executors of 4 cores in pods, each asking for 1 CPU, 1g and 512m"
    )
    embedded = [f"{name} (embedded, one node)" for name in ("Kafka", "ZooKeeper", "MinIO")]
    assert services(HERE, Needs(servers=("Redis",)), ("Flink",)) == [*embedded, "Redis", "Flink"]
    of_three = ["Kafka (embedded, 3 nodes)", "ZooKeeper (embedded, 3 nodes)", embedded[-1]]
    assert services(HERE.model_copy(update={"nodes": 3}), Needs()) == of_three
    elsewhere = {"kafka": "k:9092", "zookeeper": "z:2181", "minio": "m:9000"}
    told = services(Profile(services=elsewhere, spark=PODS.spark), Needs())
    assert told == ["Kafka at k:9092", "ZooKeeper at z:2181", "MinIO at m:9000", "Kubernetes at k8s://https://api"]
