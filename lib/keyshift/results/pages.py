"""Pages that open anywhere: everything is inside, figures are inline SVG, there is no script and no link to elsewhere.

A template extends ``page.html.jinja``, which has head and style of all of them.
"""

import io
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import jinja2
import matplotlib as mpl
import pandas as pd
from markupsafe import Markup

from keyshift.analysis.plots.style import theme


def page(package: str, template: str, **values: Any) -> str:
    """The page of a template, which is beside the modules of ``package``; a missing value is an error. In HTML texts
    are escaped. ``made``, when and with what the page was made, is among the values.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(each, ".") for each in (package, "keyshift.results")]),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, keyshift {metadata.version('keyshift')}"
    return environment.get_template(template).render(made=made, **values)


def svg(figure: Any) -> Markup:
    """The figure as an SVG element, without the prologue of a file; the figure is closed."""
    content = io.StringIO()
    with theme():
        figure.savefig(content, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    mpl.pyplot.close(figure)
    whole = content.getvalue()
    return Markup(whole[whole.index("<svg") :])


def table(frame: pd.DataFrame) -> Markup:
    """The frame as a table, numbers with four digits, a dash for what is not known."""
    return Markup(frame.to_html(index=False, border=0, na_rep="–", float_format="{:.4g}".format))
