"""Where runs take place: the services and Spark, from a profile in YAML. ``cluster/profiles`` has those that ship."""

import os
import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, ValidationInfo

from keyshift.driver.spark import ENCRYPTED, require_sockets, sockets
from keyshift.endpoints import Endpoints, Mechanism, SignIn
from keyshift.folders import resource
from keyshift.model.errors import BadInput
from keyshift.place.yaml_file import read_yaml
from keyshift.refusals import refusal
from keyshift.registry import unknown
from keyshift.services.zookeeper import SESSION_MS
from keyshift.wire.config import Certificate

VARIABLE, DEFAULT = "KEYSHIFT_PROFILE", "local"
# Credentials are in the environment, never in a file of ours.
KEYS = ("KEYSHIFT_ACCESS_KEY", "KEYSHIFT_SECRET_KEY")
KAFKA_KEYS = ("KEYSHIFT_KAFKA_USER", "KEYSHIFT_KAFKA_PASSWORD")
SHIPPED = ("local", "local-cluster", "local-apart", "kubernetes")
KUBERNETES, CLUSTER, LOCAL = "k8s://", "local-cluster", "local"
# Spark counts the executors that have failed as long as its session lasts, and by default ends itself, with the job, at
# the fifth, if it has two. How often a job may die, its ``recoveries`` say. This is the largest number for Spark.
MOST_FAILED = 2**31 - 1
REPLICA_LABEL = "keyshift/replica"  # of executor pods: whose they are; the chart `lab` tells replicas apart by it

Address = Annotated[str, StringConstraints(pattern=r"^[^\s:/,]+:\d{1,5}$")]
AddressList = Annotated[str, StringConstraints(pattern=r"^[^\s:/,]+:\d{1,5}(,[^\s:/,]+:\d{1,5})*$")]


def _beside(path: str, info: ValidationInfo) -> str:
    return str(info.context / path) if path and info.context else path


File = Annotated[str, AfterValidator(_beside)]  # its path is from the folder of the profile
Size = Annotated[str, StringConstraints(pattern=r"^\d+[kmgt]$")]


