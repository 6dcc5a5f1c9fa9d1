"""What is left to be answered when the load of a run has ended."""

import math
import time
from collections.abc import Callable

from keyshift.lab.reporter import Reporter
from keyshift.lab.system import SystemUnderTest
from keyshift.model.notes import Activity, Doing
from keyshift.traffic.feed import Feed
from keyshift.traffic.traffic import Traffic

SILENCE_S = 10.0  # without any result, longer than a slot may wait for another one: then nothing comes any more
LOOK_S = 0.05  # between two looks: a query that has died is silent until the next one


class Backlog:
    """The results that are due and have not come. A system that has not worked them off in ``allowed_s`` is
    ``overloaded``. ``check`` raises what ends the run. ``deadline_s``: so long a slot may stand between two batches.
    """

    def __init__(
        self,
        system: SystemUnderTest,
        traffic: Traffic,
        reporter: Reporter,
        check: Callable[[], None],
        allowed_s: float,
        deadline_s: float,
    ) -> None:
        self._system, self._traffic, self._reporter, self._check = system, traffic, reporter, check
        self._allowed_s, self._silence_s = allowed_s, deadline_s + SILENCE_S
        self.overloaded = False
        self._since = math.inf  # seconds of the monotonic clock
        self._feed: Feed | None = None

    def begin(self, feed: Feed) -> None:
        """Begin to count: nothing more is to do than what ``feed`` has offered, and somebody is there who does it."""
        self._feed, self._since = feed, time.monotonic()

    def begin_anew(self) -> None:
        """Give the query its time once more: it has died and begins anew."""
        self._since, self.overloaded = max(self._since, time.monotonic()), False

    def await_migrations(self) -> None:
        """Wait until migrations are over. If a backlog makes every step slow, take back what has not begun."""
        while self._system.busy:
            self._check()
            if not self.overloaded and self._out_of_time():
                self._system.cancel()
            time.sleep(LOOK_S)

    def finish(self) -> None:
        """Wait until everything offered has been answered; if the job is overloaded, what it has processed by then."""
        self._reporter.enter(Doing(Activity.CATCHING_UP))
        self.await_results()
        self._system.stop()

    def await_results(self) -> None:
        """Wait until all results that are due have come, none comes any more (then some are lost), or time is up."""

        def over() -> bool:
            self._check()
            return not self._left or self.overloaded or self._out_of_time()

        self._traffic.await_results(over, self._silence_s)
        if self._left and not self.overloaded:
            self._reporter.say(f"only {self._traffic.received} of {self._due} results came")

    @property
    def _due(self) -> int | None:
        return self._feed.due if self._feed else None

    @property
    def _left(self) -> bool:
        """Whether results are still to come of events that were offered, or are to be."""
        return self._due is None or self._traffic.received < self._due

    def _out_of_time(self) -> bool:
        """Whether there is still a backlog after the time allowed. If so, the job counts as overloaded from then on."""
        if self._left and time.monotonic() > self._since + self._allowed_s:
            self.overloaded = True
            self._reporter.say(
                f"overloaded: the backlog was not worked off within catch_up_s = {self._allowed_s:g} s; "
                "the run ends with what has been processed"
            )
        return self.overloaded
