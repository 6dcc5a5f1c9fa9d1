import ssl

import pytest

from certificate import CERTIFICATE
from keyshift.endpoints import OPEN, Endpoints, SignIn

SECURITY = "org.apache.kafka.common.security"


def test_a_kafka_that_asks_nobody_is_reached_as_ever_and_with_tls_the_broker_has_to_prove_who_it_is():
    assert OPEN.client() == {"security_protocol": "PLAINTEXT"}
    assert OPEN.options() == {"kafka.security.protocol": "PLAINTEXT"}
    system = SignIn(tls=True)
    assert system.options() == {"kafka.security.protocol": "SSL"}
    assert system.client()["ssl_context"].verify_mode == ssl.CERT_REQUIRED
    own = SignIn("PLAIN", "lab", "b", tls=True, authority=CERTIFICATE)
    assert own.client()["security_protocol"] == own.options()["kafka.security.protocol"] == "SASL_SSL"
    assert own.client()["ssl_context"].get_ca_certs()[0]["subject"] == ((("commonName", "keyshift"),),)
    assert own.options()["kafka.ssl.truststore.type"] == "PEM"
    assert own.options()["kafka.ssl.truststore.certificates"] == CERTIFICATE


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")]
)
def test_both_clients_are_told_the_same(mechanism, module):
    sign_in = SignIn(mechanism, "lab", 'a"b\\c')
    who = {"sasl_plain_username": "lab", "sasl_plain_password": 'a"b\\c'}
    assert sign_in.client() == {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism} | who
    login = f'{SECURITY}.{module} required username="lab" password="a\\"b\\\\c";'
    mechanisms = {"kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": login}
    assert sign_in.options() == {"kafka.security.protocol": "SASL_PLAINTEXT"} | mechanisms


def test_what_opens_a_door_is_not_shown():
    endpoints = Endpoints("k:1", "z:1", "m:1", "secret-a", "secret-b", sign_in=SignIn("PLAIN", "secret-c", "secret-d"))
    assert "secret" not in repr(endpoints)
    assert "PLAIN" in repr(endpoints)
