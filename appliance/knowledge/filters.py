"""The attribute filters of vector-store search, as a syntax tree.

The wire form is OpenAI's: ``{"type": "eq", "key": "lang", "value": "en"}`` and
``{"type": "and", "filters": [...]}``. Vector stores compile this tree, never a string from the client,
and ``matches`` is the reference meaning that every store is tested against.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, Union

import msgspec

from appliance.errors import BadRequest
from appliance.wire import check_depth, invalid_field

Scalar: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Scalar]
MAX_DEPTH, MAX_TERMS, MAX_VALUES, MAX_TEXT = 8, 64, 256, 512
MAX_ALL_VALUES = 512
"""Of all lists and comparisons together: 64 lists of 256 took Milvus Lite seconds to read, while others waited."""
MAX_KEY = 64
"""Characters of an attribute's name; OpenAI's bound."""
MAX_NUMBER = 2**53
"""Whole numbers beyond it are no longer exact where they are stored, and attributes cannot hold them."""

ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
"""The comparisons of numbers and of texts."""


class Comparison(msgspec.Struct, frozen=True):
    """One comparison of an attribute with a constant. Values of another type never match."""

    key: str
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    value: Scalar | tuple[Scalar, ...]


class Compound(msgspec.Struct, frozen=True):
    """All (``and``) or any (``or``) of several filters."""

    type: Literal["and", "or"]
    filters: tuple[Union[Comparison, Compound], ...]  # noqa: UP007 - the name is not defined yet


Filter: TypeAlias = Comparison | Compound


def parse_filter(raw: object, param: str = "filters") -> Filter | None:
    """Check a decoded JSON value and build the tree; ``None`` stays ``None``.

    Raises:
        BadRequest: naming the place, when the value is not a filter or is too large.
    """
    if raw is None:
        return None
    check_depth(raw, param)
    tree = _parse(raw, param, depth=1)
    if _terms(tree) > MAX_TERMS:
        raise BadRequest(f"{param} holds more than {MAX_TERMS} comparisons; use fewer", param=param)
    if _values(tree) > MAX_ALL_VALUES:
        raise BadRequest(f"{param} holds more than {MAX_ALL_VALUES} values in all; use fewer", param=param)
    return tree


def _parse(raw: object, where: str, depth: int) -> Filter:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where} must be an object with a type", param=where)
    if depth > MAX_DEPTH:
        raise BadRequest(f"{where} is nested more than {MAX_DEPTH} deep", param=where)
    if raw.get("type") in ("and", "or"):
        return _parse_compound(raw, where, depth)
    return _parse_comparison(raw, where)


def _parse_compound(raw: dict[object, object], where: str, depth: int) -> Compound:
    parts = raw.get("filters")
    if not isinstance(parts, list) or not parts:
        raise BadRequest(f"{where}.filters must be a list of at least one filter", param=f"{where}.filters")
    trees = tuple(_parse(part, f"{where}.filters[{i}]", depth + 1) for i, part in enumerate(parts))
    return Compound(type="and" if raw["type"] == "and" else "or", filters=trees)


def _parse_comparison(raw: dict[object, object], where: str) -> Comparison:
    try:
        comparison = msgspec.convert(raw, Comparison)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{where} is not a filter: {invalid_field(error)}", param=where) from None
    if len(comparison.key) > MAX_KEY:
        raise BadRequest(
            f"{where}.key is longer than {MAX_KEY} characters, and no attribute's name is", param=f"{where}.key"
        )
    several = isinstance(comparison.value, tuple)
    if several != (comparison.type in ("in", "nin")):
        wanted = "a list" if not several else "a string, number or boolean"
        raise BadRequest(f"{where}.value must be {wanted} for type {comparison.type}", param=f"{where}.value")
    values = comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
    if len(values) > MAX_VALUES:
        raise BadRequest(f"{where}.value holds more than {MAX_VALUES} values", param=f"{where}.value")
    if comparison.type in ORDERS and isinstance(comparison.value, bool):
        raise BadRequest(f"{where}.value must be a number or string for {comparison.type}", param=f"{where}.value")
    if any(isinstance(value, str) and len(value) > MAX_TEXT * 4 for value in values):
        raise BadRequest(f"{where}.value is longer than {MAX_TEXT * 4} characters", param=f"{where}.value")
    if any(type(value) is int and abs(value) > MAX_NUMBER for value in values):
        raise BadRequest(f"{where}.value: whole numbers must lie within ±2^53", param=f"{where}.value")
    return comparison


def _terms(tree: Filter) -> int:
    return 1 if isinstance(tree, Comparison) else sum(_terms(part) for part in tree.filters)


def _values(tree: Filter) -> int:
    if isinstance(tree, Comparison):
        return len(tree.value) if isinstance(tree.value, tuple) else 1
    return sum(_values(part) for part in tree.filters)


def kind_of(value: Scalar) -> str:
    """``bool``, ``number`` or ``str``: values compare only within their kind."""
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "str"


def matches(tree: Filter | None, attributes: Attributes) -> bool:
    """The reference meaning of a filter.

    An absent attribute satisfies only ``ne`` and ``nin``; so does one of another kind.
    """
    if tree is None:
        return True
    if isinstance(tree, Compound):
        results = (matches(part, attributes) for part in tree.filters)
        return all(results) if tree.type == "and" else any(results)
    return _compare(tree, attributes.get(tree.key))


def _compare(term: Comparison, actual: Scalar | None) -> bool:
    values = term.value if isinstance(term.value, tuple) else (term.value,)
    same = [value for value in values if actual is not None and kind_of(value) == kind_of(actual)]
    if term.type in ("eq", "in"):
        return actual in same
    if term.type in ("ne", "nin"):
        return actual not in same
    return bool(same) and not isinstance(actual, bool) and bool(ORDERS[term.type](actual, same[0]))
