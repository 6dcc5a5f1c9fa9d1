"""Bad days of the real ZooKeeper: sessions that expire, answers that are lost, a server that is away, long values."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from kazoo.client import KazooState

import waits
from keyshift.endpoints import Endpoints
from keyshift.lab.live import presence
from keyshift.lab.live.presence import Presence
from keyshift.model.errors import Deposed, RunsElsewhere, ServiceUnavailable
from keyshift.progress import silent
from keyshift.services.embedded import is_free
from keyshift.services.zookeeper import ZooKeeper
from keyshift.wire import client, coordination, tree
from keyshift.wire import session as module
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ALL, DRIVERS, Folder, Node, of_job
from keyshift.wire.tree import PART_BYTES

DEADLINE_S = 150.0
until = partial(waits.until, within_s=DEADLINE_S)


class Server:
    """A ZooKeeper that a test may kill and start again: same port, same data. The port is below those that connections
    get: one of them could have it meanwhile. ``number``: of the worker of pytest, each of which has others.
    """

    def __init__(self, home: Path, number: int) -> None:
        self.home, self.service = home, ZooKeeper(home)
        self.port = next(filter(is_free, range(27_181 + number, 28_000, 10)))
        self.hosts = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        never = threading.Event()
        command, env = self.service.configure(self.service.fetch(silent, never), {"zookeeper": self.port}, never)
        with open(self.home / "zookeeper.log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.home, env=env, stdout=log, stderr=log)
        until(self.answers)

    def answers(self) -> bool:
        try:
            self.service.check(self.port)
        except (OSError, ServiceUnavailable):
            return False
        return True

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a machine that is busy it takes half a minute until the server has started anew."""
    for each in (coordination, client, module, tree):
        monkeypatch.setattr(each, "GIVE_UP_S", 120.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory, worker_id):
    number = int(worker_id.removeprefix("gw") if worker_id != "master" else 0)
    server = Server(tmp_path_factory.mktemp("zookeeper"), number)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def join(server, request):
    """Makes another participant of the test's own job."""
    if not server.answers():
        server.start()
    made = []

    def participant():
        made.append(Coordination(server.hosts, f"/{request.node.name}"))
        made[-1].begin()
        return made[-1]

    yield participant
    if not server.answers():
        server.start()
    for each in made:
        each.close()


def node(path):
    """Of any kind."""
    return Node(path, Any)


def folder(path):
    """Of such nodes."""
    return Folder(path, {"": Any})


def sizes(client, node):
    """Of the data of a node and of all below it."""
    found = [len(client.get(node)[0])]
    return found + [size for name in client.get_children(node) for size in sizes(client, f"{node}/{name}")]


@pytest.fixture
def begun(join, sessions):
    """See ``sessions``. What was begun ahead and nobody has taken ends."""
    yield sessions
    join().close()


def tell(client, *states):
    """As kazoo does when its connection changes."""
    for state in states:
        for listener in [*client.state_listeners]:
            listener(state)


def test_who_gets_another_session_is_registered_and_hears_everything_as_before(join, begun, expire):
    slot, other = join(), join()
    mine, client = begun
    heard, names = [], []
    slot.register(node("slots/1"), {"address": "here"})
    slot.watch(node("steps"), heard.append)
    slot.watch_children(folder("acks"), names.append)
    before = mine.client_id
    expire(mine)
    until(lambda: other.read(node("slots/1")) == {"address": "here"})
    assert client.exists(f"{other.root}/slots/1").owner_session_id == mine.client_id[0] != before[0]
    other.publish(node("steps"), {"version": 2})
    other.acknowledge(node("acks/one"), {})
    until(lambda: heard == [{"version": 2}] and ["one"] in names)


@pytest.mark.parametrize("gone", [True, False], ids=["folder goes", "folder stays"])
def test_a_watch_that_was_ended_leaves_nothing_behind(join, begun, gone):
    slot = join()
    [client] = begun
    before = len(client.state_listeners)
    end = slot.watch_children(folder("acks/2"), print)
    if gone:
        slot.withdraw(folder("acks/2"))
    end()
    assert len(client.state_listeners) == before


def test_a_session_may_be_begun_before_the_next_participant_needs_it(join, begun):
    join().close(prepare_next=True)
    assert len(begun) == 2
    second = join()
    assert len(begun) == 2, "it has the one that was begun ahead"
    third = join()
    assert len(begun) == 3
    second.register(node("slots/1"), {"address": "here"})
    assert third.read(node("slots/1")) == {"address": "here"}
    second.close()
    assert third.read(node("slots/1")) is None


def test_a_session_that_was_begun_ahead_is_renewed_if_its_connection_is_lost_meanwhile(server, join, begun):
    join().close(prepare_next=True)
    [_, ahead] = begun
    until(lambda: ahead.connected)
    server.kill()
    until(lambda: not ahead.connected)
    server.start()
    second = join()
    second.publish(node("steps"), {"version": 2})
    assert len(begun) == 2 and second.read(node("steps")) == {"version": 2}


