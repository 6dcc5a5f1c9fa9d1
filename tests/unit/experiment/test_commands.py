"""Every command of a live job: what it does, and that all who ask a job have it."""

import pytest
from pydantic import Field
from small_page import Page
from typer.main import get_command

from keyshift.cli import app
from keyshift.control.api import make_app
from keyshift.control.explorer import Explorer
from keyshift.control.watched import WatchedJob
from keyshift.experiment.commands import COMMANDS, Cancel, Command, MoveBy, Rate, Scale, command, command_of, script_of
from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.spec import make_spec
from keyshift.lab.live.job import LiveJob
from keyshift.model.errors import BadInput
from keyshift.waiting import wait_until
from keyshift.wire.faults import Fault

# Of each verb words of a script, and what a job is then told to do.
WORDS = {
    "scale": ("scale 4", ("move", None, 4)),
    "plan": ("plan matched 2", ("move", None, 2, "matched", {})),
    "cancel": ("cancel", ("cancel",)),
    "rate": ("rate 50 events", ("change_rate", 50.0, "events")),
    "double": ("double", ("change_rate", 200.0, None)),
    "fault": ("fault stop:slot:3s", ("hit", Fault("stop", "slot", "", None, 3.0))),
}


class Told:
    rate = 100.0

    def __getattr__(self, name):
        return lambda *given: self.__dict__.update(told=(name, *given)) or {}


@pytest.mark.parametrize("verb", COMMANDS)
def test_each_is_in_a_script_does_what_it_says_and_may_be_in_a_scenario(verb):
    words, wanted = WORDS[verb]
    (asked,) = script_of([f"4: {words}"])
    job = Told()
    asked.action.carry_out(job)
    assert (asked.at_s, str(asked.action), job.told) == (4.0, words, wanted)
    spec = make_spec({"trigger": "script", "script": f"4: {words}; 2.5: cancel", "slots_max": 8})
    assert spec.scenario.actions(spec.changes) == [(2.5, Cancel()), asked]
    assert set(spec.tasks.values()) == {8}


MAP_AND_COUNTER = {"workload": "chain", "chain": "map,counter"}
SAAS = {"workload": "saas", "rate_steps": "control=0:6"}
TWICE = "4: fault; 8: fault kill:slot"
RESTARTS = {"strategy": "stop_restart"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"trigger": "script"}, "script is missing: trigger = script needs commands and their times"),
        ({"script": "4: cancel"}, "script = 4: cancel: trigger is scale; set trigger = script"),
        ({"trigger": "script", "script": "4: scael 3"}, "script '4: scael 3': unknown command 'scael': did you mean"),
        ({"trigger": "script", "script": "4: scale"}, "'scale': must be `scale <slots> .stage.`"),
        ({"trigger": "script", "script": "4: scale four"}, "script '4: scale four': slots = 'four': input should be"),
        ({"trigger": "script", "script": "soon: cancel"}, "script 'soon: cancel': must be a second and a command"),
        ({"trigger": "script", "script": "-1: cancel"}, "its second must be a number from 0 on"),
        ({"trigger": "script", "script": "inf: cancel"}, "its second must be a number from 0 on"),
        ({"trigger": "script", "script": "cancel"}, "script 'cancel': must be a second"),
        ({"trigger": "script", "script": "99: cancel"}, "cancel at 99 s is not before the end, seconds = 24"),
        ({"trigger": "script", "script": "9: cancel", "stage": "all"}, "trigger = script may move all stages"),
        ({"trigger": "script", "script": TWICE}, f"^script = {TWICE}: the query dies 2 times .* = 1 times; raise rec"),
        ({"trigger": "script", "script": "4: fault", "fault": "kill:slot@8"}, "^fault = kill:slot@8, script = 4: fau"),
        (
            RESTARTS | {"trigger": "script", "script": "4: scale 4; 8: scale 2; 12: plan fluid 4"},
            "^script: plan fluid 4 at 12 s: slots = 4: 2 are provisioned",
        ),
        *(
            ({"trigger": "script", "script": f"4: cancel; 5: {words}"} | more, f"^script: {words} at 5 s: {why}")
            for words, why, more in [
                ("scale 9", "slots = 9: 4 are provisioned in this job; start a job with --set slots_max=9", {}),
                ("scale 0", "slots = 0: must be a number of slots from 1 to 4", {}),
                ("scale 3 countr", "unknown stage 'countr': did you mean 'counter'", {}),
                ("scale 3", "stage is missing: this job has map, counter", MAP_AND_COUNTER),
                ("plan fluid 9 counter", "slots = 9: 4 are provisioned", {}),
                ("plan fluid 0:7", "slots = 8: 4 are provisioned", {}),
                ("plan fluid 4", "slots = 4: 2 are provisioned", RESTARTS),
                ("plan fluid 500:1", "unit 500 is unknown: units are 0 to 127", {}),
                ("plan fluid 3 szie=2", "unknown setting 'szie': did you mean 'size'", {}),
                ("plan lazy 3", "ordering = live_robin with strategy = lazy", {"ordering": "live_robin"}),
                ("rate 5 evnts", "unknown source 'evnts': did you mean 'events'", {}),
                ("double", "rate_steps = 0:6000: say what events offers either there or by", {"rate_steps": "0:6000"}),
                ("rate 5 control", "rate_steps = control=0:6: say what control offers", SAAS),
                ("fault kill:replica", "fault = kill:replica: this job has no replicas", {}),
            ]
        ),
    ],
)
def test_a_script_that_is_none_is_refused(values, words):
    with pytest.raises(BadInput, match=words):
        make_spec(values)


