"""The values that travel along a request: who calls, what is asked, what comes back.

All are immutable but for ``CallRecord``, which the pipeline fills while a call runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from appliance.knowledge.filters import Filter, Scalar
from appliance.sse import encode as encode_event
from appliance.sse import event_data

MediaTask: TypeAlias = Literal[
    "transcription", "translation", "speech", "image_generation", "image_edit", "image_variation"
]
"""What is asked of models that hear, speak or draw."""
Operation: TypeAlias = (
    MediaTask
    | Literal["chat", "completion", "embeddings", "moderation", "rerank", "score", "search", "tokenize", "write"]
)
Outcome: TypeAlias = Literal["success", "error", "aborted", "refused"]
Fusion: TypeAlias = Literal["scores", "ranks"]
"""How the legs of a search are joined (``knowledge.fusion``)."""
MAX_NEIGHBORS = 20
"""Chunks on each side that a passage may bring with it."""
Names: TypeAlias = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=512)], ...], msgspec.Meta(max_length=100)
]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key, user or tenant may use; ``None`` is no limit.

    Tokens count prompt and answer; spend is in the currency of ``models[].price``.
    """

    max_concurrent: Annotated[int, msgspec.Meta(ge=1)] | None = None
    requests_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    requests_per_day: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tokens_per_minute: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tokens_per_day: Annotated[int, msgspec.Meta(ge=1)] | None = None
    spend_per_day: Annotated[float, msgspec.Meta(gt=0)] | None = None
    spend_per_month: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls: the caller as an authenticator found them.

    Decisions use these fields, never a display name or an e-mail address. ``id`` names the credential's holder and
    is unique over all kinds of credentials (``key:3f9k2m8x0abc``, ``user:<issuer>|<subject>``). ``user`` is the person
    or service behind it, who may hold several credentials; ``key`` the short id of the API key, fit for logs.

    A caller may do what one of ``roles`` grants; where ``scopes`` is not ``None`` one of them must cover it too.
    ``models`` and ``stores`` narrow what may be used, ``None`` is all. ``allowance`` holds for the credential alone.
    """

    id: str
    tenant: str = "default"
    user: str | None = None
    key: str | None = None
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    scopes: frozenset[str] | None = None
    models: frozenset[str] | None = None
    """Model names this caller may use."""
    stores: frozenset[str] | None = None
    """Ids or names of vector stores this caller may reach."""
    allowance: Allowance | None = None

    @property
    def name(self) -> str:
        """What ``Access.users`` calls them: the person or service where that is known, else the credential."""
        return self.user or self.id

    @property
    def readers(self) -> tuple[str, ...]:
        """What may be named for them to see a document: everybody, themselves, their groups."""
        return ("*", f"user:{self.name}", *(f"group:{group}" for group in self.groups))


ANONYMOUS = Principal(id="anonymous")


def stored_principal(raw: object) -> Principal:
    """A principal from plain values that were kept. ``ANONYMOUS`` is that very object again, as everybody expects."""
    found = msgspec.convert(raw, Principal)
    return ANONYMOUS if found == ANONYMOUS else found


class Access(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may see a file in a vector store: everybody of the tenant if ``public``, else those who are named.

    ``users`` are ``Principal.name``, ``groups`` as the callers' credentials have them. A field that it does not know is
    refused: a slip of the pen would hide a document from everybody.
    """

    users: Names = ()
    groups: Names = ()
    public: bool = False

    @property
    def readers(self) -> frozenset[str]:
        """The same as terms of ``StoredChunk.readers``."""
        named = (*(f"user:{user}" for user in self.users), *(f"group:{group}" for group in self.groups))
        return frozenset((*named, "*") if self.public else named)


