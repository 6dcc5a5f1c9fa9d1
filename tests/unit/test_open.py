import socket

import pytest

from keyshift.errors import ServiceUnavailable
from keyshift.lab.open import open_services

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
