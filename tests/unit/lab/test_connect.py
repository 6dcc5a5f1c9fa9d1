import socket

import pytest

from keyshift.errors import BadInput, ServiceUnavailable
from keyshift.lab import connect as module
from keyshift.lab.connect import open_lab, open_services
from keyshift.lab.spec import make_spec

PROFILE = "services: {{kafka: '{kafka}', zookeeper: '{open}', minio: '{open}'}}"


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name in ("KEYSHIFT_ACCESS_KEY", "KEYSHIFT_SECRET_KEY"):
        monkeypatch.setenv(name, "secret")


def test_services_of_a_profile_are_used_and_none_is_started(tmp_path, listening):
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.format(kafka=listening, open=listening))
    with open_services(str(profile)) as endpoints:
        assert endpoints.kafka == endpoints.minio == listening


@pytest.mark.parametrize("kafka", ["127.0.0.1:1", "no-such-host.invalid:9092", "127.0.0.1:99999"])
def test_a_service_that_cannot_be_reached_is_named_with_its_address(tmp_path, listening, kafka):
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.format(kafka=kafka, open=listening))
    with pytest.raises(ServiceUnavailable, match=f"kafka at {kafka} cannot be reached"), open_services(str(profile)):
        pass


def test_runs_of_one_lab_cannot_have_different_masters_and_nothing_is_started_to_find_out(monkeypatch):
    class Began(Exception):
        pass

    def begin():
        raise Began

    monkeypatch.setattr(module, "require_java", begin)
    here, cluster = make_spec({"master": "local"}), make_spec({"master": "local-cluster"})
    with (
        pytest.raises(BadInput, match=r"master = local and local-cluster: .* open a lab for each"),
        open_lab([here, cluster, here]),
    ):
        pass
    with pytest.raises(Began), open_lab([cluster, cluster]):
        pass
