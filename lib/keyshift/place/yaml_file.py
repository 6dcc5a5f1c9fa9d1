"""YAML files that users write: profiles, and batch files."""

import re
from pathlib import Path
from typing import Any

import yaml

from keyshift.model.errors import BadInput


class _Loader(yaml.SafeLoader):
    """Reads numbers as JSON, Python and YAML 1.2 do: in YAML 1.1, 10:30 is 630, 012 is 10, and 1e3 is a text.

    It refuses a key that is there twice: YAML takes the last one and says nothing.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Compose a mapping, and refuse keys that are twice in it, before any other one is merged into it."""
        node = super().compose_mapping_node(anchor)
        found = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in found:
                    said = f"key {key.value!r} is there twice; leave one out"
                    raise yaml.MarkedYAMLError(problem=said, problem_mark=key.start_mark)
                found.add((key.tag, key.value))
        return node


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_INT, _FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


def read_yaml(what: str, path: Path) -> Any:
    """Read what is in the file. ``what``: the file, in words. Raises BadInput, one line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except RecursionError:
        raise BadInput(f"{what} cannot be read: it is nested too deep") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a 13th month
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{what} cannot be read: {' '.join(str(why).split())}") from None
