"""The runs of another system than keyshift's job: repeated, stored, and given as a study beside ours."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from keyshift.experiment.spec import RunSpec
from keyshift.lab import bare_copy
from keyshift.lab.recording import Recording
from keyshift.lab.run_loop import RunLoop
from keyshift.model.errors import KeyshiftError
from keyshift.progress import Say
from keyshift.results.manifest import Manifest, new_run_id
from keyshift.results.store import ResultStore
from keyshift.studies.study import Study
from keyshift.workloads import Workload


@dataclass(frozen=True)
class PeerSpec(RunSpec):
    """Of a run of the system ``peer``, which is the strategy in what is stored."""

    peer: str = ""

    def parameters(self) -> dict[str, Any]:
        """See ``RunSpec``."""
        return super().parameters() | {"strategy": self.peer}


def peer_spec(spec: RunSpec, peer: str, workload: Workload) -> PeerSpec:
    """``spec`` for ``peer``, with a workload that knows what can be judged of it."""
    parts = {name: getattr(spec, name) for name in RunSpec.__dataclass_fields__}
    return PeerSpec(**parts | {"workload": workload}, peer=peer)


def repeated(specs: Mapping[str, PeerSpec], store: ResultStore, one: Callable[[PeerSpec], Manifest]) -> Study:
    """A run for each repetition of each point. Raises KeyshiftError if all died."""
    study = Study({name: [] for name in specs}, {**specs})
    for name, spec in specs.items():
        for number in range(spec.run.repetitions):
            try:
                manifest = one(cast(PeerSpec, spec.repeated(number)))
            except KeyshiftError as error:
                study.died[name] = str(error)
                continue
            study.runs[name].append((manifest, store.get_tables(manifest.run_id)))
    if specs and not study.manifests:
        raise KeyshiftError(f"all runs of {', '.join(specs)} died: {'; '.join(study.died.values())}")
    return study


def run_peer(
    spec: PeerSpec,
    store: ResultStore,
    home: Path,
    say: Say,
    prepared: Callable[[str], AbstractContextManager[RunLoop]],
    versions: Mapping[str, str] | None = None,
    told: Callable[[pa.Table], pa.Table] = lambda metrics: metrics,
) -> Manifest:
    """One run, stored whatever its verdict, or if it died.

    ``prepared``: the run of an id, ready to be executed. ``told``: the table of metrics, as it is to be stored.
    """
    run_id = new_run_id(spec.workload.name, spec.peer)
    speed = bare_copy.bytes_per_s(home / "bare_copy.json")
    recording = Recording(store, say, spec, run_id, spec.parameters(), speed, versions=versions)
    try:
        with prepared(run_id) as run:
            found = run.execute()
        return recording.ended(found._replace(tables=found.tables | {"metrics": told(found.tables["metrics"])}), [])
    except BaseException as error:
        recording.died(error, [])
        raise
