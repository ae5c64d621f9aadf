"""Chunks as Milvus rows: the collection's schema and indexes, and both directions of the conversion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from appliance.plugin import InvalidFile, Scalar, StoredChunk
from appliance_retrieval.milvus_filter import attribute_fields, readers_text
from appliance_retrieval.terms import BM25_B, BM25_K1, query_terms, search_terms
from appliance_retrieval.unit_vectors import unit_rows

MAX_BYTES = 65_535
"""Milvus' limit for one VARCHAR value, in UTF-8 bytes."""
_WORD = re.compile(r"\w+")
OUTPUT = ["file_id", "position", "tenant", "text", "details"]
"""Columns that ``chunk_of`` needs."""


class Details(msgspec.Struct, array_like=True):
    """What comes back with a chunk but is never searched, kept as JSON text so that every type survives."""

    start: int
    end: int
    readers: tuple[str, ...]
    attributes: dict[str, Scalar]
    context: str = ""


_decode_details = msgspec.json.Decoder(Details).decode


def make_schema(client: Any, dimensions: int) -> Any:
    """One row a chunk: dense vector, BM25 over ``terms``, attributes as dynamic fields."""
    from pymilvus import DataType, Function, FunctionType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=512)
    schema.add_field("file_id", DataType.VARCHAR, max_length=512)
    schema.add_field("position", DataType.INT64)
    schema.add_field("tenant", DataType.VARCHAR, max_length=1024)
    schema.add_field("readers", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("text", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("terms", DataType.VARCHAR, max_length=MAX_BYTES, enable_analyzer=True)
    schema.add_field("details", DataType.VARCHAR, max_length=MAX_BYTES)
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=dimensions)
    schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
    bm25 = Function(
        name="bm25", function_type=FunctionType.BM25, input_field_names=["terms"], output_field_names=["sparse"]
    )
    schema.add_function(bm25)
    return schema


def index_configs(dense: str) -> dict[str, dict[str, Any]]:
    """Index parameters by field; ``dense`` is the index type of the vectors."""
    return {
        # Vectors are stored at unit length: the inner product is the cosine, and Milvus Lite need not norm each search.
        "dense": {"index_type": dense, "metric_type": "IP", "params": {}},
        "sparse": {
            "index_type": "SPARSE_INVERTED_INDEX",
            "metric_type": "BM25",
            "params": {"bm25_k1": BM25_K1, "bm25_b": BM25_B},
        },
    }


def make_rows(chunks: Sequence[StoredChunk], vectors: bytes, dimensions: int) -> list[dict[str, Any]]:
    """Rows to write; ``vectors`` is float32 little-endian, row after row."""
    units = unit_rows(vectors, dimensions).tolist()
    return [_row(chunk, unit) for chunk, unit in zip(chunks, units, strict=True)]


def _row(chunk: StoredChunk, unit: list[float]) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "file_id": chunk.file_id,
        "position": chunk.position,
        "tenant": chunk.tenant,
        "text": _checked(chunk.text, chunk),
        "terms": terms_text(chunk.searchable),
        "dense": unit,
        **mutable_fields(chunk),
    }


def mutable_fields(chunk: StoredChunk) -> dict[str, Any]:
    """The fields that change with a chunk's readers and attributes."""
    details = Details(chunk.start, chunk.end, chunk.readers, dict(chunk.attributes), chunk.context)
    return {
        "readers": _checked(readers_text(chunk.readers), chunk),
        "details": _checked(msgspec.json.encode(details).decode(), chunk),
        **attribute_fields(chunk.attributes),
    }


def _checked(value: str, chunk: StoredChunk) -> str:
    if len(value.encode()) > MAX_BYTES:
        raise InvalidFile(
            f"chunk {chunk.position} of {chunk.file_id}: text, readers and attributes may hold {MAX_BYTES} bytes each;"
            " use a smaller max_chunk_size_tokens or fewer readers"
        )
    return value


def terms_text(text: str) -> str:
    """What the BM25 analyzer sees of a text."""
    return _joined(search_terms(text))


def query_text(query: str) -> str:
    """What it sees of a query."""
    return _joined(query_terms(query))


def _joined(terms: Sequence[str]) -> str:
    """Milvus' analyzer parts words at signs on letters, as vowels of Hindi are: words with any are put as digits."""
    words = (term if _WORD.fullmatch(term) else term.encode().hex() for term in terms)
    return " ".join(words).encode()[:MAX_BYTES].decode(errors="ignore")


def chunk_of(row: Mapping[str, Any]) -> StoredChunk:
    """A chunk from a row with the ``OUTPUT`` columns and ``id``."""
    details = _decode_details(row["details"])
    return StoredChunk(
        id=row["id"],
        file_id=row["file_id"],
        position=row["position"],
        text=row["text"],
        start=details.start,
        end=details.end,
        tenant=row["tenant"],
        readers=details.readers,
        attributes=details.attributes,
        context=details.context,
    )
