"""Filters and chunks as PostgreSQL has them. Every value is a bound parameter; keys are values too (B6).

Attributes lie in a ``jsonb`` under names that carry their kind (``s:lang``, ``n:year``, ``b:draft``), so that ``true``,
``1`` and ``"1"`` never meet. PostgreSQL's text holds no NUL: ``stored`` writes it otherwise, and keeps the order of
code points, by which strings are compared here as everywhere (``COLLATE "C"``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from appliance.plugin import Attributes, Comparison, Filter, Scalar, Scope, StoredChunk
from appliance_retrieval.terms import search_terms

_ESCAPES = str.maketrans({"\0": "\1\1", "\1": "\1\2"})
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_MOST_POSITIONS = 255
"""Places that a tsvector keeps of one word."""
_NUMBER, _STRING, _BOOLEAN = "n", "s", "b"


class Parameters:
    """The values of one statement, in order; ``bind`` says how the statement names one."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def bind(self, value: Any, type_: str) -> str:
        """Keep a value; its place in the statement, with its type."""
        self.values.append(value)
        return f"${len(self.values)}::{type_}"


def stored(text: str) -> str:
    """Text without NUL; no two texts become one, and none changes places."""
    return text.translate(_ESCAPES) if "\0" in text or "\1" in text else text


def unstored(text: str) -> str:
    """The text that ``stored`` was given."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def scope_condition(scope: Scope, parameters: Parameters) -> str:
    """The server's part of every query."""
    tenant = parameters.bind(stored(scope.tenant), "text")
    readers = parameters.bind([stored(reader) for reader in scope.readers], "text[]")
    return f"tenant = {tenant} AND readers && {readers}"


def row_condition(scope: Scope, where: Filter | None, parameters: Parameters) -> str:
    """The server's part AND the client's filter."""
    condition = scope_condition(scope, parameters)
    return condition if where is None else f"{condition} AND ({filter_condition(where, parameters)})"


def filter_condition(tree: Filter, parameters: Parameters) -> str:
    """A filter tree as a condition that selects what ``matches`` selects."""
    if isinstance(tree, Comparison):
        return _comparison(tree, parameters)
    return f" {tree.type.upper()} ".join(f"({filter_condition(part, parameters)})" for part in tree.filters)


def _comparison(term: Comparison, parameters: Parameters) -> str:
    values = term.value if isinstance(term.value, tuple) else (term.value,)
    if term.type in _OPERATORS:
        return _ordered(term.key, _OPERATORS[term.type], values[0], parameters)
    same = _any_of(term.key, values, parameters)
    # An absent attribute, or one of another kind, is NULL: neither equal nor different.
    return f"({same}) IS TRUE" if term.type in ("eq", "in") else f"({same}) IS NOT TRUE"


def _any_of(key: str, values: Sequence[Scalar], parameters: Parameters) -> str:
    """Whether an attribute is one of some values, kind by kind."""
    kinds: dict[str, list[Scalar]] = {}
    for value in values:
        kinds.setdefault(_kind(value), []).append(value)
    parts = []
    for kind, given in kinds.items():
        prepared = [_prepared(value) for value in given]
        type_ = _TYPES[kind]
        parts.append(f"{_attribute(kind, key, parameters)} = ANY({parameters.bind(prepared, type_ + '[]')})")
    return " OR ".join(f"coalesce({part}, false)" for part in parts) or "false"


def _ordered(key: str, operator: str, value: Scalar, parameters: Parameters) -> str:
    kind = _kind(value)
    collation = ' COLLATE "C"' if kind == _STRING else ""
    attribute = _attribute(kind, key, parameters)
    return f"{attribute} {operator} {parameters.bind(_prepared(value), _TYPES[kind])}{collation}"


def _attribute(kind: str, key: str, parameters: Parameters) -> str:
    name = parameters.bind(f"{kind}:{stored(key)}", "text")
    return f"(attributes ->> {name})" if kind == _STRING else f"(attributes ->> {name})::{_TYPES[kind]}"


_TYPES = {_NUMBER: "float8", _STRING: "text", _BOOLEAN: "boolean"}


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return _BOOLEAN
    return _STRING if isinstance(value, str) else _NUMBER


def _prepared(value: Scalar) -> Any:
    if isinstance(value, bool):
        return value
    return stored(value) if isinstance(value, str) else float(value)


def attributes_json(attributes: Attributes) -> str:
    """The ``jsonb`` that filters look at; numbers as text, so that each 64-bit float comes back as it was."""
    return msgspec.json.encode(
        {
            f"{_kind(value)}:{stored(key)}": repr(float(value)) if _kind(value) == _NUMBER else _prepared(value)
            for key, value in attributes.items()
        }
    ).decode()


_decode_attributes = msgspec.json.Decoder(dict[str, Scalar]).decode
COLUMNS = "id, file_id, position, first, last, tenant, readers, text, context, details"
"""What ``chunk_of`` needs."""


def details_json(attributes: Attributes) -> str:
    """The attributes as they come back, with every type; JSON that PostgreSQL does not look into."""
    return msgspec.json.encode(dict(attributes)).decode()


def chunk_of(row: Mapping[str, Any]) -> StoredChunk:
    """A chunk from a row with ``COLUMNS``."""
    return StoredChunk(
        id=unstored(row["id"]),
        file_id=unstored(row["file_id"]),
        position=row["position"],
        text=unstored(row["text"]),
        start=row["first"],
        end=row["last"],
        tenant=unstored(row["tenant"]),
        readers=tuple(unstored(reader) for reader in row["readers"]),
        attributes=_decode_attributes(row["details"]),
        context=unstored(row["context"]),
    )


def tsvector(text: str) -> tuple[str, int]:
    """A text's words as the literal of a ``tsvector``, each as often as it is there, and how many they are.

    Made here and not by ``to_tsvector``, so that words are cut and stemmed alike in every vector store.
    """
    counts = Counter(search_terms(text))
    words = (f"'{word}':{_places(count)}" for word, count in counts.items())
    return " ".join(words), counts.total()


def _places(count: int) -> str:
    return ",".join(map(str, range(1, min(count, _MOST_POSITIONS) + 1)))


def tsquery(words: Sequence[str]) -> str:
    """Any of these words. They hold only letters, digits and _, so none can leave its quotes."""
    return " | ".join(f"'{word}'" for word in words)
