"""Chunks, vectors and filters with which vector stores are tried, harmless and hostile ones."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import strategies as st

from appliance.knowledge.filters import Attributes, Comparison, Compound, Scalar
from appliance.types import Scope, StoredChunk

COLLECTION = "contract"
EVERYONE = Scope()
"""What a caller without an account sees."""
TRICKY: tuple[Scalar, ...] = (
    '") or true or ("',
    'a" or "1"=="1',
    "O'Brien",
    "",
    "true",
    True,
    False,
    "5",
    5,
    1,
    0,
    1.5,
    -3,
    "back\\slash",
    'end\\"',
    "line\nbreak\r\ttab",
    "%",
    "_",
    "$meta",
    "é\u2028ß",
    "\0",
    "a\0b",
    "\x01\x01",
    "\U0001f600",
    "{x}$1%s",
    'b") or ("1"=="1',
    "x" * 600,
)
"""Values that mean something to one query language or another; here each means itself."""


def vectors(*rows: Sequence[float]) -> bytes:
    """Rows as the bytes that ``upsert`` takes."""
    return array("f", [value for row in rows for value in row]).tobytes()


SCRIPTS = (
    ("浦东新区", "王芳住在上海市浦东新区。"),
    ("제품", "온라인에서 제품을 구매"),
    ("เอกสาร", "นี่คือเอกสารภาษาไทย"),
    ("दस्तावेज़", "यह एक दस्तावेज़ है"),
    ("re\u0301sume\u0301", "le résumé"),
)
"""Words, and texts that hold them, also without a space around the word or in another spelling (Unicode's NFC, NFD)."""


def chunk(
    position: int,
    text: str = "text",
    *,
    file_id: str = "file-a",
    attributes: Attributes | None = None,
    tenant: str = "default",
    readers: tuple[str, ...] = ("*",),
) -> StoredChunk:
    """A chunk with an id made from file and position."""
    return StoredChunk(
        id=f"{file_id}:{position}",
        file_id=file_id,
        position=position,
        text=text,
        start=10 * position,
        end=10 * position + 5,
        tenant=tenant,
        readers=readers,
        attributes=attributes or {},
    )


_keys = st.sampled_from(["k"] * 6 + ["lang", 'a"b', "it's", "back\\slash", "s:k", "ключ", "new\nline", "]"])
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_wide_numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_small: tuple[Scalar, ...] = (0, 1, 1.5, 2, "", "a", "b", "1")
_orderable: st.SearchStrategy[Scalar] = st.one_of(st.sampled_from(_small), _wide_numbers, _text)
_values: st.SearchStrategy[Scalar] = st.one_of(st.booleans(), st.sampled_from(TRICKY), _orderable)
ATTRIBUTES: st.SearchStrategy[dict[str, Scalar]] = st.dictionaries(_keys, _values, max_size=3)
_comparisons = st.one_of(
    st.builds(Comparison, key=_keys, type=st.sampled_from(["eq", "ne"]), value=_values),
    st.builds(Comparison, key=_keys, type=st.sampled_from(["gt", "gte", "lt", "lte"]), value=_orderable),
    st.builds(
        Comparison,
        key=_keys,
        type=st.sampled_from(["in", "nin"]),
        value=st.lists(_values, max_size=4).map(tuple),
    ),
)
FILTERS = st.recursive(
    _comparisons,
    lambda inner: st.builds(
        Compound, type=st.sampled_from(["and", "or"]), filters=st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=5,
)

TENANTS = st.sampled_from(["default", "other", 'x" or "1"=="1'])
READERS = st.lists(st.sampled_from(["*", "user:a", "group:a", "user:%", 'group:") or ("']), max_size=3, unique=True)
