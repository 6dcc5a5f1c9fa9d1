"""YAML files that users write: profiles, and batch files."""

from pathlib import Path
from typing import Any

import yaml

from keyshift.model.errors import BadInput


class _Loader(yaml.SafeLoader):
    """Of a key that is there twice YAML takes the last one and says nothing."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Once for each mapping, before any other one is merged into it."""
        node = super().compose_mapping_node(anchor)
        found = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in found:
                    said = f"key {key.value!r} is there twice; leave one out"
                    raise yaml.MarkedYAMLError(problem=said, problem_mark=key.start_mark)
                found.add((key.tag, key.value))
        return node


def read_yaml(what: str, path: Path) -> Any:
    """What is in the file. ``what``: the file, in words. Raises BadInput, one line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except RecursionError:
        raise BadInput(f"{what} cannot be read: it is nested too deep") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a 13th month
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{what} cannot be read: {' '.join(str(why).split())}") from None