PUBLIC_ACCESS = Access(public=True)


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document that search found.

    ``score`` grows with relevance and compares only within one search. ``similarity`` is the cosine to the
    query, ``None`` where only the text leg found the passage; ``matched`` is true when that leg found it.
    """

    chunk_id: str
    store_id: str
    file_id: str
    filename: str
    text: str
    score: float
    similarity: float | None = None
    matched: bool = False
    attributes: Mapping[str, Scalar] = {}
    start: int = 0
    end: int = 0
    """Its place in the document's text, in characters."""
    context: str = ""
    """As of ``StoredChunk``."""
    before: str = ""
    after: str = ""
    """What stands around it in its document, where a search asks for neighbours."""
    neighbor_ids: tuple[str, ...] = ()
    """The chunks that this comes from."""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """One search over some vector stores, on behalf of one principal."""

    store_ids: tuple[str, ...]
    queries: tuple[str, ...]
    limit: int = 10
    where: Filter | None = None
    score_threshold: float = 0.0
    ranker: str = "auto"
    fusion: Fusion | None = None
    """How the legs are joined; ``None`` as ``retrieval.fusion`` says."""
    text_weight: float | None = None
    embedding_weight: float | None = None
    """``None`` for what suits the fusion."""
    diversity: float = 0.0
    """How much it counts that a passage differs from those before it, from 0 to 1 (MMR)."""
    neighbors: int = 0
    """How many chunks before and behind it in its file a passage brings with it."""
    feedback: float = 0.0
    """How far the query moves towards the best passage before it is asked again, from 0 to 1."""
    offset: int = 0
    """How many of the best are passed over: those of earlier pages."""
    rewrite: bool = False
    """Whether a model puts the queries into other words first (``knowledge.rewriting``)."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a search came to: the passages, best first, and whether more follow.

    ``denied`` counts the chunks in the searched stores that the caller may not see; they took no part in the search.
    """

    passages: list[Passage] = []
    more: bool = False
    denied: int = 0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request on its way through the pipeline.

    ``model`` is the name the client used, ``request`` the decoded body (``appliance.wire``), ``headers``
    the lower-cased request headers. ``stream`` is true when the client wants server-sent events. The operation
    ``write`` makes or changes something that is kept: it has no model and no request, and only admitters see it.
    """

    id: str
    operation: Operation
    model: str
    request: Any
    principal: Principal = ANONYMOUS
    stream: bool = False
    background: bool = False
    """Nobody waits for the answer, so others go first."""
    within: Operation | None = None
    """The operation of the call that it is made for, if any: it waits for no place that such a call holds."""
    headers: Mapping[str, str] = {}
    queries: tuple[str, ...] = ()
    """What was searched for before the answer; empty where nothing was."""
    unread: int = 0
    """Characters of what the request goes on from: admitters see it without that; later steps see all of it."""
    passages: tuple[Passage, ...] = ()
    ungrounded: bool = False
    """Documents should have been searched and could not be; the operator wants it answered all the same."""


_MOST_TOKENS = 10**9


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the engine reported them, from 0 to a billion: whatever it says, no sum overflows."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= (tokens := getattr(self, name)) <= _MOST_TOKENS:
                msgspec.structs.force_setattr(self, name, min(max(tokens, 0), _MOST_TOKENS))

    def __add__(self, other: Usage) -> Usage:
        """What two answers came to together."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class CallRecord(msgspec.Struct, kw_only=True):
    """What a call came to; complete when ``Recorder.record`` sees it.

    Times are ``time.perf_counter`` seconds: ``first_token`` when the first token of a stream passed
    (``None`` for plain replies and streams without one), ``last_token`` when the last one did, ``tokens``
    how many stream events carried output. ``queued`` is how many seconds the call waited to be admitted. ``asked`` is
    true once an engine was given the call; ``produced`` the text of a stream so far, escaped as in JSON, where it is
    kept to be counted should the engine's own count never come.
    """

    call: Call
    started: float = msgspec.field(default_factory=time.perf_counter)
    finished: float = 0.0
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    queued: float = 0.0
    asked: bool = False
    produced: bytearray | None = None
    usage: Usage = Usage()
    finish_reasons: tuple[str, ...] = ()
    outcome: Outcome = "success"
    status: int = 200
    error_type: str | None = None

    @property
    def duration(self) -> float:
        """Seconds from the request's arrival to its last byte."""
        return self.finished - self.started


class Chunk:
    """One server-sent event of an answer, or the whole of a plain answer.

    Holds the bytes as they came and decodes them on first use, so that a chunk nobody reads costs nothing.
    Build one from an event (``data: ...`` and a blank line), from a JSON payload, or from a decoded body.
    Chunks are immutable: ``body`` must not be changed in place; make a new ``Chunk(body=...)``.
    """

    __slots__ = ("_body", "_event", "_payload")

    def __init__(
        self, event: bytes | None = None, *, payload: bytes | None = None, body: dict[str, Any] | None = None
    ) -> None:
        self._event, self._payload, self._body = event, payload, body

    @property
    def event(self) -> bytes:
        """The chunk as a server-sent event, blank line included."""
        if self._event is None:
            self._event = encode_event(self.payload)
        return self._event

    @property
    def payload(self) -> bytes:
        """The chunk as JSON bytes."""
        if self._payload is None:
            self._payload = (
                (event_data(self._event) or b"{}") if self._body is None and self._event else _encode(self._body)
            )
        return self._payload

    @property
    def decoded(self) -> dict[str, Any] | None:
        """``body``, if it need not be decoded for it."""
        return self._body

    @property
    def body(self) -> dict[str, Any]:
        """The chunk decoded: the OpenAI object as plain Python values."""
        if self._body is None:
            self._body = _decode(self.payload)
        return self._body

    def __repr__(self) -> str:
        return f"Chunk({self.payload!r})"


