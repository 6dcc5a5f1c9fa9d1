"""Settings of pytest for every kind of test. Fixtures that start services are beside the tests that need them."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for ``certificate``

# No deadlines: tests assert what happens, never how fast, and the machine may be busy.
# dev finds new examples at each run and keeps failing ones in .hypothesis; ci runs the same ones each time, so that a
# change is judged by what it changed; nightly looks longer. A failure prints the line that replays it.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=5000)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts its background jobs with Ctrl-C ignored,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and so would all that tests start and interrupt
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
