"""What a cell has defined reaches another process with its code, and only what the library lacks travels so."""

import importlib
import json
import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from pydantic import Field

from keyshift.checks import check_strategy, check_workload
from keyshift.experiment.definitions import define, parcels_of
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput, PlanRejected
from keyshift.model.keys import Move, Step
from keyshift.ordering import orderings
from keyshift.parcel import packed, unpacked
from keyshift.planner import Strategy, strategies, strategy
from keyshift.state import backends
from keyshift.workloads import model_of, parcel_of, workload
from keyshift.workloads.keycount import KeyCount

FACTOR = 3  # a name of this module that a parcel has to take along


pytestmark = pytest.mark.usefixtures("own_definitions")


def elsewhere(code: str, *arguments: str) -> str:
    """What another process prints; it cannot import this module."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def defined_workload():
    @workload
    class Threefold(KeyCount):
        name: ClassVar[str] = "threefold"
        more: int = Field(default=2, ge=1, description="how much more")

        def times(self) -> int:
            return FACTOR * self.more

    return Threefold


def thirds(strategy, view, log):
    """Up to three units in each step."""
    moves = view.misplaced()
    for begin in range(0, len(moves), FACTOR):
        yield Step(moves[begin : begin + FACTOR])


# -- strategies --------------------------------------------------------------------------------------------------------


WITH_SETTINGS = strategy(source="a test", unit="bin", bins=2)


@pytest.mark.parametrize(
    ("decorator", "source", "bins"),
    [(strategy, "a notebook", 1), (WITH_SETTINGS, "a test", 2)],
    ids=["alone", "called"],
)
def test_a_function_of_a_cell_is_a_strategy_with_its_name_and_its_settings(decorator, source, bins):
    made = decorator(thirds)
    assert strategies.get("thirds") is made
    assert (made.summary, made.source, made.bins) == ("Up to three units in each step", source, bins)
    check_strategy(made)


def test_a_cell_may_run_again_but_not_take_a_name_of_the_library():
    first, second = strategy()(thirds), strategy(source="again")(thirds)
    assert first != second and strategies.get("thirds") is second
    fluid = strategies.get("fluid")

    def fluid_(*_):
        """Not the one that is known."""

    fluid_.__name__ = "fluid"
    with pytest.raises(BadInput, match="strategy 'fluid' is of the library: choose another name"):
        strategy()(fluid_)
    assert strategies.get("fluid") is fluid
    with pytest.raises(BadInput, match="strategy '<lambda>': a name is of lower-case letters"):
        strategy()(lambda *_: iter(()))
    with pytest.raises(BadInput, match="unknown setting 'unitt': did you mean 'unit'"):
        strategy(unitt="bin")(thirds)


def test_a_run_of_a_strategy_that_proposes_nonsense_is_refused_before_it_can_begin():
    def nonsense(strategy, view, log):
        """To a slot that is not there."""
        yield Step((Move(5, 0, 9),))

    strategy()(nonsense)
    with pytest.raises(PlanRejected, match="step 0, unit 5 from slot 0 to 9: there is no slot 9, they are 0, 1, 2"):
        make_spec({"strategy": "nonsense", "key_groups": 16, "slots": 2, "to_slots": 3})


def test_a_strategy_that_needs_heat_is_refused_for_replicas_by_its_name():
    def hot_own(strategy, view, log):
        """The hottest unit first, one in each step."""
        yield from (Step((m,)) for m in sorted(view.misplaced(), key=lambda m: -view.heat[m.unit]))

    strategy()(hot_own)
    given = {"strategy": "hot_own", "key_groups": 16, "slots": 2, "to_slots": 4}
    assert make_spec(given).strategy.name == "hot_own"
    with pytest.raises(PlanRejected, match=r"^strategy = hot_own: the strategy raised IndexError: tuple index out of"):
        make_spec(given | {"replicas": 2, "ordering": "live_robin"})


@pytest.mark.parametrize("proposed", [None, 7])
def test_a_function_that_yields_nothing_is_told_so(proposed):
    def forgetful(strategy, view, log):
        """It was to yield something."""
        return proposed

    with pytest.raises(PlanRejected, match=f"the strategy gave {proposed}: it must yield steps"):
        check_strategy(strategy()(forgetful))


# -- other processes ---------------------------------------------------------------------------------------------------


def test_a_workload_of_a_cell_is_made_in_another_process():
    parcel = parcel_of(defined_workload())
    told = elsewhere(
        "import sys; from keyshift.workloads import model_of\n"
        "made = model_of('threefold', sys.argv[1])(more=5, keys=9)\n"
        "print(made.times(), made.keys, [stage.name for stage in made.stages])",
        parcel,
    )
    assert told == "15 9 ['counter']"


def test_what_the_library_has_goes_by_its_name():
    assert parcel_of(KeyCount) == ""
    assert model_of("keycount") is KeyCount
    with pytest.raises(BadInput, match="did you mean 'keycount'"):
        model_of("keycont")


IN_THE_BACKGROUND = """
import json, sys
from keyshift.checks import check_strategy
from keyshift.experiment.definitions import define, parcels_of
from keyshift.experiment.live_spec import live_spec
define(json.loads(sys.argv[1]))
spec = live_spec({'workload': 'threefold', 'strategy': 'thirds', 'more': 4})
check_strategy(spec.point())
print(spec.workload.times(), spec.point().summary, sorted(parcels_of(spec)['workload']))
"""


def test_a_job_in_the_background_gets_all_strategies_and_its_workload():
    defined_workload()
    strategy(source="a test")(thirds)
    spec = make_spec({"workload": "threefold", "strategy": "thirds", "more": 4})
    parcels = parcels_of(spec)
    assert {kind: list(of) for kind, of in parcels.items()} == {"strategy": ["thirds"], "workload": ["threefold"]}
    assert parcels_of(make_spec({}))["workload"] == {}
    told = elsewhere(IN_THE_BACKGROUND, json.dumps(parcels))
    assert told == "12 Up to three units in each step ['threefold']"


def test_what_was_defined_again_stays_when_an_older_job_goes_on():
    older = Strategy("an older way to move state", "a test", propose=thirds)
    newer = strategy(source="newer")(thirds)
    define({"strategy": {"thirds": packed(older, __name__, "thirds")}})
    assert strategies.get("thirds") is newer
    assert unpacked(packed(older, __name__, "thirds")).source == "a test"


def test_a_module_that_only_the_notebook_could_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "beside_it.py").write_text("class Kept:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    beside_it = importlib.import_module("beside_it")
    parcel = packed(beside_it.Kept, __name__, "kept")
    assert unpacked(parcel) is beside_it.Kept
    del beside_it.Kept
    with pytest.raises(BadInput, match=r"beside_it.*PYTHONPATH"):
        unpacked(parcel)
    del sys.modules["beside_it"]
    sys.path.remove(str(tmp_path))
    with pytest.raises(BadInput, match=r"No module named 'beside_it'; .*PYTHONPATH"):
        unpacked(parcel)


def test_what_cannot_leave_the_process_is_named_before_anything_is_started():
    @workload
    class Holding(KeyCount):
        name: ClassVar[str] = "holding"
        lock: ClassVar[object] = threading.Lock()

    words = "Holding cannot be sent to other processes: cannot pickle '_thread.lock' object; keep locks"
    with pytest.raises(BadInput, match=words):
        make_spec({"workload": "holding"})
    with pytest.raises(BadInput, match=words):
        check_workload(Holding(keys=40, key_groups=8))


@pytest.mark.parametrize(
    ("part", "registry", "known"), [("backend", backends, "memory"), ("ordering", orderings, "none")]
)
def test_what_slots_would_not_find_is_refused_before_anything_is_started(part, registry, known):
    registry.define("mine", registry.get(known))
    with pytest.raises(BadInput, match=f"^{registry.kind} 'mine' was defined here, and slots know the library's alone"):
        make_spec({part: "mine"})


def test_a_strategy_that_cannot_leave_the_process_keeps_no_job_of_another_one_from_its_start():
    lock = threading.Lock()

    def locking(strategy, view, log):
        """One unit in each step."""
        if not lock.locked():
            yield from (Step((move,)) for move in view.misplaced())

    strategy()(locking)
    said = []
    assert parcels_of(make_spec({}), said.append) == {"strategy": {}, "workload": {}}
    words = "locking cannot be sent to other processes: cannot pickle '_thread.lock' object"
    assert said[0].startswith(f"the job will not know strategy locking: {words}")
    with pytest.raises(BadInput, match=f"^{words}"):
        parcels_of(make_spec({"strategy": "locking"}))