def test_a_session_for_another_job_ends_when_one_is_begun_for_this_job(server, join, begun):
    Coordination(server.hosts, "/jobs/other", "secret").close(prepare_next=True)
    [_, other] = begun
    until(lambda: other.connected)
    first = join()
    assert len(begun) == 3
    first.close(prepare_next=True)
    assert len(begun) == 4 and not other.connected


def test_what_was_withdrawn_is_not_registered_again(join, begun, expire):
    slot, other = join(), join()
    slot.register(node("slots/1"), {"address": "here"})
    slot.register(node("slots/2"), {"address": "here"})
    slot.withdraw(folder("slots/1"))
    expire(begun[0])
    until(lambda: other.read(node("slots/2")))
    assert other.children(folder("slots")) == ["2"]


def test_acknowledgements_arrive_though_the_connection_is_lost_while_they_are_under_way(server, join, begun):
    slot, other = join(), join()
    slot.acknowledge(node("acks/2/first"), 0)
    until(lambda: other.children(folder("acks/2")))
    server.freeze()
    for number in range(3):
        slot.acknowledge(node(f"acks/2/frozen-{number}"), number)
    time.sleep(0.2)  # for them to be sent
    server.kill()
    until(lambda: begun[0].state == KazooState.SUSPENDED)
    slot.acknowledge(node("acks/2/suspended"), 3)
    server.start()
    wanted = {"first": 0, "frozen-0": 0, "frozen-1": 1, "frozen-2": 2, "suspended": 3}
    until(lambda: other.read_below(folder("acks/2")) == wanted)
    slot.check()


def test_acknowledgements_arrive_though_the_session_expires_while_they_are_under_way(join, begun, expire):
    slot, other = join(), join()
    done = threading.Event()

    def acknowledge():
        for number in range(300):
            slot.acknowledge(node(f"acks/{number % 7}/{number}"), number)
            time.sleep(0.002)
        done.set()

    threading.Thread(target=acknowledge, daemon=True).start()
    while not done.is_set():
        expire(begun[0])
    slot.close()
    below = (other.read_below(folder(f"acks/{name}")) for name in other.children(folder("acks")))
    found = [number for some in below for number in some.values()]
    assert sorted(found) == list(range(300))


def test_an_acknowledgement_whose_answer_is_lost_is_confirmed_and_the_first_one_counts(join, begun, monkeypatch):
    slot, other = join(), join()
    other.publish(node("acks/2/before"), {})
    client = begun[0]
    create = client.create_async
    client.create_async = lambda *given: create(*given) and Mock()  # whoever waits for an answer gets none
    slot.acknowledge(node("acks/2/one"), {"at": 1})
    until(lambda: "one" in other.children(folder("acks/2")))
    slot.acknowledge(node("acks/2/one"), {"at": 2})
    with monkeypatch.context() as patch, pytest.raises(ServiceUnavailable, match="did not answer within 0 s"):
        patch.setattr(coordination, "GIVE_UP_S", 0)
        slot.publish(node("behind"), {})  # waits until that is confirmed
    client.create_async = create
    tell(client, KazooState.CONNECTED)
    slot.publish(node("behind"), {})
    slot.acknowledge(node("acks/2/one"), {"at": 3})
    slot.publish(node("behind"), {})
    assert other.read_below(folder("acks/2")) == {"before": {}, "one": {"at": 1}}


def test_who_closes_waits_until_what_was_acknowledged_is_there(server, join):
    slot, other = join(), join()
    server.freeze()
    slot.acknowledge(node("acks/2/last"), {})
    closing = threading.Thread(target=slot.close)
    closing.start()
    server.kill()
    server.start()
    closing.join(DEADLINE_S)
    assert other.children(folder("acks/2")) == ["last"]


def test_what_is_published_while_the_server_is_away_is_there_when_it_is_back(server, join):
    coordinator, other = join(), join()
    heard = []
    other.watch(node("assignment"), heard.append)
    coordinator.publish(node("assignment"), {"version": 1})
    until(lambda: heard)
    server.freeze()
    publishing = threading.Thread(target=coordinator.publish, args=(node("assignment"), {"version": 2}))
    publishing.start()
    time.sleep(0.2)  # for it to be sent
    server.kill()
    time.sleep(3)  # so that kazoo's attempts to connect are refused now and then
    assert publishing.is_alive()
    server.start()
    publishing.join(DEADLINE_S)
    assert other.read(node("assignment")) == {"version": 2}
    until(lambda: heard[-1] == {"version": 2})


def test_a_server_that_is_away_for_too_long_is_given_up_loudly(server, join, monkeypatch):
    monkeypatch.setattr(module, "GIVE_UP_S", 1.0)
    slot = join()
    slot.watch(node("assignment"), lambda value: None)
    server.kill()
    raised = []

    def publish():
        with pytest.raises(ServiceUnavailable, match="was away for 1 s"):
            slot.publish(node("handover/1"), {})
        raised.append(True)

    waiting = threading.Thread(target=publish)
    waiting.start()
    waiting.join(DEADLINE_S)
    assert raised == [True]
    server.start()
    for call in (
        slot.check,
        lambda: slot.acknowledge(node("acks/2/prepared-1"), {}),
        lambda: slot.publish(node("assignment"), {}),
        lambda: slot.read(node("assignment")),
        lambda: slot.watch(node("assignment"), print),
        lambda: slot.watch_children(folder("acks"), print),
        lambda: slot.register(node("slots/1"), {}),
    ):
        with pytest.raises(ServiceUnavailable, match="was away for 1 s"):
            call()


