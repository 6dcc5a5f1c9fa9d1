"""A run that takes a quarter of a minute, and what only `make nightly` has."""

import pytest
from hypothesis import settings

from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.results.manifest import Manifest

NIGHT = settings.default.max_examples > 1000  # as it is in `make nightly`
SMALL = {
    "rate": 1000.0,  # with so few frames one core carries them, whoever uses it beside
    "frame_ms": 40.0,
    "seconds": 10.0,
    "warmup_s": 1.0,
    "trigger_s": 3.0,
    "keys": 4000,
    "state_bytes": 256,
    "key_groups": 32,
    "deadline_s": 120.0,  # of a phase: the machine may be busy
}
SMALL_LIVE = {name: value for name, value in SMALL.items() if name not in ("seconds", "trigger_s")}  # until stopped
SMALL_LIVE |= {"rate": 300.0, "frame_ms": 60.0}  # so that less comes than one core carries, beside another job


def spec(**values: object) -> RunSpec:
    return make_spec(SMALL | values)


def good(manifest: Manifest) -> Manifest:
    """A run that was judged ok."""
    assert manifest.status == "ok", manifest.verdict.examples if manifest.verdict else manifest.error
    return manifest


def at_night(*values: object) -> object:
    """A set of parameters that only `make nightly` has: `make test` has another one that takes the same path."""
    return pytest.param(*values, marks=pytest.mark.nightly("`make test` has another value"))
