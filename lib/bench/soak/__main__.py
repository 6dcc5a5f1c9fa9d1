"""``python -m bench.soak``: a live job for hours, with a fault and a migration every few minutes.

It has services of its own, in a folder of its own below the state folder, so that everything of it may be hit. Its
samples, its figure and its summary are there afterwards, and unless all went well what the job could go on from.

Passed is a soak whose verdict is ok, in which every request was answered and the job got over every fault, and of which
nothing grows. Memory of a process (of a JVM without what is free in its heap, of MinIO what a collection leaves) is
flat if the 95 % interval of its growth includes 0, or if it grows by less than 4 MiB or 2 % of its median in an hour;
threads, open files and numbers of processes if the interval includes 0 or they grow by less than one in an hour. The
first part of each process' life does not count.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import typer
from tqdm import tqdm

from bench.soak.job import SoakJob, Unanswered
from bench.soak.plan import DRIVER, FAULTS, STRATEGIES, Round, rounds
from bench.soak.report import Happened, clock, figure, grown, growth_table, summary
from bench.soak.watch import TOUCHED, TRACED, ProcessWatch, Sample
from keyshift.analysis.plots.style import png
from keyshift.experiment.commands import Command, InjectFault, MoveBy
from keyshift.experiment.live_spec import live_spec
from keyshift.folders import state_folder, write_whole
from keyshift.lab.live.status import Status
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.planner import strategies
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.registry import named_values
from keyshift.results.manifest import describe_machine, describe_versions
from keyshift.services.processes import kill
from keyshift.services.stack import Stack
from keyshift.waiting import wait_until
from keyshift.wire.faults import parse_now

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

LOAD: dict[str, Any] = {
    "workload": "windowcount",
    "strategy": "fluid",
    "keys": 4000,
    "state_bytes": 256,
    "key_groups": 32,
    "slots": 2,
    "slots_max": 4,
    "batch_s": 120.0,
    "recoveries": 20,
}
WARM_UP_S, WARM_UP_SHARE = 600.0, 0.15  # the shorter of the two
LEAST_S = 30.0  # between faults: to get over one takes some seconds
STOP_S = 1800.0  # from the end of the load to the verdict
LEFT_S = 30.0  # for the job's processes to be gone
SAMPLES = 2880  # in a soak, at most one each second


class Soak:
    """One soak. ``happened``: what became of each round so far; ``told``: the last status of the job, with its verdict.
    ``now_s()``: seconds since the job was ready.
    """

    def __init__(self, job: SoakJob, bar: "tqdm[Any]", now_s: Callable[[], float]) -> None:
        self._job, self._bar, self._now_s = job, bar, now_s
        self.happened: list[Happened] = []
        self.told: Status = {}

    def run(self, some: list[Round], seconds: float) -> None:
        """Carry out rounds until the load has lasted so long. Raises KeyshiftError if the job ends before."""
        for each in some:
            self._pass_until(each.at_s)
            self._carry_out(each)
        self._pass_until(seconds)

    def _pass_until(self, at_s: float) -> None:
        while (left := at_s - self._now_s()) > 0:
            self._job.status()
            self._bar.update(min(int(self._now_s()), int(self._bar.total or 0)) - self._bar.n)
            time.sleep(min(left, 1.0))

    def _carry_out(self, each: Round) -> None:
        began, began_s = time.time(), self._now_s()
        before, told, words = self._job.status(), Status(), list[str]()
        failure: KeyshiftError | None = None
        try:
            words.append(self._answer(MoveBy(strategy=each.strategy, target=each.slots)))
            self._pass_until(began_s + each.gap_s)
            if each.fault == DRIVER:
                self._job.die()
            else:
                words.append(self._answer(InjectFault(fault=each.fault)))
            told = self._job.settle(0.0 if each.fault == DRIVER else parse_now(each.fault).seconds)
            words.append(_said(before, told))
        except KeyshiftError as error:
            failure = error
        outcome, silence = "; ".join(filter(None, words)), self._job.silence_ms(began, time.time())
        notes = [line for line in told.get("notes", []) if line not in before["notes"]]
        self.happened.append(Happened(each, began_s, outcome, silence, notes, str(failure or "")))
        tell(self.happened[-1].line())
        if failure and not isinstance(failure, Unanswered):
            raise failure

    def _answer(self, command: Command) -> str:
        """Ask, and give why it was refused, if it was: that is an answer. Raises KeyshiftError if the job has ended."""
        try:
            self._job.do(command)
        except Unanswered:
            raise
        except KeyshiftError as error:
            if not isinstance(error, BadInput):
                self._job.status()  # of a job that has ended this raises
            return f"refused ({error})"
        return ""


def _said(before: Status, told: Status) -> str:
    said = []
    for each in told["migrations"][len(before["migrations"]) :]:
        took = "" if each["took_s"] is None else f" after {each['took_s']:.1f} s"
        said.append(each["outcome"] + took)
    died = max(0, told["deaths"] - before["deaths"])
    return ", ".join([*(said or ["no migration"]), *([f"died {died} x"] if died else [])])


@contextmanager
def _home() -> Iterator[Path]:
    """A new state folder, which is that of this process from then on, with its services down at the end."""
    home = state_folder() / "soak" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    home.mkdir(parents=True)
    os.environ |= {"KEYSHIFT_HOME": str(home)} | TOUCHED | TRACED
    try:
        yield home
    finally:
        Stack(home).down()


@app.command()
def main(
    hours: Annotated[float, typer.Option(help="Of load; 0.1 is six minutes.")] = 2.0,
    seed: Annotated[int, typer.Option(help="What happens, and when.")] = 1,
    every: Annotated[float, typer.Option(min=LEAST_S, help="Seconds from one fault to the next.")] = 180.0,
    rate: Annotated[float, typer.Option(min=1, help="Events per second.")] = 300.0,
    fault: Annotated[list[str] | None, typer.Option(help="Only this one, e.g. kill:driver; may be repeated.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value of the job; may be repeated.")] = None,
    warm_up: Annotated[float | None, typer.Option(min=0, help="Seconds of each process that do not count.")] = None,
    profile: Annotated[str | None, typer.Option(help="As of `keyshift run`.")] = None,
) -> None:
    """Run a live job with faults and migrations. Exit status 1 for a bad verdict, growth, or no answer."""
    for name, value in (("hours", hours), ("every", every)):
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"{name} = {value:g}: must be a finite number above 0")
    faults, names, seconds = fault or list(FAULTS), strategy or list(STRATEGIES), hours * 3600
    values = LOAD | {"rate": rate} | named_values(settings or [])
    spec = live_spec(values)
    for each in faults:
        if each != DRIVER:
            parse_now(each)
    for each in names:
        strategies.get(each)
    if (most := spec.tasks[spec.workload.stages[0].name]) < 2:
        raise BadInput(
            f"slots_max = {spec.job.slots_max} and slots = {spec.job.slots}: state has nowhere to move to; set "
            "slots_max to at least 2"
        )
    some = rounds(seed, seconds, every, most, faults, names)
    if not some:
        raise BadInput(f"hours = {hours:g}: too short for a fault every {every:g} s; at least {1.5 * every / 3600:.2g}")
    warm_up_s = min(WARM_UP_S, WARM_UP_SHARE * seconds) if warm_up is None else warm_up
    given = {"seed": seed, "seconds": seconds, "warm_up_s": warm_up_s}
    matplotlib.use("agg")
    with _home() as home:
        passed = _soak(home, values, profile, some, given)
        if passed:
            Stack(home).down(wipe=True)
    raise typer.Exit(int(not passed))


def _soak(home: Path, values: dict[str, Any], profile: str | None, some: list[Round], given: dict[str, float]) -> bool:
    """Run a soak, and give whether it is passed; its summary is told and written either way."""
    seconds, report = given["seconds"], {"started_at": datetime.now(UTC).isoformat(), **given, "load": values}
    report |= {"machine": describe_machine().model_dump(), "versions": describe_versions()}
    tell(f"{len(some)} faults and migrations in {clock(seconds)}; all of it is in {home}")
    stack, more, ended_s = Stack(home), list[str](), math.inf
    with (
        ProcessWatch(stack, home / "samples.csv", max(1.0, seconds / SAMPLES)) as watch,
        tqdm(total=round(seconds), unit="s", desc="soak", leave=False, disable=None) as bar,
    ):
        job = SoakJob(stack, values, profile, watch.follow)
        soak = Soak(job, bar, watch.now_s)
        try:
            job.start(tell)
            try:
                soak.run(some, seconds)
            except KeyboardInterrupt:
                tell("interrupted: the job is stopped; once more gives it up")
            except KeyshiftError as error:
                more.append(str(error))
            ended_s = watch.now_s()  # what the verdict needs then is no growth
            if job.alive:
                soak.told = job.stop(STOP_S, tell)
        except (KeyshiftError, KeyboardInterrupt) as error:
            more.append(str(error) or "given up")
        finally:
            job.end()
        if not wait_until(lambda: not watch.of_job(), LEFT_S):
            left = watch.of_job()
            more.append(f"{len(left)} processes of the job live after its end: {', '.join(left.values())}")
            kill(left)
    rows = [row for row in watch.rows if row.t_s <= ended_s]
    report |= _told(home, soak, rows, more, given["warm_up_s"])
    write_whole(home / "summary.json", json.dumps(report, indent=1) + "\n")
    return not report["problems"]


def _told(home: Path, soak: Soak, rows: list[Sample], more: list[str], warm_up_s: float) -> dict[str, Any]:
    found = grown(rows, warm_up_s)
    said = summary(soak.told, soak.happened, found, more)
    if rows:
        title = f"{clock(rows[-1].t_s)} with {len(soak.happened)} faults and migrations, verdict {said['verdict']}"
        (home / "soak.png").write_bytes(png(figure(rows, soak.happened, found, title)))
        typer.echo(growth_table(found))
    for line in said["problems"]:
        typer.echo(f"problem: {line}")
    typer.echo(f"verdict {said['verdict']}, {len(said['problems'])} problems; see soak.png and summary.json in {home}")
    return said


if __name__ == "__main__":
    run_program(app, "bench.soak")
