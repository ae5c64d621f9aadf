"""Attribute filters as SQL over the rows of files in stores; they mean what ``knowledge.filters.matches`` says."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Double, and_, case, cast, column, exists, func, literal_column, not_, or_

from appliance.knowledge.filters import ORDERS, Comparison, Compound, Filter, Scalar, kind_of
from appliance.storage.tables import StoreFile

_SQLITE_TYPES = {"str": ("text",), "number": ("integer", "real"), "bool": ("true", "false")}
_POSTGRESQL_TYPES = {"str": "string", "number": "number", "bool": "boolean"}


def condition(tree: Filter, dialect: str) -> ColumnElement[bool]:
    """The condition on ``StoreFile``; ``dialect`` is the database's name, ``sqlite`` or ``postgresql``."""
    if isinstance(tree, Compound):
        parts = [condition(part, dialect) for part in tree.filters]
        return and_(*parts) if tree.type == "and" else or_(*parts)
    found = _there_is(tree, dialect)
    return not_(found) if tree.type in ("ne", "nin") else found


def _there_is(term: Comparison, dialect: str) -> ColumnElement[bool]:
    """An attribute of this name, of the kind of one of the values, that compares with it."""
    values = term.value if isinstance(term.value, tuple) else (term.value,)
    compare = ORDERS.get(term.type, operator.eq)
    columns: list[Any] = [column("key"), column("value"), *([column("type")] if dialect == "sqlite" else [])]
    entry: Any = func.json_each(StoreFile.attributes).table_valued(*columns).alias("attribute")
    fits = _fits_sqlite if dialect == "sqlite" else _fits_postgresql
    return exists().where(entry.c.key == term.key, or_(False, *(fits(entry.c, value, compare) for value in values)))


def _fits_sqlite(entry: Any, value: Scalar, compare: Callable[[Any, Any], Any]) -> ColumnElement[bool]:
    plain = int(value) if isinstance(value, bool) else value
    return and_(entry.type.in_(_SQLITE_TYPES[kind_of(value)]), compare(entry.value, plain))


def _fits_postgresql(entry: Any, value: Scalar, compare: Callable[[Any, Any], Any]) -> ColumnElement[bool]:
    text = entry.value.op("#>>")(literal_column("'{}'"))
    kind = kind_of(value)
    if kind == "number":
        compared = compare(cast(text, Double), float(value))
    elif kind == "bool":
        compared = compare(text, str(value).lower())
    else:
        compared = compare(text.collate("C"), value)
    # What is no number cannot be cast, so the kind comes first, which only CASE promises.
    return case((func.json_typeof(entry.value) == _POSTGRESQL_TYPES[kind], compared), else_=False)
