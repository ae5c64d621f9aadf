"""A client of pymilvus for the Milvus server of the tests (2.3), before which that one looks like one of today.

The only server that a package index has is older than two things the plugin needs, which are made up for here: ``like``
with something before the word (2.4), and BM25 (2.5). All else is the server's own: schemas, indexes, writes, reads,
filters, consistency, databases, errors.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from pymilvus import MilvusClient

from appliance_retrieval.terms import BM25_B, BM25_K1

_READER = re.compile(r'readers like "%\|([0-9a-f]+)\|%"')
_WINDOW = 16_384


class BridgedClient(MilvusClient):
    """Stands where ``MilvusClient`` does."""

    def get_server_version(self, *_: Any, **__: Any) -> str:
        return "v2.6.10"

    def create_collection(self, collection_name: str, *args: Any, schema: Any, **given: Any) -> None:
        """Without the field that BM25 fills."""
        older = self.create_schema(auto_id=False, enable_dynamic_field=True)
        for field in schema.fields:
            if field.name != "sparse":
                older.add_field(field.name, field.dtype, is_primary=field.is_primary, **field.params)
        super().create_collection(collection_name, *args, schema=older, **given)

    def list_indexes(self, *args: Any, **given: Any) -> Any:
        return [*super().list_indexes(*args, **given), "sparse"]

    def upsert(self, collection_name: str, data: Any, *args: Any, **given: Any) -> Any:
        """With the readers as a list, too."""
        rows = [{**row, "who": row["readers"].strip("|").split("|")} for row in data]
        return super().upsert(collection_name, rows, *args, **given)

    def delete(self, *args: Any, **given: Any) -> Any:
        return super().delete(*args, **_older(given))

    def query(self, *args: Any, **given: Any) -> Any:
        return super().query(*args, **_older(given))

    def query_iterator(self, *args: Any, **given: Any) -> Any:
        return super().query_iterator(*args, **_older(given))

    def search(self, *args: Any, **given: Any) -> Any:
        if given["anns_field"] == "sparse":
            return [self._ranked(*args, **given)]
        return super().search(*args, **_older(given))

    def _ranked(self, collection: str, data: list[str], *, limit: int, output_fields: list[str], **given: Any) -> Any:
        """What BM25 finds: the server says which rows may be found, and the words are weighed here."""
        everything = self.query(collection, filter='id != ""', output_fields=["id", "terms"], limit=_WINDOW)
        counts = {row["id"]: Counter(row["terms"].split()) for row in everything}
        asked = {"filter": given["filter"], "output_fields": ["id", *output_fields], "limit": _WINDOW}
        found = [({**row}, _score(data[0].split(), counts, row["id"])) for row in self.query(collection, **asked)]
        best = sorted((hit for hit in found if hit[1] > 0), key=lambda hit: -hit[1])[:limit]
        return [{"id": row["id"], "entity": row, "distance": score} for row, score in best]


def _older(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "filter": _READER.sub(r'json_contains($meta["who"], "\1")', given["filter"])}


def _score(terms: list[str], counts: dict[str, Counter[str]], row: str) -> float:
    mean = sum(count.total() for count in counts.values()) / len(counts) or 1.0
    penalty = BM25_K1 * (1 - BM25_B + BM25_B * counts[row].total() / mean)
    score = 0.0
    for term in terms:
        having = sum(term in count for count in counts.values())
        rarity = math.log((len(counts) - having + 0.5) / (having + 0.5) + 1)
        score += rarity * counts[row][term] * (BM25_K1 + 1) / (counts[row][term] + penalty)
    return score
