"""The script of a run with a scenario: a load of so many seconds, and requests at moments that are known before."""

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import cast

from keyshift.experiment.commands import Command
from keyshift.experiment.replicas import ends_one
from keyshift.experiment.scenario import Action, Migrate
from keyshift.lab.controls import JobControls
from keyshift.lab.plans.migrations import Migrations
from keyshift.lab.run_loop import LOOK_S, RunLoop, Script, ScriptStep
from keyshift.lab.system import LiveSystem, SystemUnderTest
from keyshift.model.errors import BadInput, MigrationFailed, PlanRejected, QueryDied, ServiceUnavailable
from keyshift.model.notes import Activity, Doing
from keyshift.wire.faults import Fault


def scenario_script(run: RunLoop) -> Script:
    """Warm up, carry out the actions of the scenario of ``run``, and wait for the end of the load."""
    if run.spec.scenario.trigger != "script":  # which may change the rate
        run.load_s = run.spec.run.load_s
    return _play(run)


def _play(run: RunLoop) -> Script:
    spec, system = run.spec, run.system
    measured, ends, died = run.began_at + spec.run.warmup_s, run.began_at + spec.run.load_s, -1.0
    with run.reporter.bar(spec.run.load_s, spec.strategy.name):
        yield measured
        run.reporter.enter(Doing(Activity.STEADY))
        for first in spec.changes[:1]:
            yield partial(system.announce, first)
        if spec.scenario.trigger != "script":  # else that is the first migration
            run.trigger = measured + spec.scenario.trigger_s
        if spec.scenario.trigger == "auto":
            run.autoscale(run.trigger, lambda change, stage: system.request(change, stage=stage))
        controls, migrated = JobControls(run, Migrations(run).request, spec.tasks), False
        for at_s, action in spec.scenario.actions(spec.changes):
            moment = measured + at_s
            # What is copied ahead goes from where the state is when the migration before is over.
            if migrated and isinstance(action, Migrate) and (yield from _while(lambda: system.busy, moment)):
                yield partial(system.announce, action.change)
            yield moment
            if isinstance(action, Fault) and spec.job.replicas > 1 and ends_one(action):
                # Until the replica that died before is full again, it could hit the only one that answers.
                if at_s > died and not (yield from _while(lambda: cast(LiveSystem, system).returning, ends)):
                    continue
                died = at_s
            yield partial(_carry_out, action, system, controls)
            migrated |= isinstance(action, Migrate)
        yield ends


def _while(lasts: Callable[[], bool], until: float) -> Generator[ScriptStep, None, bool]:
    """Wait while something lasts. Gives whether it was over before the moment ``until``."""
    while lasts() and time.time() < until:
        yield min(time.time() + LOOK_S, until)
    return time.time() < until


def _carry_out(action: Action, system: SystemUnderTest, controls: JobControls) -> None:
    match action:
        case Migrate(cancels=True) if system.migrating:
            system.cancel()
        case Migrate(change, replace):
            system.request(change, replace)
        case Fault() | Command():
            try:
                if isinstance(action, Fault):
                    system.hit(action)
                else:
                    action.carry_out(controls)
            except QueryDied:
                raise
            except (BadInput, MigrationFailed, PlanRejected, ServiceUnavailable) as error:
                system.note(f"`{action}` was refused: {error}")
