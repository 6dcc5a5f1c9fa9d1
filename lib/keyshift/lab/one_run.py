"""One run: a load for a system under test, the requests of a scenario, deaths that it survives, and its outcome."""

import time
from collections import deque

from keyshift.experiment.scenario import Action, Cancel, Hit, Migrate
from keyshift.lab.course import LEAD_S, LOOK_S, Course
from keyshift.lab.judge.outcome import Outcome
from keyshift.lab.sampler import Sampler


class OneRun(Course):
    """A load of so many seconds, and a scenario."""

    def execute(self) -> Outcome:
        """From the topics to the verdict. Raises KeyshiftError if the run dies."""
        spec, run, system, display = self._spec, self._spec.run, self._system, self._display
        feed = self._open()
        with Sampler(ignore=self._traffic.pids) as sampler:
            start = time.time() + LEAD_S
            measured, end = start + run.warmup_s, start + run.load_s
            self._idle_since = end
            feed.begin(start, end - start)
            with display.bar(end - start, spec.strategy.name):
                self._surviving(lambda: self._pass_until(measured))
                display.enter("steady")
                for first in spec.changes[:1]:
                    system.announce(first)
                self._trigger = measured + spec.scenario.trigger_s
                if spec.scenario.trigger == "auto":
                    self._autoscale(self._trigger, lambda change, stage: system.request(change, stage=stage))
                to_come = deque(spec.scenario.actions(spec.changes))
                self._surviving(lambda: self._play(to_come, measured))
                self._surviving(lambda: self._pass_until(end))
                self._surviving(self._await_migrations)
            self._surviving(self._finish)
        kills = [fault for fault in spec.scenario.faults() if fault.ends_query]
        if len(kills) > len(self._deaths):
            text = f"fault = {spec.scenario.fault}: not all of it happened"
            system.note(f"{text}, the query died {len(self._deaths)} times and not {len(kills)}")
        return self._outcome(start, measured, end, sampler.rows)

    def _play(self, to_come: deque[Action], measured: float) -> None:
        """Request what is ``to_come``, and take it from there. ``measured``: the beginning of the measured time."""
        migrated = False
        while to_come:
            if migrated:
                self._announce(to_come[0], measured)
            self._pass_until(measured + to_come[0].at_s)
            match to_come.popleft():
                case Migrate(_, change, replace):
                    self._system.request(change, replace)
                    migrated = True
                case Cancel():
                    self._system.cancel()
                case Hit(_, fault):
                    self._system.hit(fault)

    def _announce(self, action: Action, measured: float) -> None:
        """Another migration, as soon as the one before is over: what is copied ahead goes from where the state is."""
        if not isinstance(action, Migrate):
            return
        while (left := measured + action.at_s - time.time()) > 0:
            if not self._system.busy:
                self._system.announce(action.change)
                return
            self._look()
            time.sleep(min(left, LOOK_S))
