"""The container image: what it is called, and which installed packages have no business in it.

Only the standard library is imported at the top: ``make image`` asks for the tag before anything is installed.
"""

import hashlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

KEPT = {"pip"}  # `pip list` in a pod tells what runs there


def image_tag(root: Path) -> str:
    """Project version and the first 12 hex digits of the SHA-256 of the lock: ``0.1.0-1a2b3c4d5e6f``.

    ``root`` is the folder of the repository. The same tag means the same locked dependencies.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return f"{version}-{hashlib.sha256((root / 'requirements.lock').read_bytes()).hexdigest()[:12]}"


def not_needed() -> list[str]:
    """Installed packages that keyshift does not need to run, by name: tools for building, testing and linting."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    needed: set[str] = set()
    waiting = [Requirement("keyshift")]
    while waiting:
        wanted = waiting.pop()
        # An extra may bring requirements that the package alone has not: look once per package and extra.
        keys = {canonicalize_name(wanted.name)} | {f"{canonicalize_name(wanted.name)}[{e}]" for e in wanted.extras}
        if keys <= needed:
            continue
        needed |= keys
        for line in importlib.metadata.requires(wanted.name) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(requirement)
    installed = {canonicalize_name(found.name) for found in importlib.metadata.distributions()}
    return sorted(installed - needed - KEPT)


if __name__ == "__main__":
    sys.stdout.write(image_tag(Path.cwd()) + "\n")