def test_a_server_that_ends_the_session_and_dies_is_given_up_too(join, begun, monkeypatch):
    monkeypatch.setattr(module, "GIVE_UP_S", 1.0)
    slot = join()
    tell(begun[0], KazooState.SUSPENDED, KazooState.LOST)
    with pytest.raises(ServiceUnavailable, match="was away"):
        until(slot.check)


RNG = random.Random(1)
LONG = [[unit, unit % 7, RNG.randbytes(16).hex()] for unit in range(60_000)]  # 1.2 MB when it is compressed


def test_values_of_any_size_are_published_watched_and_read(join, begun):
    coordinator, slot = join(), join()
    heard = []
    slot.watch(node("steps"), lambda value: heard.append(len(value)))
    coordinator.publish(node("steps"), LONG)
    assert slot.read(node("steps")) == LONG
    coordinator.publish(node("steps"), LONG[:50_000])
    coordinator.publish(node("steps"), LONG[:10])
    assert slot.read(node("steps")) == LONG[:10]
    until(lambda: heard and heard[-1] == 10)
    assert slot.children(folder("parts")) == [], "what was overwritten is gone"
    coordinator.publish(node("plan"), LONG)
    assert PART_BYTES >= max(sizes(begun[1], slot.root)) > PART_BYTES / 2


def test_acknowledgements_of_any_size_are_there_with_all_their_parts(join, begun, expire):
    slot, coordinator = join(), join()
    whole = []

    def changed(names):
        whole.extend(coordinator.read_below(folder("acks/2")).values() if names else [])

    watching = threading.Thread(target=coordinator.watch_children, args=(folder("acks/2"), changed))
    slot.acknowledge(node("acks/2/installed-1"), LONG)
    watching.start()
    expire(begun[0])
    until(lambda: whole)
    watching.join()
    assert whole == [LONG]
    assert PART_BYTES >= max(sizes(begun[0], slot.root)) > PART_BYTES / 2
    coordinator.withdraw(folder("acks"))
    assert coordinator.children(folder("parts")) == []


def test_a_reader_of_a_value_that_is_overwritten_all_the_time_gets_one_of_them_whole(join):
    coordinator, slot = join(), join()
    coordinator.publish(node("steps"), LONG)
    over = threading.Event()

    def overwrite():
        number = 0
        while not over.is_set():
            number += 1
            coordinator.publish(node("steps"), LONG[: 30_000 + number])

    writing = threading.Thread(target=overwrite)
    writing.start()
    try:
        for _ in range(10):
            value = slot.read(node("steps"))
            assert value == LONG[: len(value)] and len(value) >= 30_000
    finally:
        over.set()
        writing.join()


def test_what_a_task_acknowledges_late_when_the_job_is_removed_leaves_nothing_behind(join, begun):
    driver, task = join(), join()
    task.acknowledge(node("acks/1/prepared-0"), {})
    until(lambda: driver.children(folder("acks/1")))
    driver.withdraw(ALL)
    task.acknowledge(node("acks/2/prepared-1"), {"some": "value"})
    with pytest.raises(ServiceUnavailable, match=r"refused /.*/acks/2/prepared-1"):
        task.publish(node("behind"), {})
    assert begun[0].exists(driver.root) is None


def test_a_driver_that_was_paused_beyond_its_session_is_deposed_when_it_wakes(server, join, sessions, expire, request):
    nodes, job = join(), request.node.name
    epoch = nodes.claim(job, first=True)
    with contextlib.closing(Coordination(server.hosts, f"/keyshift/{job}/0/counter", "", epoch)) as old:
        old.begin()
        old.publish(node("assignment"), {"version": 1})
        paused = sessions[-1]
        nodes.claim(job)
        expire(paused)
        with pytest.raises(Deposed):
            old.publish(node("assignment"), {"version": 2})


def test_who_drives_a_job_is_seen_in_each_of_its_sessions_until_its_end(server, sessions, expire, monkeypatch, request):
    monkeypatch.setattr(presence, "WAIT_S", 0.5)
    job = request.node.name
    driver, other = (Presence(Endpoints("", server.hosts, "", "", ""), job, "secret") for _ in range(2))
    other.await_none(silent)
    driver.begin(first=True)
    expire(sessions[-1])
    with contextlib.closing(Coordination(server.hosts, of_job(job), "secret")) as nodes:
        until(lambda: nodes.children(DRIVERS))
        with pytest.raises(RunsElsewhere, match=f"ZooKeeper hears process {os.getpid()} of host .* runs elsewhere"):
            other.await_none(silent)
        driver.end()
        other.await_none(silent)
        nodes.withdraw(ALL)
