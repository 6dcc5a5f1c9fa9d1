"""A folder as an RO-Crate: what each file is, its size and digest, and which runs it comes from.

RO-Crate 1.1 (w3id.org/ro/crate/1.1): the version that archives and validators know best.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from keyshift.results.manifest import Manifest

VERSION = "1.1"
AUTHORS = "The keyshift authors"
FORMATS = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".ipynb": "application/x-ipynb+json",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
}


class Imprint(BaseModel):
    """What a publication says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field("", description="the title; empty: one that names the workloads")
    authors: list[str] = Field([], description="names; none: The keyshift authors")
    license: str = Field("Apache-2.0", pattern=r"^[A-Za-z0-9.+-]+$", description="of the artifact, by its SPDX name")
    doi: str = Field("", pattern=r"^(10\.\d{4,9}/\S+)?$", description="a DOI that is reserved for it: 10.NNNN/…")


def write_crate(folder: Path, imprint: Imprint, told: Mapping[str, str], manifests: Sequence[Manifest]) -> None:
    """Write ``ro-crate-metadata.json`` for all files in ``folder``, which was made of these runs.

    ``told``: what a file is, by its path in the folder, or by its ending.
    """
    crate = ROCrate(version=VERSION)
    crate.metadata.extra_terms["sha256"] = "https://schema.org/sha256"
    root = crate.root_dataset
    license_ = _add(crate, f"https://spdx.org/licenses/{imprint.license}", "CreativeWork", name=imprint.license)
    root["name"] = f"keyshift: {imprint.title}"
    root["description"] = (
        f"{len(manifests)} runs of keyshift, which moves the state of running stream-processing jobs: tables with a "
        "dictionary, parameters, verdicts, versions, machines, and all figures as pages. Open index.html."
    )
    root["license"] = license_
    persons = [_add(crate, f"#author-{place}", "Person", name=name) for place, name in enumerate(imprint.authors, 1)]
    root["author"] = _one(persons or [_add(crate, "#authors", "Organization", name=AUTHORS)])
    root.datePublished = datetime.now(UTC)
    if imprint.doi:
        root["identifier"] = f"https://doi.org/{imprint.doi}"
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = path.relative_to(folder).as_posix()
        crate.add_file(path, name, properties=_file(path, name, told))
    root["mentions"] = _one([_action(crate, manifest) for manifest in manifests])
    crate.metadata.write(folder)


def _file(path: Path, name: str, told: Mapping[str, str]) -> dict[str, Any]:
    with path.open("rb") as content:
        digest = file_digest(content, "sha256").hexdigest()
    known = {"name": name, "description": told.get(name) or told.get(path.suffix)}
    known |= {"encodingFormat": FORMATS.get(path.suffix)}
    given = {key: value for key, value in known.items() if value}
    return given | {"contentSize": str(path.stat().st_size), "sha256": digest}


def _action(crate: ROCrate, manifest: Manifest) -> ContextEntity:
    """A run, by the software that made it; its figures are on its page, if it has one."""
    version = manifest.versions.get("keyshift", "")
    software = crate.dereference(f"#keyshift-{version}") or _add(
        crate, f"#keyshift-{version}", "SoftwareApplication", name="keyshift", softwareVersion=version
    )
    files = map(crate.dereference, ("data/runs.parquet", "data/manifests.jsonl", f"runs/{manifest.run_id}.html"))
    return _add(
        crate,
        f"#{manifest.run_id}",
        "CreateAction",
        name=f"{manifest.workload}, {manifest.strategy}",
        description=f"verdict {manifest.status}" if manifest.summary else "died",
        actionStatus={"@id": f"http://schema.org/{'Completed' if manifest.summary else 'Failed'}ActionStatus"},
        startTime=manifest.started_at.isoformat(),
        endTime=manifest.finished_at.isoformat(),
        instrument=software,
        result=[file for file in files if file],
    )


def _one(entities: list[ContextEntity]) -> ContextEntity | list[ContextEntity]:
    """A list of one as the one alone, as the specification asks for."""
    return entities[0] if len(entities) == 1 else entities


def _add(crate: ROCrate, identifier: str, kind: str, /, **properties: Any) -> ContextEntity:
    entity = crate.add(ContextEntity(crate, identifier, properties={"@type": kind}))
    for key, value in properties.items():
        entity[key] = value
    return entity
