"""What benchmarks on studies share: where their batch files are, and a file with all runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from keyshift.folders import write_whole
from keyshift.progress import tell
from keyshift.results.manifest import describe_machine, describe_versions
from keyshift.studies.study import Study

DATA = Path(__file__).parents[2] / "data"
Out = Annotated[Path | None, typer.Option("--out", help="Write every run there too, as JSON.")]


def say(line: str) -> None:
    """Progress, but not the line a second that a run tells, which is indented."""
    if not line.startswith(" "):
        tell(line)


def tell_died(study: Study) -> None:
    """Why points died, for whoever watches."""
    for point, why in study.died.items():
        tell(f"{point} died: {why}")


def write_report(path: Path | None, study: Study, **more: Any) -> None:
    """The summaries and notes of all runs, why points died, the machine, and ``more``; nothing without a path."""
    if path is not None:
        notes = {manifest.run_id: manifest.notes for manifest in study.manifests}
        machine = {"machine": describe_machine().model_dump(), "versions": describe_versions()}
        runs = [row | {"notes": notes[row["run_id"]]} for row in study.rows()]
        write_whole(path, json.dumps(machine | more | {"died": study.died, "runs": runs}, indent=1) + "\n")
