"""What timers gave before, during and after a migration, on tables small enough to count."""

import numpy as np
import pandas as pd
import pytest

from keyshift.analysis.fired_windows import fired, fired_sentences
from keyshift.model.errors import BadInput

MIGRATION = pd.DataFrame({"switched_s": [0.25, 0.5], "drained_s": [0.75, 1.05]})


def metrics(*rows: tuple[float, int, int]) -> pd.DataFrame:
    """Rows of the tenth of a second, different moments in it, results."""
    told = [(at, f"timer_{n}", v) for at, *values in rows for n, v in zip(("moments", "results"), values, strict=True)]
    return pd.DataFrame([*told, (0.3, "rss_mib", 99.0)], columns=["t_s", "metric", "value"])


RUN = metrics((-1.0, 1, 5), (0.1, 1, 7), (0.2, 1, 2), (1.0, 2, 9), (1.1, 1, 1), (3.0, 1, 4))


def test_windows_and_results_are_counted_before_during_and_after_the_migration():
    found = fired({"q5": [{"metrics": RUN, "migration": MIGRATION}]}).loc["q5"]
    assert found[[f"windows {part}" for part in ("before", "during", "after")]].tolist() == [2, 3, 2]
    assert found[[f"results {part}" for part in ("before", "during", "after")]].tolist() == [12, 11, 5]
    assert found["results per window"] == 28 / 7


def test_without_timers_and_without_a_migration_nothing_is_made_up():
    nothing = {"metrics": metrics(), "migration": MIGRATION}
    never = {"metrics": RUN, "migration": MIGRATION[:0]}
    found = fired({"q1": [nothing], "still": [never]})
    assert found.loc["q1", "windows after"] == 0 and np.isnan(found.loc["q1", "results per window"])
    assert found.loc["still", ["windows before", "windows during", "windows after"]].tolist() == [7, 0, 0]
    assert fired_sentences(found) == ["Nothing moved in still.", "No timer gave a result in q1."]
    rolled_back = {"metrics": RUN, "migration": MIGRATION.assign(switched_s=np.nan, drained_s=np.nan)}
    found = fired({"back": [rolled_back]})
    assert found.loc["back", ["windows before", "windows during", "windows after"]].tolist() == [7, 0, 0]
    assert fired_sentences(found) == ["Nothing moved in back."]
    with pytest.raises(BadInput, match="fired, q1: no column value"):
        fired({"q1": [nothing | {"metrics": RUN.drop(columns="value")}]})


def test_timers_fire_behind_a_migration_of_which_a_death_has_cut_off_the_end():
    died = {"metrics": RUN, "migration": MIGRATION.assign(drained_s=np.nan)}
    found = fired({"q5": [died]})
    assert found.loc["q5", ["windows before", "windows during", "windows after"]].tolist() == [2, 1, 4]
    assert fired_sentences(found)[0].startswith("Timers fired in 1 of 1 runs, behind the migration, too")


def test_sentences_say_where_timers_fired_and_where_they_did_not():
    stuck = {"metrics": metrics((-1.0, 1, 5)), "migration": MIGRATION}
    runs = {"q5": [{"metrics": RUN, "migration": MIGRATION}], "q7": [stuck], "q1": [stuck | {"metrics": metrics()}]}
    assert fired_sentences(fired(runs)) == [
        "Timers fired in 1 of 3 runs, behind the migration, too: at the least at 2 moments (q5). Results per moment: 4 "
        "on average.",
        "No timer fired behind the migration of q7.",
        "No timer gave a result in q1.",
    ]
    assert fired_sentences(fired({})) == []


def test_all_runs_of_a_point_count():
    well, stuck = ({"metrics": each, "migration": MIGRATION} for each in (RUN, metrics((-1.0, 1, 5))))
    found = fired({"q5": [well, stuck, well], "q7": [stuck, stuck]})
    assert found.index.tolist() == ["q5"] * 3 + ["q7"] * 2
    timers, never = fired_sentences(found)
    assert timers.startswith("Timers fired in 2 of 5 runs, behind the migration, too: at the least at 2 moments (q5).")
    assert never == "No timer fired behind the migration of q5 (1 of 3 runs); q7."
