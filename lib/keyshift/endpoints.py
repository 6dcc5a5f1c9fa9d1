"""Where the services of a run are and how to sign in to them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses are ``host:port``. Credentials never appear in ``repr``, results or notebooks."""

    kafka: str
    zookeeper: str
    minio: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    bucket: str = "keyshift"
    secure: bool = False  # TLS to MinIO
