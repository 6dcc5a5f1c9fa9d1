"""Notebooks as a user executes them: by the command."""

from pathlib import Path

import pytest

from executed_copy import Copy, keyshift

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="session")
def execute_small(request):
    """Executes a notebook with some parameters; gives its home, the executed copy, and the ended command.

    ``home``: one of the test's own; otherwise that of the services which all tests share.
    """

    def execute(name, parameters, home=None):
        home = home or request.getfixturevalue("session_stack").home
        settings = [part for item in parameters.items() for part in ("--set", "=".join(item))]
        done = keyshift(home, "notebook", NOTEBOOKS / name, *settings)
        copy = max(home.glob(f"notebooks/*/{Path(name).name}"), key=lambda path: path.stat().st_mtime)  # the newest
        for file in (copy, copy.with_suffix(".html")):  # others get them
            found = [trace for trace in (str(home), str(NOTEBOOKS), str(Path.home())) if trace in file.read_text()]
            assert not found, f"{file.name} says where it was executed"
        return home, Copy(copy), done

    return execute