@pytest.mark.parametrize(
    "values",
    [
        {"script": "3: scale 3", "seconds": 6},  # before another trigger would come
        {"script": "7200: scale 3", "seconds": 7300},
        RESTARTS | {"script": "4: scale 4; 8: plan fluid 2; 12: plan fluid 0:3"},  # 4 are provisioned
        RESTARTS | {"script": "4: scale 4; 8: scale 2; 9: cancel; 12: plan fluid 4"},  # if the latter was taken back
        RESTARTS | {"script": "4: plan stop_restart 0:1; 8: plan fluid 2"},  # all other key groups stay
        {"script": "4: plan stop_restart 2; 8: plan fluid 4"},  # of a job that keeps the slots that it has
        SAAS | {"script": "4: double"},  # of a source beside the one that has steps
    ],
)
def test_a_script_is_not_refused_for_what_is_possible(values):
    assert make_spec({"trigger": "script"} | values)


@pytest.fixture
def show(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    values = {"workload": "keycount", "strategy": "fluid", "rate": 100.0, "slots_max": 4}
    return lambda job: Page(monkeypatch, Explorer(job, values))


@pytest.mark.parametrize("verb", COMMANDS)
def test_each_has_a_path_an_option_for_each_field_and_a_button(verb, show):
    routes = make_app(LiveJob(lambda *_: None, live_spec({})), "token").routes
    assert [route.methods for route in routes if route.path == f"/{verb}"] == [{"POST"}]
    shown = get_command(app).commands["job"].commands[verb]
    assert {option.name for option in shown.params} >= {"name", *COMMANDS[verb].model_fields}
    assert shown.help == COMMANDS[verb].__doc__
    page = show(WatchedJob())
    assert verb in page.buttons
    assert page.given[verb].keys() == COMMANDS[verb].model_fields.keys() - {"settings"}


class Pressed(WatchedJob):
    def do(self, asked):
        self.asked = asked


def test_a_button_sends_what_was_written_and_leaves_out_what_may_be_missing(show):
    job = Pressed()
    page = show(job)
    page.buttons["scale"].click()
    assert wait_until(lambda: page.said.value == "scale 4", 60.0) and job.asked == Scale(slots=4)
    page.given["fault"]["fault"].value = ""
    page.buttons["fault"].click()
    assert wait_until(lambda: "fault = &#x27;&#x27;" in page.said.value, 60.0) and job.asked == Scale(slots=4)


def test_a_button_of_a_verb_of_ones_own_shows_its_defaults_and_nothing_of_what_is_needed(show, monkeypatch):
    class Pause(Command):
        why: str
        seconds: int = 0
        whole: bool = False
        times: int = Field(default_factory=lambda: 3)
        stage: str | None = None

    monkeypatch.setitem(COMMANDS, "pause", Pause)
    shown = {name: field.value for name, field in show(WatchedJob()).given["pause"].items()}
    assert shown == {"why": "", "seconds": "0", "whole": "False", "times": "3", "stage": ""}


def test_values_may_be_words():
    assert command_of(["plan", "chunked", "0:3,7:1"]).target == {0: 3, 7: 1}
    assert command("plan", {"strategy": "chunked", "target": "4", "settings": ["size=2"]}) == MoveBy(
        strategy="chunked", target=4, settings={"size": 2}
    )
    assert [str(each) for each in (Scale(slots=3, stage="map"), Rate(rate=5e3))] == ["scale 3 map", "rate 5000"]


def test_a_script_may_have_settings_and_a_stage_in_any_order_and_what_it_asks_can_be_read_again():
    wanted = MoveBy(strategy="chunked", target=2, settings={"size": 2, "order": "hottest"}, stage="map")
    for words in ("plan chunked 2 size=2 order=hottest map", "plan size=2 chunked 2 map order=hottest"):
        assert command_of(words.split()) == wanted
        assert command_of(str(wanted).split()) == wanted
    assert str(wanted) == "plan chunked 2 size=2 order=hottest map"
    for words in ("plan lazy 0:3,7:1 background=true", "plan lazy 2 size=null counter"):
        assert str(command_of(words.split())) == words
    with pytest.raises(BadInput, match=r"must be `plan <strategy> <target> \[name=value \.\.\.\] \[stage\]`"):
        command_of(["plan", "chunked"])
    with pytest.raises(BadInput, match=r"^'scale 3 size=2 map': must be `scale <slots> \[stage\]`"):
        command_of(["scale", "3", "size=2", "map"])
    with pytest.raises(BadInput, match=r"^size is given twice, as 1 and as 2; leave one out"):
        command_of(["plan", "chunked", "2", "size=1", "size=2"])


@pytest.mark.parametrize(
    ("verb", "values", "words"),
    [
        ("scael", {}, "unknown command 'scael': did you mean 'scale'"),
        ("scale", {}, "slots: field required"),
        ("scale", {"slots": "four"}, "slots = 'four': input should be a valid integer"),
        ("scale", {"slots": True}, "slots = True: neither a number nor a name"),
        ("scale", {"slots": 3, "stge": "map"}, "unknown key 'stge': did you mean 'stage'"),
        ("plan", {"strategy": "fluit", "target": 3}, "did you mean 'fluid'"),
        ("plan", {"strategy": "fluid", "target": "a:b"}, "target"),
        ("plan", {"strategy": "fluid", "target": "0:3,7"}, "^target = '0:3,7': must be a number .* 0:3,7:1"),
        ("plan", {"strategy": "fluid", "target": "0:1,7:1,0:3"}, "'0:1,7:1,0:3': key group 0 is there twice; leave"),
        ("fault", {"fault": ""}, "fault = '': '' is none of kill"),
        ("rate", {"rate": 0}, "rate = 0: input should be greater than 0"),
        ("rate", {"rate": float("nan")}, "rate = nan"),
        ("fault", {"fault": "kill:source"}, "source is hit in a phase only"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right(verb, values, words):
    with pytest.raises(BadInput, match=words):
        command(verb, values)
