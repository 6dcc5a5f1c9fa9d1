"""What pydantic refuses, in words for whoever gave it."""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from keyshift.model.errors import BadInput
from keyshift.registry import unknown

MOST = 3  # faults that one line tells of


def refusal(errors: Sequence[Any], model: Any = None) -> str:
    """Say why ``model`` refuses values, in one line: field, value and what is allowed; of an unknown key the nearest
    one.

    ``errors``: as ``ValidationError.errors()`` has them, with their input or without. Without the model keys are not
    known, nor what fields mean.
    """
    misspelt = any(error["type"] == "extra_forbidden" for error in errors)
    faults: dict[tuple[str, ...], dict[_Fault, list[str]]] = {}
    for error in errors:
        if not (misspelt and error["type"] == "missing"):  # a key that is misspelt is also missing
            place = _find(error["loc"], model)
            fault, said = _explain(error, place)
            faults.setdefault(place.value, {}).setdefault(fault, []).append(said)
    lines = []
    for told in faults.values():  # each type that a value may have says why not: the one that came furthest was meant
        furthest = max(told, key=lambda fault: fault.depth)
        lines.append(furthest.begin + " or ".join(dict.fromkeys(told[furthest])) + furthest.meaning)
    return "; ".join(lines[:MOST]) + (f" (and {len(lines) - MOST} more)" if len(lines) > MOST else "")


def made(model: Any, values: dict[str, Any]) -> Any:
    """The pydantic model of these values. Raises BadInput for those that it refuses."""
    fields = model.model_fields
    for name, value in values.items():
        if isinstance(value, bool) and name in fields and bool not in _kinds(fields[name].annotation):  # pydantic: 0, 1
            raise BadInput(f"{name} = {value}: neither a number nor a name ({fields[name].description})")
    try:
        return model(**values)
    except ValidationError as error:
        raise BadInput(refusal(error.errors(), model)) from None


class _Place(NamedTuple):
    """Where an error is, in names that the user gave. ``known``: those that the last one could be."""

    value: tuple[str, ...]  # down to the first value that may have several types
    path: tuple[str, ...]  # to the end
    field: FieldInfo | None  # the last one on the way
    known: list[str]


class _Fault(NamedTuple):
    """A line without what is wrong: others may say that of the same value in other words."""

    depth: int
    begin: str
    meaning: str


def _find(location: Sequence[str | int], model: Any) -> _Place:
    kinds, field = _kinds(model), None
    value, path, known = tuple[str, ...](), tuple[str, ...](), list[str]()
    tried = False
    for part in location:
        if len(kinds) > 1 and not tried:  # this part is no name, but the type that was tried
            value, tried = value or path, True
            continue
        fields = {each.alias or name: each for kind in kinds for name, each in _fields(kind).items()}
        path, known, tried = (*path, str(part)), list(fields), False
        if part in fields:
            field = fields[part]
            kinds = _kinds(field.annotation)
        else:  # of a list or a mapping
            kinds = [inner for kind in kinds for each in get_args(kind)[-1:] for inner in _kinds(each)]
    return _Place(value or path, path, field, known)


def _explain(error: Any, place: _Place) -> tuple[_Fault, str]:
    where, kind, said = ".".join(place.path), error["type"], error["msg"]
    if kind == "extra_forbidden" and place.known:
        *above, name = place.path
        of = f"key of {'.'.join(above)}" if above else "key"
        return _Fault(len(place.path), "", ""), str(unknown(of, name, place.known))
    given = f"{error['input']!r:.80}" if "input" in error and kind != "missing" else ""
    begin = f"{where} = {given}: " if where and given else f"{where or given}: "
    if kind == "value_error":  # of a validator of ours, whose words are whole
        return _Fault(len(place.path), begin if where else "", ""), str(error["ctx"]["error"])
    meaning = f" ({place.field.description})" if place.field and place.field.description else ""
    return _Fault(len(place.path), begin, meaning), said if said[:2].isupper() else said[:1].lower() + said[1:]


def _kinds(annotation: Any) -> list[Any]:
    """The types that a value may have, but for None."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _kinds(each)]
    return [] if annotation in (None, NoneType) else [annotation]


def _fields(kind: Any) -> dict[str, FieldInfo]:
    """The fields of a model; no other type has any."""
    return getattr(kind, "model_fields", {})
