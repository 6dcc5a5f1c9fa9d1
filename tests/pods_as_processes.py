"""A stand-in for a Kubernetes API server, whose pods are processes of this machine: it runs what Spark asks for.

It knows pods alone, of one namespace, and what a driver may do: no scheduling, no images, no limits. What a real
cluster does is seen in ``tests/cluster``.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import psutil

from keyshift.services.processes import kill

ENTRY = Path(__file__).parents[1] / "cluster" / "entrypoint.sh"
HOST = "127.0.0.1"
Manifest = dict[str, Any]


class Pods:
    """``made``: all pods ever, by their names; those of them that were deleted are ``deleted``."""

    def __init__(self, work: Path) -> None:
        self._work, self._lock = work, threading.Lock()
        self.made: dict[str, Manifest] = {}
        self.deleted: list[str] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, pod: Manifest) -> Manifest:
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        fields = {"status.podIP": HOST, "metadata.name": name}
        told = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        folder = self._work / name
        folder.mkdir()
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
        here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SPARK_LOCAL_DIRS": str(folder)}
        with (folder / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["/bin/sh", ENTRY, *container["args"]],
                env=os.environ | told | here,
                cwd=folder,  # Spark leaves copies of its jars where it is
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with self._lock:
            self.made[name] = pod
        return self._told(name)

    def read(self, name: str) -> Manifest | None:
        return self._told(name) if name in self.made and name not in self.deleted else None

    def chosen(self, selector: str) -> list[Manifest]:
        with self._lock:
            left = [name for name in self.made if name not in self.deleted]
        return [self._told(name) for name in left if _has(self.made[name]["metadata"]["labels"], selector)]

    def delete(self, name: str) -> None:
        if name not in self.deleted:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(self._processes[name].pid)
                kill({process, *process.children(recursive=True)})
            self._processes[name].wait()
            self.deleted.append(name)

    def close(self) -> None:
        for name in self.made:
            self.delete(name)

    def _told(self, name: str) -> Manifest:
        pod, code = self.made[name], self._processes[name].poll()
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state = {"running": {"startedAt": since}} if code is None else {"terminated": {"exitCode": abs(code)}}
        container = {"name": "executor", "image": "", "imageID": "", "restartCount": 0, "ready": code is None}
        phase = "Running" if code is None else "Failed"
        status = {"phase": phase, "podIP": HOST, "containerStatuses": [container | {"state": state}]}
        return pod | {"apiVersion": "v1", "kind": "Pod", "status": status}


def _has(labels: dict[str, str], selector: str) -> bool:
    """Whether all terms hold: ``key=value``, ``key!=value`` and ``key in (value,value)``."""
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        key, _, values = term.replace(" in ", "=").partition("=")
        wanted = not key.endswith("!")
        if (labels.get(key.strip("! ")) in values.strip("() ").split(",")) is not wanted:
            return False
    return True


def _handler(pods: Pods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, code: int, body: Manifest) -> None:
            raw = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def asked(self) -> tuple[str, str, Manifest]:
            """The kind of thing, its name or else which ones, and what was sent."""
            url, length = urlparse(self.path), int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length) or b"{}") if length else {}
            found = re.fullmatch(r"/api/v1/namespaces/lab/(\w+)(?:/(.+))?", url.path)
            kind, name = (found[1], found[2] or "") if found else (url.path.rpartition("/")[2], "")
            return kind, name or parse_qs(url.query).get("labelSelector", [""])[0], sent

        def do_POST(self) -> None:
            kind, _, sent = self.asked()
            if kind == "selfsubjectaccessreviews":
                self.answer(201, sent | {"status": {"allowed": True}})
            else:
                assert kind == "pods", f"the driver may not create {kind}"
                self.answer(201, pods.create(sent))

        def do_GET(self) -> None:
            kind, which, _ = self.asked()
            if kind != "pods":
                self.answer(403, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403})
            elif which and "=" not in which:
                pod = pods.read(which)
                self.answer(200 if pod else 404, pod or {"kind": "Status", "apiVersion": "v1", "code": 404})
            else:
                listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
                self.answer(200, listed | {"items": pods.chosen(which)})

        def do_DELETE(self) -> None:
            kind, which, _ = self.asked()
            names = [which] if "=" not in which else [pod["metadata"]["name"] for pod in pods.chosen(which)]
            told = pods.read(which)  # one that is deleted is told as it was
            for name in names if kind == "pods" else ():
                pods.delete(name)
            self.answer(200, told or {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def do_PATCH(self) -> None:
            _, which, _ = self.asked()
            self.answer(200, pods.read(which) or {})

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A Spark that is killed leaves connections open."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_)


@contextlib.contextmanager
def pods_as_processes(work: Path) -> Iterator[tuple[str, Pods]]:
    """The address of the server, and its pods, whose processes end with it. Their files are in ``work``."""
    pods = Pods(work)
    server = _Server((HOST, 0), _handler(pods))
    threading.Thread(target=server.serve_forever, name="api-server", daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}", pods
    finally:
        pods.close()
        server.shutdown()
        server.server_close()
