"""All that notebooks import, from one module."""

import pandas as pd
import pytest

from keyshift import suite
from keyshift.experiment.spec import make_spec
from keyshift.planner import targets


def test_every_name_leads_somewhere_and_one_that_is_not_there_is_told_with_those_that_are():
    assert suite.make_spec is make_spec
    assert suite.targets is targets
    assert dir(suite) == suite.__all__
    for name in suite.__all__:
        assert getattr(suite, name) is not None
    with pytest.raises(AttributeError, match=r"no 'make_specs'; it has Assignment, .*make_spec"):
        _ = suite.make_specs


def test_a_table_in_a_notebook_is_whole():
    wide = {f"measure {number}": range(400) for number in range(40)}
    shown = pd.DataFrame(wide)._repr_html_()
    assert "<td>123</td>" in shown and "measure 17" in shown
