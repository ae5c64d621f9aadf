"""The public plugin API: everything a plugin may import, and nothing else is promised.

Within a major version hook names, their arguments and these names stay; hooks may get new arguments (take
only what you need), structs new optional fields.
"""

from __future__ import annotations

from appliance.config import Config, Strict, convert
from appliance.context import AppContext
from appliance.errors import (
    ApplianceError,
    BadRequest,
    Blocked,
    ConfigError,
    Conflict,
    ContextLengthExceeded,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Forbidden,
    IngestionError,
    InvalidFile,
    ModelNotFound,
    NotFound,
    OutOfSpace,
    PluginError,
    RateLimited,
    RequestError,
    RetrievalUnavailable,
    StartError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedFile,
)
from appliance.hookspecs import hookimpl
from appliance.knowledge.filters import Attributes, Comparison, Compound, Filter, Scalar, matches
from appliance.processes.child import Child
from appliance.protocols import (
    Admitter,
    Authenticator,
    Authorizer,
    Chunker,
    Embedder,
    EmbedderFactory,
    Engine,
    EngineFactory,
    Generation,
    HealthCheck,
    InputFilter,
    Lifespan,
    ModelSource,
    OutputFilter,
    Parser,
    Progress,
    Recorder,
    Reranker,
    RerankerFactory,
    Telemetry,
    TraceSpan,
    VectorStore,
    VectorStoreFactory,
)
from appliance.sse import EventSplitter, encode, event_data
from appliance.types import (
    Call,
    CallRecord,
    Chunk,
    Document,
    Embeddings,
    Hit,
    ModelSpec,
    Passage,
    Principal,
    Scope,
    Span,
    StoredChunk,
    Usage,
)
from appliance.upstream import Upstream, UpstreamBroken, UpstreamError, UpstreamResponse, UpstreamTimeout, UpstreamUnreachable
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, Message, message_text

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
