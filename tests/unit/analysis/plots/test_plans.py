"""Plans in modelled time: the model by hand, the numbers and sentences from it, and that the charts draw just that."""

import pytest
from matplotlib import colors

from keyshift.analysis import plans
from keyshift.analysis.plots.plans import plan_panels
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Mode, Move, Step
from keyshift.planner import in_units, make_plan, strategies, targets

MODEL = plans.CostModel(step_s=1.0, bytes_per_s=100.0, restart_s=50.0, dirty=0.1)
# Slot 0 gives units 0 and 1 to slot 2, slot 1 gives unit 2 to slot 2 and unit 3 to slot 3.
MOVES = (Move(0, 0, 2), Move(1, 0, 2), Move(2, 1, 2), Move(3, 1, 3))
BYTES = [100.0, 200.0, 300.0, 400.0]


def once(mode: Mode | None = None):
    return plans.modelled([Step(MOVES, mode or Mode())], BYTES, MODEL)


def one_by_one():
    return plans.modelled([Step((move,)) for move in MOVES], BYTES, MODEL)


def test_a_step_lasts_as_long_as_agreeing_on_it_and_its_busiest_destination_and_begins_behind_the_one_before():
    frame, apart = once(), one_by_one()
    assert frame["begin_s"].tolist() == [1.0, 2.0, 4.0, 1.0]
    assert frame["end_s"].tolist() == [2.0, 4.0, 7.0, 5.0]
    assert frame["bytes"].tolist() == BYTES
    assert apart["step_begin_s"].tolist() == [0.0, 2.0, 5.0, 9.0]
    assert apart["end_s"].tolist() == [2.0, 5.0, 9.0, 14.0]
    assert once(Mode(gate="query"))["end_s"].max() == 56.0, "down as long as the model says"


def test_what_travels_of_a_copied_unit_is_the_dirty_part_and_of_one_that_records_ask_for_nothing():
    copies = [Move(0, 0, 2), Move(3, 1, 2)]  # that of unit 3 is at another slot
    delta = plans.modelled([Step(MOVES)], BYTES, MODEL, copies)
    assert delta["bytes"].tolist() == [10.0, 200.0, 300.0, 400.0]
    assert plans.modelled([Step(MOVES)], BYTES, MODEL, copies, whole=True)["bytes"].tolist() == BYTES
    frame = once(Mode(transfer="access", background=False))
    assert frame["asked_for"].all()
    assert frame["bytes"].sum() == 0
    assert frame["end_s"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step_s": -1.0}, "step_s = -1.0"),
        ({"restart_s": float("nan")}, "restart_s = nan"),
        ({"bytes_per_s": 0.0}, "never arrive"),
        ({"dirty": 1.5}, "dirty = 1.5"),
    ],
)
def test_an_impossible_model_is_refused(values, message):
    with pytest.raises(BadInput, match=message):
        plans.CostModel(**({"step_s": 1.0, "bytes_per_s": 1.0, "restart_s": 1.0, "dirty": 0.0} | values))


def test_the_table_tells_what_the_plans_differ_in():
    mib = 2**20
    table = plans.plan_table({"once": once(), "one": one_by_one()}, {"once": 0.0, "one": 3 * mib})
    assert table[["steps", "moves", "largest step (units)"]].to_numpy().tolist() == [[1, 4, 4], [4, 4, 1]]
    assert table["in flight at most (MiB)"].tolist() == [1000 / mib, 400 / mib]
    assert table["modelled time (s)"].tolist() == [7.0, 14.0]
    assert table["copied before (MiB)"].tolist() == [0.0, 3.0]
    assert "copied before (MiB)" not in plans.plan_table({"once": once()})


def test_the_sentences_follow_from_the_plans_and_matched_makes_the_fewest_steps():
    lazy = once(Mode(transfer="access", background=False))
    said = plans.plan_sentences({"once": once(), "gated": once(Mode(gate="slots")), "one": one_by_one(), "lazy": lazy})
    assert said == [
        "once, gated and lazy make the same moves in the same steps.",
        "one has at most 0.00038 MiB in flight, once 0.00095 MiB: 2.5 times as much. For that it makes 4 steps instead "
        "of 1 and takes, by the model, 14 s instead of 7.0 s.",
        "Where a slot gives and takes at most one unit per step, there are at least as many steps as the busiest slot "
        "has units to give or to take: one makes 4, the fewest are 3.",
        "lazy: only owners change with the plan; state comes when a record asks for it.",
    ]
    assert plans.plan_sentences({"empty": plans.modelled([], BYTES, MODEL)}) == ["Nothing has to move."]
    here = Assignment.contiguous(32, 3)
    made = make_plan(strategies.get("matched"), here, targets.scale(here, 5))
    (said,) = plans.plan_sentences({"matched": plans.modelled(made.steps, [1.0] * 32, MODEL)})
    assert said.endswith(f"matched makes {len(made.steps)}, the fewest.")


def test_the_chart_has_a_bar_per_unit_at_its_destination_in_the_colour_of_its_source_and_a_shade_for_a_gate():
    figure = plan_panels({"one": one_by_one()})
    [ax] = figure.axes
    agreeing = [bar for bar in ax.patches if bar.get_x() in (0.0, 2.0, 5.0, 9.0) and bar.get_width() == 1.0][:4]
    bars = ax.patches[len(agreeing) :]
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(1.0, 1.0), (3.0, 2.0), (6.0, 3.0), (10.0, 4.0)]
    assert [round(bar.get_y() + bar.get_height() / 2) for bar in bars] == [0, 0, 0, 1]
    seen = [colors.to_hex(bar.get_facecolor()) for bar in bars]
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["2", "3"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["from slot 0", "from slot 1"]
    figure = plan_panels({"gated": once(Mode(gate="slots"))})
    shade = figure.axes[0].patches[0]
    assert (shade.get_x(), shade.get_width()) == (0.0, 7.0)
    assert "affected slots wait" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_preset_has_a_panel_with_its_numbers_and_all_share_their_axes():
    here = Assignment.contiguous(16, 2)
    there = targets.scale(here, 4)
    drawn = {}
    for name, preset in strategies.items():
        made = make_plan(preset, in_units(preset, here), in_units(preset, there), [1.0] * 16 * preset.bins)
        drawn[name] = plans.modelled(made.steps, [50.0] * 16 * preset.bins, MODEL, made.copies)
    figure = plan_panels(drawn)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == strategies.names()
    assert len({ax.get_xlim() for ax in shown}) == len({ax.get_ylim() for ax in shown}) == 1
    assert {ax.texts[0].get_text() for ax in shown} >= {"8 steps, 8 units, 12 s", "1 step, 8 units, 52 s"}
    assert shown[0].get_xlim()[1] < 50, "the restart would squeeze all others"


def test_a_plan_without_moves_is_drawn_empty_and_no_plan_is_refused():
    empty = plans.modelled([], BYTES, MODEL)
    [ax] = plan_panels({"empty": empty}).axes
    assert len(ax.patches) == 0
    with pytest.raises(BadInput, match="no plan given"):
        plan_panels({})
    with pytest.raises(BadInput, match="plan_panels, empty: no column gate"):
        plan_panels({"empty": empty.drop(columns="gate")})
