"""What server and worker say to each other: msgpack bodies over HTTP on a unix socket."""

from __future__ import annotations

from typing import Any

import msgspec

from appliance import errors
from appliance.errors import RequestError, RetrievalUnavailable
from appliance.knowledge.filters import Scalar, parse_filter
from appliance.types import PUBLIC_ACCESS, Access, Fusion, Scope, Search

MEDIA_TYPE = "application/msgpack"
FAILED = 500
"""The status of answers that hold a ``Failure``."""


class Empty(msgspec.Struct):
    """Nothing to say."""


class Presence(msgspec.Struct):
    """The answer to ``ready``."""

    replica: str
    """The one that looks after this worker."""
    fingerprints: frozenset[str]
    """Of the embedding models that are configured."""


class SearchMessage(msgspec.Struct):
    """``search``. The filter travels in its JSON form and is checked again."""

    scope: Scope
    store_ids: tuple[str, ...]
    queries: tuple[str, ...]
    limit: int
    where: Any
    score_threshold: float
    ranker: str
    fusion: Fusion | None
    text_weight: float | None
    embedding_weight: float | None
    diversity: float
    neighbors: int
    feedback: float
    offset: int
    rewrite: bool

    @classmethod
    def of(cls, search: Search, scope: Scope) -> SearchMessage:
        """Pack a search."""
        fields: dict[str, Any] = {name: getattr(search, name) for name in Search.__struct_fields__}
        return cls(scope=scope, **{**fields, "where": msgspec.to_builtins(search.where)})

    def search(self) -> Search:
        """Unpack it."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in Search.__struct_fields__}
        return Search(**{**fields, "where": parse_filter(self.where)})


class EmbedMessage(msgspec.Struct):
    """``embed``."""

    model: str
    inputs: list[str | list[int]]


class RerankMessage(msgspec.Struct):
    """``rerank``."""

    model: str
    query: str
    texts: list[str]


class FileMessage(msgspec.Struct):
    """A file of a store, for ``remove_file``, ``set_attributes``, ``set_access`` and ``content``."""

    store_id: str
    file_id: str
    attributes: dict[str, Scalar] = {}
    access: Access = PUBLIC_ACCESS
    scope: Scope = Scope()


class ReconcileMessage(msgspec.Struct):
    """``reconcile``."""

    repair: bool


class StoreMessage(msgspec.Struct):
    """``remove_store``."""

    store_id: str


class StoresMessage(msgspec.Struct):
    """``stores``: of one, or of all."""

    store_id: str | None = None


class Failure(msgspec.Struct):
    """An error on its way to the server."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: RequestError) -> Failure:
        """Pack an error."""
        return cls(type(error).__name__, str(error), error.param, error.code, error.retry_after)

    def error(self) -> RequestError:
        """The same error again."""
        type_ = getattr(errors, self.kind, None)
        if not isinstance(type_, type) or not issubclass(type_, RequestError):
            type_ = RetrievalUnavailable
        return type_(self.message, param=self.param, code=self.code, retry_after=self.retry_after)
