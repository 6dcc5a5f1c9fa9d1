import re

import pytest

from keyshift.model.errors import BadInput
from keyshift.planner import strategies


@pytest.mark.parametrize("name", ["fluidd", 3, None, ["fluid"], {"strategy": "fluid"}])
def test_what_is_no_name_is_refused_as_one_that_is_misspelt(name):
    with pytest.raises(BadInput, match=rf"^unknown strategy {re.escape(repr(name))}: .*known: stop_restart, "):
        strategies.get(name)
