"""Helm, for the tests of the charts: see ``go_programs``."""

import threading
from pathlib import Path

from keyshift.progress import Say, silent
from keyshift.services.go_programs import GoProgram, go_program

_VERSION = "v3.22.0"
# What Helm's own build sets. Without it Helm takes a cluster it cannot ask for Kubernetes 1.20; client-go 0.37 is 1.37.
_SET = {
    "internal/version.version": _VERSION,
    "pkg/lint/rules.k8sVersionMajor": "1",
    "pkg/lint/rules.k8sVersionMinor": "37",
    "pkg/chartutil.k8sVersionMajor": "1",
    "pkg/chartutil.k8sVersionMinor": "37",
}
HELM = GoProgram(
    name="helm",
    title="Helm",
    module="helm.sh/helm/v3/cmd/helm",
    version=_VERSION,
    go_needed=(1, 26),
    asks=("version", "--template", "{{.Version}}"),
    answer=r"v3\.(1[89]|[2-9]\d)\.",  # since 3.18 it names the key of a wrong value as the tests expect
    takes="2 to 5 minutes on 2 cores",
    ldflags="-s -w " + " ".join(f"-X helm.sh/helm/v3/{name}={value}" for name, value in _SET.items()),
)


def helm_binary(say: Say = silent, cancel: threading.Event | None = None) -> Path:
    """The path of Helm 3; if there is none yet it is built, which takes minutes (errors: see ``go_program``)."""
    return go_program(HELM, say, cancel)
