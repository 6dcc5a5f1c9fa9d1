"""A Kafka that asks who one is: whole runs on the embedded broker with SASL on, in executors as pods are, and nothing
for who does not know.
"""

import dataclasses
import secrets

import pytest
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion
from pyspark.sql import SparkSession

from certificate import CERTIFICATE, KEY
from keyshift.driver.spark import ENCRYPTED
from keyshift.endpoints import OPEN, SignIn
from keyshift.experiment.spec import make_spec
from keyshift.lab.run import Lab
from keyshift.model.errors import ServiceUnavailable
from keyshift.place.profile import SparkProfile
from keyshift.services import stack as stack_module
from keyshift.services.jars import jars
from keyshift.services.kafka import Kafka
from keyshift.services.stack import Stack
from keyshift.traffic import topics
from own_stack import stopped_with_us
from small_run import at_night
from spark_workers import commands

PASSWORD = 'a "pass word" with \\ in it'
PLAIN, SCRAM = (SignIn(mechanism, "lab", PASSWORD) for mechanism in ("PLAIN", "SCRAM-SHA-512"))
RUN = make_spec(
    {"rate": 1000.0, "seconds": 5.0, "warmup_s": 1.0, "trigger_s": 2.0, "keys": 2000, "state_bytes": 64}
    | {"key_groups": 16, "strategy": "fluid_per_source", "batch_s": 5.0}
)


class Guarded(Kafka):
    """The embedded broker, with a listener for who signs in only."""

    def configure(self, program, ports, cancel):
        made = super().configure(program, ports, cancel)
        plain = PLAIN.options()["kafka.sasl.jaas.config"]
        user = plain.partition("password=")[2]
        settings = {
            "sasl.enabled.mechanisms": f"{PLAIN.mechanism},{SCRAM.mechanism}",
            "sasl.mechanism.inter.broker.protocol": PLAIN.mechanism,
            "listener.name.broker.plain.sasl.jaas.config": f"{plain[:-1]} user_lab={user}",
            "listener.name.broker.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
        file = self.home / "conf" / "kafka.properties"
        lines = [file.read_text().replace("BROKER:PLAINTEXT", "BROKER:SASL_PLAINTEXT")]
        lines += [f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items()]
        file.write_text("".join(lines))
        return made

    def check(self, port):
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}", bootstrap_timeout_ms=3000, **PLAIN.client())
        admin.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Endpoints of a stack whose Kafka knows one user, by name and password."""
    ports = {"kafka": 29292, "kafka_controller": 29293, "zookeeper": 22281, "minio": 29200}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_module, "Kafka", Guarded)
        stack = Stack(tmp_path_factory.mktemp("guarded"), ports)
    with stopped_with_us(stack):
        endpoints = stack.up()
        admin = KafkaAdminClient(bootstrap_servers=endpoints.kafka, **PLAIN.client())
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("lab", SCRAM.mechanism, PASSWORD)])
        admin.close()
        assert made == {"lab": None}
        yield endpoints


@pytest.fixture
def place(tmp_path):
    """Executors as in pods: all is encrypted, and what opens it is told in another way than by a command."""
    files = {"flight_certificate": CERTIFICATE, "flight_key": KEY}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return SparkProfile(master="local-cluster", conf=ENCRYPTED, **{name: str(tmp_path / name) for name in files})


@pytest.mark.parametrize("sign_in", [at_night(PLAIN), SCRAM])
@pytest.mark.usefixtures("no_other_spark")
def test_a_run_signs_in_and_nothing_can_be_read_on_the_wire_or_in_a_command(guarded, tmp_path, sign_in, place):
    endpoints = dataclasses.replace(guarded, sign_in=sign_in)
    with Lab(endpoints, jars("spark"), tmp_path, RUN.cores, lambda line: None, place) as cluster:
        manifest = cluster.run(RUN)
        secret = SparkSession.builder.getOrCreate().sparkContext.getConf().get("spark.authenticate.secret")
        seen = list(commands())
    assert manifest.status == "ok", manifest.verdict.examples
    assert sum("org.apache.spark.executor.CoarseGrainedExecutorBackend" in command for command in seen) == 2
    assert secret and secret not in str(seen) and "pass word" not in str(seen)
    assert "pass word" not in (tmp_path / "spark.log").read_text(errors="replace")
    assert "pass word" not in manifest.model_dump_json() + repr(endpoints)


@pytest.mark.parametrize(
    "sign_in", [OPEN, SignIn("PLAIN", "lab", "guess"), SignIn("SCRAM-SHA-512", "somebody", PASSWORD)]
)
def test_who_does_not_sign_in_or_not_rightly_is_refused_and_told_where(guarded, sign_in, monkeypatch):
    monkeypatch.setattr(topics, "ANSWER_MS", 1500)
    name = f"test-{secrets.token_hex(4)}"
    with pytest.raises(ServiceUnavailable, match=f"Kafka at {guarded.kafka}: creating topic '{name}' failed"):
        topics.Topic(guarded.kafka, name, sign_in=sign_in).create()
