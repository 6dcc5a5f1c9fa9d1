"""Where the services of a run are and how to sign in to them."""

import ssl
from dataclasses import dataclass, field
from typing import Any, Literal

Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True)
class SignIn:
    """How to sign in to Kafka. Without a mechanism of SASL: not at all."""

    mechanism: Mechanism = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: bool = False
    authority: str = ""  # of TLS, PEM: authority of the brokers' certificates; empty: those that the system trusts

    @property
    def _protocol(self) -> str:
        return f"{'SASL_' if self.mechanism else ''}{'SSL' if self.tls else 'PLAINTEXT'}"

    def client(self) -> dict[str, Any]:
        """Settings for kafka-python."""
        settings: dict[str, Any] = {"security_protocol": self._protocol}
        if self.mechanism:
            settings |= {"sasl_mechanism": self.mechanism}
            settings |= {"sasl_plain_username": self.user, "sasl_plain_password": self.password}
        if self.tls:
            settings["ssl_context"] = ssl.create_default_context(cadata=self.authority or None)
        return settings

    def c_client(self) -> dict[str, str]:
        """Settings for confluent-kafka."""
        settings = {"security.protocol": self._protocol}
        if self.mechanism:
            settings |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        if self.authority:
            settings["ssl.ca.pem"] = self.authority
        return settings

    def options(self) -> dict[str, str]:
        """Settings for Spark's source and sink."""
        options = {"kafka.security.protocol": self._protocol}
        if self.mechanism:
            module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
            who = f"username={_quoted(self.user)} password={_quoted(self.password)}"
            options["kafka.sasl.mechanism"] = self.mechanism
            options["kafka.sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {who};"
        if self.authority:
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": self.authority}
        return options


OPEN = SignIn()  # to a Kafka that asks nobody who they are


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where services are. Addresses are ``host:port``; of Kafka and ZooKeeper several, with commas between.

    Credentials never appear in ``repr``, results or notebooks.
    """

    kafka: str
    zookeeper: str
    minio: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    bucket: str = "keyshift"
    secure: bool = False  # TLS to MinIO
    sign_in: SignIn = OPEN  # to Kafka
    redis: str = ""  # for state, if there is one
    replication: int = 1  # how many brokers of Kafka have a copy of each record
