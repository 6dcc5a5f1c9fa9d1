"""Classes and packages are small, and one name means one thing."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

import keyshift

ROOT = Path(keyshift.__file__).parent
MOST_METHODS = 20
MOST_FILES = 15
MACHINES = {"CoordinatorMachine", "Situation", "SlotCore"}  # one method for each event that they take


def classes(source: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def methods(of: ast.ClassDef) -> set[str]:
    """Their names: those that are overloaded count once."""
    return {node.name for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def aliases(source: str) -> list[str]:
    """The names of types of a module that are no classes: unions, tuples, signatures; but for private ones.

    Constants have capitals only. A type variable is left out: each module declares those that it needs.
    """
    found = []
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name("TypeVar"))):
                pass
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                if name[0].isupper() and not name.isupper():
                    found.append(name)
    return found


def all_classes() -> list[tuple[str, ast.ClassDef]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), each) for path in paths for each in classes(path.read_text())]


def test_no_class_but_the_machines_has_more_than_twenty_methods():
    large = {each.name for _, each in all_classes() if len(methods(each)) > MOST_METHODS}
    assert large == MACHINES


def test_no_two_types_have_one_name():
    places = defaultdict(list)
    for path, each in all_classes():
        places[each.name].append(path)
    assert len(places) > 400, "or this looks in the wrong place"
    for path in sorted(ROOT.rglob("*.py")):
        for name in aliases(path.read_text()):
            places[name].append(path.relative_to(ROOT).as_posix())
    assert len(places) > 750, "or this finds no aliases"
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_package_has_more_than_fifteen_files_beside_each_other():
    beside = Counter(path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
    assert len(beside) > 30, "or this looks in the wrong place"
    assert {package: files for package, files in beside.items() if files > MOST_FILES} == {}
