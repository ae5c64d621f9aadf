"""A Milvus client whose calls end: ``MilvusClient`` bounds connecting alone, and waits for a silent server for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

_CALLS = frozenset(
    {
        "create_collection",
        "delete",
        "describe_collection",
        "drop_collection",
        "has_collection",
        "insert",
        "list_collections",
        "list_indexes",
        "load_collection",
        "query",
        "query_iterator",
        "search",
        "upsert",
    }
)
"""What goes over the wire and takes a ``timeout``, in seconds."""


class BoundedClient:
    """Passes everything on to a client; each call to the server may take ``seconds``."""

    def __init__(self, client: Any, seconds: float) -> None:
        self._client, self._seconds = client, seconds

    def __getattr__(self, name: str) -> Any:
        """The client's attribute of that name."""
        found = getattr(self._client, name)
        return partial(found, timeout=self._seconds) if name in _CALLS else found
