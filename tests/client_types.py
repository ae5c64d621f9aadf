"""Checks answers against the official clients' own types: nothing missing, nothing of a wrong type, nothing more."""

from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter


def exactly(type_: Any, value: Any) -> Any:
    """The value as the client's type. Raises AssertionError for a field that the type does not know."""
    found = _adapter(type_).validate_python(value)
    extra = sorted(_extra(found, ""))
    assert not extra, f"fields that {getattr(type_, '__name__', type_)} does not know: {', '.join(extra)}"
    return found


@lru_cache
def _adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def _extra(value: Any, where: str) -> list[str]:
    if isinstance(value, BaseModel):
        names = [f"{where}.{name}" for name in value.model_extra or {}]
        for name in type(value).model_fields:
            names += _extra(getattr(value, name), f"{where}.{name}")
        return names
    if isinstance(value, list):
        return [name for i, item in enumerate(value) for name in _extra(item, f"{where}[{i}]")]
    return []


def event_types(union: Any) -> dict[str, Any]:
    """The members of a union of events, by the ``type`` that each names."""
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in members}
