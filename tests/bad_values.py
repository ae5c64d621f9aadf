"""Values that a field must refuse, made from its type alone: of every other JSON type, and beyond every bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from msgspec import NODEFAULT, inspect

KINDS: dict[str, Any] = {
    "boolean": True,
    "integer": 7,
    "number": 7.5,
    "string": "seven",
    "array": [[]],
    "object": {"seven": [[]]},
}
OVERSIZED = 300_000
"""Characters; a tenth as many entries."""
_TAKES: dict[type, tuple[str, ...]] = {
    inspect.AnyType: (*KINDS, "null"),
    inspect.BoolType: ("boolean",),
    inspect.IntType: ("integer",),
    inspect.FloatType: ("integer", "number"),
    inspect.StrType: ("string",),
    inspect.LiteralType: ("string",),
    inspect.NoneType: ("null",),
    inspect.ListType: ("array",),
    inspect.VarTupleType: ("array",),
    inspect.DictType: ("object",),
    inspect.StructType: ("object",),
}


@dataclass(frozen=True)
class Field:
    """A field of a body: where it is, what it takes, and a body that holds it."""

    path: tuple[str | int, ...]
    type: inspect.Type
    required: bool

    @property
    def name(self) -> str:
        """As ``param`` has it: ``files[0].file_id``."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return "".join(parts).removeprefix(".")

    @property
    def nullable(self) -> bool:
        return "null" in taken(self.type)

    def within(self, body: dict[str, Any], value: Any) -> dict[str, Any]:
        """The body with this value in the field; what lies between is made as small as it may be."""
        return _put(body, self.path, value)

    def wrong(self) -> Iterator[Any]:
        """Values that it must refuse."""
        takes = taken(self.type)
        yield from (value for kind, value in KINDS.items() if kind not in takes)
        if not self.nullable:
            yield None
        for option in options(self.type):
            yield from _beyond(option)

    def oversized(self) -> Iterator[Any]:
        """Values far larger than anybody means, where its type sets no bound."""
        for option in options(self.type):
            if isinstance(option, inspect.StrType) and option.max_length is None:
                yield "x" * OVERSIZED
            elif isinstance(option, inspect.DictType) and option.max_length is None:
                yield {f"k{i}": "v" for i in range(OVERSIZED // 10)}
            elif _is_list(option) and option.max_length is None:
                yield [smallest(option.item_type)] * (OVERSIZED // 10)


def fields_of(type_: type[Any]) -> list[Field]:
    """Every field of a body's type, and of the objects within it; a type inside itself is entered once."""
    found = inspect.type_info(type_)
    assert isinstance(found, inspect.StructType)
    return list(_fields(found, (), (found.cls,)))


def _fields(struct: inspect.StructType, path: tuple[str | int, ...], seen: tuple[type, ...]) -> Iterator[Field]:
    for field in struct.fields:
        if _internal(field.type):
            continue
        here = (*path, field.encode_name)
        yield Field(here, field.type, field.required)
        for option in options(field.type):
            inner, place = (option.item_type, (*here, 0)) if _is_list(option) else (option, here)
            for nested in options(inner):
                if isinstance(nested, inspect.StructType) and nested.cls not in seen:
                    yield from _fields(nested, place, (*seen, nested.cls))


def _internal(type_: inspect.Type) -> bool:
    return isinstance(type_, inspect.Metadata) and "x-internal" in (type_.extra_json_schema or {})


def _is_list(type_: Any) -> bool:
    return isinstance(type_, inspect.ListType | inspect.VarTupleType)


def options(type_: inspect.Type) -> Sequence[Any]:
    """The members of a union, or the type itself."""
    if isinstance(type_, inspect.Metadata):
        return options(type_.type)
    return type_.types if isinstance(type_, inspect.UnionType) else (type_,)


def taken(type_: inspect.Type) -> set[str]:
    """The JSON types that a type takes."""
    return {kind for option in options(type_) for kind in _TAKES.get(type(option), ())}


def _beyond(option: Any) -> Iterator[Any]:
    """One step over each bound."""
    if isinstance(option, inspect.IntType | inspect.FloatType):
        yield from (bound - 1 for bound in (option.ge, option.gt) if bound is not None)
        yield from (bound + 1 for bound in (option.le, option.lt) if bound is not None)
        yield from (bound for bound in (option.gt, option.lt) if bound is not None)
    if isinstance(option, inspect.IntType):
        yield 10**400
    if isinstance(option, inspect.StrType | inspect.ListType | inspect.VarTupleType | inspect.DictType):
        yield from (_sized(option, size) for size in _wrong_sizes(option))
    if isinstance(option, inspect.StrType) and option.pattern:
        yield "\0"
    if isinstance(option, inspect.LiteralType):
        yield f"{option.values[0]}x"
    if _is_list(option) and "null" not in taken(option.item_type):
        yield [*([smallest(option.item_type)] * (option.min_length or 0)), None]


def _wrong_sizes(option: Any) -> Iterator[int]:
    if option.max_length is not None:
        yield option.max_length + 1
    if option.min_length:
        yield option.min_length - 1


def _sized(option: Any, size: int) -> Any:
    if isinstance(option, inspect.StrType):
        return "x" * size
    if isinstance(option, inspect.DictType):
        return {str(i): smallest(option.value_type) for i in range(size)}
    return [smallest(option.item_type)] * size


def smallest(type_: inspect.Type) -> Any:
    """A small value that a type takes."""
    option = next((o for o in options(type_) if not isinstance(o, inspect.NoneType)), None)
    match option:
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return option.ge if option.ge is not None else 1
        case inspect.StrType():
            return "x" * (option.min_length or 1)
        case inspect.LiteralType():
            return option.values[0]
        case inspect.ListType() | inspect.VarTupleType():
            return [smallest(option.item_type)] * max(1, option.min_length or 1)
        case inspect.StructType():
            return {f.encode_name: smallest(f.type) for f in option.fields if f.required and f.default is NODEFAULT}
        case _:
            return {}


def _put(body: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy of the body, whose objects and lists on the way there are made where they are missing."""
    new: dict[str, Any] = dict(body)
    place: Any = new
    for part, after in pairwise(path):
        found = place[part] if isinstance(part, int) else place.get(part)
        if isinstance(after, int):
            found = [dict(found[0])] if isinstance(found, list) and found and isinstance(found[0], dict) else [{}]
        else:
            found = dict(found) if isinstance(found, dict) else {}
        place[part] = found
        place = found
    place[path[-1]] = value
    return new