class Embeddings(msgspec.Struct, frozen=True):
    """Unit vectors, as little-endian 32-bit floats, row after row, with the token count of each input."""

    vectors: bytes
    dimensions: int
    tokens: tuple[int, ...]


class Judgement(msgspec.Struct, frozen=True):
    """What a moderator says of a text: whether it is flagged, and in which of OpenAI's categories, if in any."""

    flagged: bool = False
    categories: frozenset[str] = frozenset()


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """A text as a model reads it; ``max_model_len`` is how many tokens of prompt and answer the model takes."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class StoredChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document as a vector store keeps it.

    ``id`` is made from the file's version in the store and ``position``, so that writing twice changes nothing.
    ``start`` and ``end`` are character offsets in the parsed text. ``readers`` lists who may see it
    (``"*"``: everyone of the tenant; ``"user:ID"``, ``"group:NAME"``).
    """

    id: str
    file_id: str
    position: int
    text: str
    start: int = 0
    end: int = 0
    tenant: str = "default"
    readers: tuple[str, ...] = ("*",)
    attributes: Mapping[str, Scalar] = {}
    context: str = ""
    """What the text stands under in its document, as title and section: searched with it, but no part of it."""

    @property
    def searchable(self) -> str:
        """What is embedded and searched by words: the context, then the text."""
        return f"{self.context}\n\n{self.text}" if self.context else self.text


class Scope(msgspec.Struct, frozen=True):
    """The server-made part of every vector query: rows of this tenant that one of these readers may see.

    ``stores`` are the ids or names of the vector stores that the caller may reach, ``None`` is all; it has been checked
    before a vector store is asked.
    """

    tenant: str = "default"
    readers: tuple[str, ...] = ("*",)
    stores: frozenset[str] | None = None


class Hit(msgspec.Struct, frozen=True):
    """A chunk found by one leg of a search; ``score`` is the cosine (dense leg) or BM25 (text leg)."""

    chunk: StoredChunk
    score: float


class Heading(msgspec.Struct, frozen=True):
    """Where a part of a document begins: a section of prose, or a definition in source code.

    ``start`` is a character offset, ``level`` 1 for the outermost. The part goes on to the next heading of its level or
    of one further out; one without ``title`` only ends those before it.
    """

    start: int
    level: int
    title: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a parser got out of a file: its text, and notes fit to be shown (for example empty pages).

    ``outline`` holds the headings in their order. ``language`` is that of source code and data (``python``, ``csv``),
    empty for prose. ``pages`` is how many it has, 0 for what has none.
    """

    text: str
    title: str = ""
    notes: tuple[str, ...] = ()
    outline: tuple[Heading, ...] = ()
    language: str = ""
    pages: int = 0

    def part(self, start: int, end: int) -> Document:
        """The stretch between two offsets as a document; the headings that it stands under are at its begin."""
        open_: list[Heading] = []
        inside: list[Heading] = []
        for heading in self.outline:
            if start < heading.start < end:
                inside.append(Heading(heading.start - start, heading.level, heading.title))
            elif heading.start <= start:
                open_ = [*(one for one in open_ if one.level < heading.level), heading]
        outline = (*(Heading(0, one.level, one.title) for one in open_), *inside)
        return msgspec.structs.replace(self, text=self.text[start:end], outline=outline)


class Span(msgspec.Struct, frozen=True):
    """A chunk's place in a document: character offsets, end exclusive. ``context`` as of ``StoredChunk``."""

    start: int
    end: int
    context: str = ""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``models`` as an engine or embedder factory gets it.

    ``path`` is the local folder of the weights, ``None`` when the source is not pulled yet or the model is
    remote. ``where`` is the YAML path for error messages, as in ``models[0]``.
    """

    name: str
    where: str
    path: Path | None = None
    source: str | None = None
    options: Mapping[str, Any] = {}
    extra_args: tuple[str, ...] = ()
