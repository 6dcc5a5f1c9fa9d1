"""What oracles ask of tables in common."""

import pandas as pd

from keyshift.workloads.keyed import Grouped
from keyshift.workloads.tables import misplaced


def test_each_key_in_a_unit_that_is_not_its_own_is_told():
    workload = Grouped(key_groups=8)
    part = pd.DataFrame({"key": range(20), "slot": 1}).assign(unit=lambda part: workload.units_of(part["key"]))
    assert list(misplaced(workload, part)) == []
    wrong = part.assign(unit=part["unit"].where(part["key"] != 3, 7 - part["unit"]))
    assert list(misplaced(workload, wrong)) == [f"final state of key 3 is in unit {wrong['unit'][3]}, slot 1"]