class ServicesProfile(BaseModel):
    """Services that somebody else runs. Addresses are host:port; Kafka and ZooKeeper may have several, with commas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kafka: AddressList
    kafka_sasl: Mechanism = Field(default="", description="mechanism to sign in to Kafka with; empty: none")
    kafka_tls: bool = Field(default=False, description="TLS to Kafka")
    kafka_authority: File = Field(
        default="", description="PEM file of who signed Kafka's certificates; empty: whom the system trusts"
    )
    kafka_replication: int = Field(
        default=1, ge=1, le=100, description="brokers that have a copy of each record; no more than there are"
    )
    zookeeper: AddressList
    minio: Address = Field(description="any store that speaks S3")
    bucket: str = Field(
        default="keyshift",
        min_length=3,
        max_length=63,
        pattern=r"^[A-Za-z0-9]+(([-_]+|\.)[A-Za-z0-9]+)*$",
        description="letters and digits, with - _ or . between them",
    )
    secure: bool = Field(default=False, description="TLS to the store")
    redis: Address | Literal[""] = Field(default="", description="for state of `remote` and `hybrid`; empty: none")

    def __str__(self) -> str:
        return f"Kafka at {self.kafka}, ZooKeeper at {self.zookeeper}, store at {self.minio}"


class SparkProfile(BaseModel):
    """Where Spark is. ``executors`` are of a cluster, ``master`` and what has to do with sockets, Flight and ``conf``
    of every session; all else is for Kubernetes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = Field(
        default="local",
        pattern=r"^(local|local-cluster|k8s://https?://\S+)$",
        description="local (one process), local-cluster (executors in processes of their own), or k8s://https://…",
    )
    namespace: str = Field(default="default", min_length=1)
    image: str = ""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    service_account: str = Field(default="default", description="of the executors")
    executors: int = Field(default=2, ge=1, le=1000, description="of local-cluster: at the most one for each task")
    cores: int = Field(default=4, ge=1, le=256, description="logical cores of one executor")
    request_cpu: str = Field(default="1", pattern=r"^(\d+m|\d+(\.\d+)?)$", description="what its pod asks for")
    memory: Size = Field(default="1g", description="JVM heap of one executor")
    memory_overhead: Size = Field(default="1g", description="for the Python workers of one executor")
    python: str = Field(default="/opt/keyshift/bin/python", description="the interpreter in the image")
    driver_host: str = Field(default="", description="address of the driver that executors can reach")
    driver_pod: str = Field(default="", description="the driver's own pod, if it is one: executors go when it goes")
    pod_template: File = Field(default="", description="YAML file of a pod for executors: placement, security, volumes")
    sockets: str = Field(
        default="/tmp",
        description="folder for the sockets between Spark and its Python workers, wherever they run; empty: TCP",
    )
    flight_certificate: File = Field(
        default="", description=f"PEM file for the host {Certificate.NAME}: state travels over TLS; empty: in clear"
    )
    flight_key: File = Field(default="", description="PEM file of its key")
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict, description="more settings of Spark")

    @property
    def on_kubernetes(self) -> bool:
        """Whether executors are pods."""
        return self.master.startswith(KUBERNETES)

    def executors_for(self, tasks: int) -> int:
        """Count the executors that are processes of this machine, for ``tasks``, which all need a core at once."""
        return min(self.executors, tasks) if self.master == CLUSTER else 0

    @property
    def python_bytes(self) -> int:
        """Bytes that one executor has for its Python workers."""
        return int(self.memory_overhead[:-1]) << 10 * ("kmgt".index(self.memory_overhead[-1]) + 1)

    def certificate(self) -> Certificate | None:
        """Read what slots prove who they are with; None without. Raises BadInput if the files do not have it."""
        files = self.flight_certificate, self.flight_key
        if files == ("", ""):
            return None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files, password="")  # else it would ask for one
            return Certificate(*(Path(file).read_text(encoding="ascii") for file in files))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"spark.flight_certificate = {files[0]!r} and spark.flight_key = {files[1]!r} are no certificate with "
                f"its key: {error}"
            ) from error

    def options(self) -> dict[str, Any]:
        """Settings for the session, by Spark's names."""
        if not self.on_kubernetes:
            return sockets(self.sockets) | self.conf
        pods = "spark.kubernetes"
        options: dict[str, Any] = {
            f"{pods}.namespace": self.namespace,
            f"{pods}.container.image": self.image,
            f"{pods}.container.image.pullPolicy": self.image_pull_policy,
            f"{pods}.authenticate.executor.serviceAccountName": self.service_account,
            f"{pods}.executor.request.cores": self.request_cpu,
            f"{pods}.executor.label.app.kubernetes.io/part-of": "keyshift",  # whom the charts' policies let in
            "spark.executor.instances": self.executors,
            "spark.executor.maxNumFailures": MOST_FAILED,
            "spark.executor.cores": self.cores,
            "spark.executor.memory": self.memory,
            "spark.executor.memoryOverhead": self.memory_overhead,
            "spark.driver.host": self.driver_host,
            # Executors dial the address that the driver is bound to (since Spark 4.1).
            "spark.driver.bindAddress": self.driver_host,
            # Whoever waits for executors can say why they do not come: not Spark.
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
            f"{pods}.executor.missingPodDetectDelta": "5s",  # a job that lost an executor stands still until it is seen
            # Pods are all that the driver makes, so that it needs no right to anything else.
            f"{pods}.executor.disableConfigMap": "true",
            f"{pods}.driver.service.deleteOnTermination": "false",
            f"{pods}.driver.ownPersistentVolumeClaim": "false",
            f"{pods}.driver.reusePersistentVolumeClaim": "false",
        }
        if self.driver_pod:
            options[f"{pods}.driver.pod.name"] = self.driver_pod
        if self.pod_template:
            options[f"{pods}.executor.podTemplateFile"] = self.pod_template
        return options | ENCRYPTED | sockets(self.sockets) | self.conf


class ControlProfile(BaseModel):
    """Where a job in the background answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: str = Field(default="127.0.0.1", min_length=1, description="address of this machine that it listens on")
    port: int = Field(default=0, ge=0, le=65535, description="0: any that is free")


class Profile(BaseModel):
    """One place to run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    services: ServicesProfile | Literal["embedded"] = Field(
        default="embedded", description="the word embedded, or their addresses"
    )
    session_ms: int = Field(
        default=SESSION_MS,
        ge=20,
        le=60_000,
        description="milliseconds of the shortest session that an embedded ZooKeeper has to hold, when it is started",
    )
    nodes: Literal[1, 3] = Field(
        default=1,  # with two, the death of one would stop the service
        description="how many embedded Kafka and ZooKeeper have each; with 3, one of each may fail",
    )
    spark: SparkProfile = Field(default_factory=SparkProfile)
    control: ControlProfile = Field(default_factory=ControlProfile)

    @property
    def redis(self) -> str:
        """Address of a Redis server for state; empty if there is none."""
        return "" if self.services == "embedded" else self.services.redis

    def endpoints(self) -> Endpoints:
        """Endpoints of services that are not embedded. Raises BadInput if credentials are not in the environment, or
        the file with Kafka's authority cannot be read.
        """
        services = self.services
        assert isinstance(services, ServicesProfile)
        access_key, secret_key = _credentials(KEYS, "the store")
        user, password = _credentials(KAFKA_KEYS, "Kafka") if services.kafka_sasl else ("", "")
        return Endpoints(
            services.kafka,
            services.zookeeper,
            services.minio,
            access_key,
            secret_key,
            services.bucket,
            services.secure,
            SignIn(services.kafka_sasl, user, password, services.kafka_tls, _authority(services.kafka_authority)),
            services.redis,
            services.kafka_replication,
        )

    def require_cores(self, needed: int) -> None:
        """Raise BadInput if a run that needs so many logical cores does not fit."""
        spark = self.spark
        if spark.on_kubernetes and needed > spark.executors * spark.cores:
            raise BadInput(
                f"the run has {needed} routers and slots, which all need a core at once, but {spark.executors} "
                f"executors with {spark.cores} logical cores have {spark.executors * spark.cores}; set spark.executors "
                f"to {-(-needed // spark.cores)} in the profile, or more cores (they may exceed request_cpu)"
            )


