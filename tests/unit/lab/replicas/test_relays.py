"""Connections of replica 0 go through a relay, and stand still while that is cut; nothing of them is lost."""

import contextlib
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_job import CONFIG

from keyshift.lab.replicas.relays import Relays
from keyshift.services.service import HOST, Route
from keyshift.wire.faults import parse


@pytest.fixture
def echo():
    """Where somebody listens who says all again that is said to him."""
    with socket.create_server((HOST, 0)) as server:

        def answer(connection):
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(1000):
                    connection.sendall(data)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()


def stack(**addresses):
    """With nodes at these addresses, by the kind of their service."""
    routes = [(kind, Route(0, at)) for kind, found in addresses.items() for at in found]
    nodes = [SimpleNamespace(kind=kind, route=lambda route=route: route) for kind, route in routes]
    return SimpleNamespace(alive=lambda: nodes)


@pytest.fixture
def relays(echo):
    made = Relays(stack(kafka=[echo], zookeeper=[echo, echo], minio=[echo]), {"kafka", "zookeeper"})
    yield made
    made.end()


def connected(address):
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def took_s(connection, word):
    """What an answer took; it is the right one."""
    begun = time.monotonic()
    connection.sendall(word)
    answer = b""
    while len(answer) < len(word):
        answer += connection.recv(1000)
    assert answer == word
    return time.monotonic() - begun


def longest_s(relays, connection):
    """What an answer took at the most, when the connection was cut off for a second; it is told of that meanwhile."""
    relays.cut(*parse("cut:kafka@4:1s"))
    begun, longest = time.monotonic(), 0.0
    while longest < 0.9 and time.monotonic() < begun + 2.0:
        longest = max(longest, took_s(connection, b"meanwhile"))
    return longest


def test_only_replica_0_goes_through_them(relays):
    config = replace(CONFIG, replica=0)
    mine = relays.seen_by(config)
    assert mine.endpoints.minio == config.endpoints.minio
    assert len({mine.endpoints.kafka, *mine.endpoints.zookeeper.split(",")}) == 3
    assert replace(mine, endpoints=config.endpoints) == config
    assert relays.seen_by(replace(config, replica=1)) == replace(config, replica=1)


def test_who_is_cut_off_from_one_service_waits_and_loses_nothing(relays):
    endpoints = relays.seen_by(replace(CONFIG, replica=0)).endpoints
    with connected(endpoints.kafka) as kafka, connected(endpoints.zookeeper.split(",")[1]) as zookeeper:
        took_s(kafka, b"before"), took_s(zookeeper, b"before")
        assert any(longest_s(relays, kafka) >= 0.9 for _ in range(15)), "a machine that stands still may miss one"
        relays.cut(*parse("cut:kafka@4:600s"))
        took_s(zookeeper, b"not cut off")
        with pytest.raises(TimeoutError):
            kafka.settimeout(0.5)
            while True:
                took_s(kafka, b"for long")


def test_whoever_cannot_be_reached_is_away_for_who_comes_through_them(echo):
    with socket.create_server((HOST, 0)) as nobody:
        free = nobody.getsockname()
    relays = Relays(stack(kafka=[free]), {"kafka"})
    try:
        with connected(relays.seen_by(replace(CONFIG, replica=0)).endpoints.kafka) as connection:
            assert connection.recv(1) == b""
    finally:
        relays.end()