def _credentials(names: tuple[str, str], of: str) -> tuple[str, str]:
    if missing := [name for name in names if not os.environ.get(name)]:
        raise BadInput(f"{' and '.join(missing)} must be set in the environment: the credentials of {of}")
    return os.environ[names[0]], os.environ[names[1]]


def _authority(path: str) -> str:
    try:
        pem = Path(path).read_text(encoding="ascii") if path else ""
        ssl.create_default_context(cadata=pem or None)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"services.kafka_authority = {path!r} is no file with certificates: {error}") from error
    return pem


def located(name: str | None = None) -> str:
    """The name of a profile for processes that may be in other folders: one that ships, or the path of a YAML file from
    the root on. Without a name it is $KEYSHIFT_PROFILE, else ``local``.

    Raises BadInput for a profile that does not exist.
    """
    name = name or os.environ.get(VARIABLE) or DEFAULT
    if name in SHIPPED:
        return name
    if not os.path.isfile(name):  # not of Path, which raises for a name that is too long
        raise unknown("profile", name, [*SHIPPED, "or the path of a YAML file"])
    return str(Path(name).absolute())


def load_profile(name: str | None = None) -> Profile:
    """The profile of a name that ships or of a YAML file; without a name $KEYSHIFT_PROFILE, else ``local``. Files that
    it names are in its own folder, if their paths are relative.

    Raises BadInput, naming file and key, for a profile that does not exist or is not right.
    """
    name = located(name)
    path = resource(f"profiles/{name}.yaml") if name in SHIPPED else Path(name)
    raw = read_yaml(f"profile {name!r}", path)
    if not isinstance(raw, dict):
        raise BadInput(f"profile {name!r} is no mapping; it has the keys {', '.join(Profile.model_fields)}")
    return _checked(name, _expanded(name, raw), path.parent)


def use_profile(name: str | None) -> None:
    """Make a profile the one that is used when none is named, here and in every process started from here.

    Raises BadInput as ``load_profile`` does.
    """
    load_profile(name)
    if name:
        os.environ[VARIABLE] = located(name)


def _expanded(name: str, raw: Any) -> Any:
    """``raw`` with each ${NAME} replaced."""
    if isinstance(raw, dict):
        return {key: _expanded(name, value) for key, value in raw.items()}
    if not isinstance(raw, str):
        return raw

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise BadInput(f"profile {name!r} needs {found[1]} in the environment")
        return os.environ[found[1]]

    return re.sub(r"\$\{(\w+)\}", value, raw)


def _checked(name: str, raw: dict[str, Any], folder: Path) -> Profile:
    try:
        profile = Profile.model_validate(raw, context=folder)
    except ValidationError as error:
        raise BadInput(f"profile {name!r}: {refusal(error.errors(), Profile)}") from error
    if profile.nodes > 1 and profile.services != "embedded":
        raise BadInput(
            f"profile {name!r}: nodes = {profile.nodes} is for embedded services; of others name all addresses"
        )
    if profile.services != "embedded" and profile.services.kafka_authority and not profile.services.kafka_tls:
        raise BadInput(
            f"profile {name!r}: services.kafka_authority is of TLS, and services.kafka_tls is false: set it to true, "
            "or leave the authority out"
        )
    profile.spark.certificate()
    if not profile.spark.on_kubernetes:
        require_sockets(profile.spark.sockets)
    else:
        if profile.services == "embedded":
            raise BadInput(f"profile {name!r}: executors in pods cannot reach embedded services; name their addresses")
        for key in ("image", "driver_host"):
            if not getattr(profile.spark, key):
                raise BadInput(f"profile {name!r}: spark.{key} is needed on Kubernetes")
    return profile
