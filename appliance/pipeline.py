"""The path of a request, whole.

    authenticate -> admit -> filter input -> retrieve -> generate -> filter output -> record

No step hides in middleware. ``authenticate`` runs first, from the app-wide guard, for every route and before a body
is read. The rest is ``answer``, for whatever a model answers in chunks: a context that hands them out and takes
everything back when it is left, whether the stream ended, failed, or never began because the client was gone. The
others are the same path with the steps that apply: ``produce`` for sound and pictures, ``search`` without a model,
``work`` and ``work_without_model`` for what generates nothing, ``admitted`` for writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from appliance.admission import Admission, Lease, capped, choices_of, metered
from appliance.audit.trail import Trail
from appliance.credentials import check_form
from appliance.errors import (
    ApplianceError,
    BadRequest,
    Forbidden,
    InvalidCredentials,
    RequestError,
    RetrievalUnavailable,
    Unauthenticated,
)
from appliance.filtering import Filters
from appliance.knowledge.augment import Retriever, as_the_client_counts
from appliance.knowledge.file_search import file_search_tools
from appliance.knowledge.rewriting import Rewriter
from appliance.media.transcripts import check_filterable, filtered, is_transcript
from appliance.media.watching import watched
from appliance.models.inputs import check_inputs
from appliance.protocols import Admitter, Authenticator, Authorizer, Revoking, Telemetry, TraceSpan
from appliance.recording import Recording
from appliance.streams import cited, observed
from appliance.telemetry import NoTelemetry, ending
from appliance.types import ANONYMOUS, Call, CallRecord, Chunk, Findings, MediaTask, Passage, Principal, Search, Usage
from appliance.wire import ChatRequest, asks_logprobs

if TYPE_CHECKING:
    from appliance.config import TenantConfig
    from appliance.models.registry import Model, Models
    from appliance.plugins import Plugins

log = logging.getLogger("appliance.pipeline")
UNGROUNDED = "x-appliance-ungrounded"
"""The header of an answer whose documents could not be searched."""
_CHAT = "/v1/chat/completions"
Complete = Callable[[Call], Awaitable[Call]]
Examine = Callable[[], Awaitable[None]]
Ask = Callable[[ChatRequest], AsyncGenerator[Chunk, None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """An accepted answer: iterate it for its chunks.

    ``call`` holds what was searched and found for it; ``headers`` are what admitters want the reply to have.
    """

    call: Call
    chunks: AsyncIterator[Chunk]
    headers: Mapping[str, str]
    scores: bool
    """Whether the caller may see the passages' scores."""
    record: CallRecord
    """What it comes to; its usage is there once the chunks are over."""

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self.chunks


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: ``search`` is as it was run, after the filters."""

    search: Search
    passages: Sequence[Passage]
    more: bool
    """Whether more follow."""
    headers: Mapping[str, str]
    scores: bool
    """Whether the caller may see the passages' scores."""


@dataclass(frozen=True, slots=True)
class Production:
    """An accepted answer of sound, pictures or a transcript, in pieces; of a stream each is an event."""

    call: Call
    pieces: AsyncIterator[bytes]
    headers: Mapping[str, str]


@dataclass
class Pipeline:
    """The steps, each with what the plugins provide for it, in the order of the configuration."""

    plugins: Plugins
    models: Models
    trail: Trail
    recording: Recording
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    retriever: Retriever | None = None
    rewriter: Rewriter | None = None
    authenticators: Sequence[tuple[str, Authenticator]] = ()
    authorizers: Sequence[tuple[str, Authorizer]] = ()
    admitters: Sequence[tuple[str, Admitter]] = ()
    filters: Filters = field(default_factory=Filters)
    telemetry: Telemetry = field(default_factory=NoTelemetry)

    @property
    def guarded(self) -> bool:
        """Whether callers are asked who they are; without that, only loopback may be served."""
        return bool(self._enabled)

    @property
    def _enabled(self) -> list[Authenticator]:
        return [authenticator for _, authenticator in self.authenticators if authenticator.enabled]

    async def authenticate(self, headers: Mapping[str, str], query: bytes = b"") -> Principal:
        """Find the caller; without any enabled authenticator everybody is ``anonymous``.

        ``query`` is the raw query string, in which no credential may be.

        Raises:
            Unauthenticated: no authenticator knows the credential, or there is none.
            InvalidCredentials: it came in a form that none may have.
            Forbidden: it is good, and its holder is not served.
        """
        try:
            principal = await self._identify(headers, query)
        except (Unauthenticated, InvalidCredentials, Forbidden) as error:
            self.trail.turned_away(error)
            raise
        if principal is not ANONYMOUS:
            self.trail.came_in(principal)
        return principal

    async def _identify(self, headers: Mapping[str, str], query: bytes) -> Principal:
        enabled = self._enabled
        if not enabled:
            return ANONYMOUS
        challenge = "invalid_token" if check_form(headers, query) else None
        for authenticator in enabled:
            if principal := await authenticator.authenticate(headers):
                return self.within_tenant(principal)
        raise Unauthenticated(challenge=challenge)

    def within_tenant(self, principal: Principal) -> Principal:
        """The caller, with no more vector stores than the tenant may reach (``auth.tenants``)."""
        tenant = self.tenants.get(principal.tenant)
        if tenant is None or tenant.stores is None:
            return principal
        allowed = frozenset(tenant.stores)
        stores = allowed if principal.stores is None else principal.stores & allowed
        return msgspec.structs.replace(principal, stores=stores)

    async def _check_still_known(self, principal: Principal) -> None:
        """Stored work may begin long after it was asked for. Raises Unauthenticated."""
        enabled = self._enabled
        known = principal is not ANONYMOUS or not enabled
        for authenticator in enabled:
            if known and isinstance(authenticator, Revoking):
                known = await authenticator.still_known(principal)
        if not known:
            error = Unauthenticated(challenge="invalid_token", reason="revoked", claimed=principal.id)
            self.trail.turned_away(error)
            raise error

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        """Every authorizer must agree. Raises Forbidden."""
        refusal = await self.refusal(principal, action, resource)
        if refusal is not None:
            self.trail.denied(principal, action, resource, refusal)
            raise refusal

    async def may(self, principal: Principal, action: str, resource: str) -> bool:
        """Whether every authorizer agrees, for what is left out rather than refused: a no is not noted."""
        return await self.refusal(principal, action, resource) is None

    async def refusal(self, principal: Principal, action: str, resource: str) -> Forbidden | None:
        """What the first authorizer says that does not agree, if one does not; it is not noted."""
        try:
            for _, authorizer in self.authorizers:
                await authorizer.authorize(principal, action, resource)
        except Forbidden as error:
            return error
        return None

    async def readers(self, principal: Principal, resource: str) -> Collection[str] | None:
        """Whose documents a caller sees, for ``Database.tenant``; ``None``, all, for who may ``access.manage``."""
        return None if await self.may(principal, "access.manage", resource) else principal.readers

    @asynccontextmanager
    async def answer(
        self, call: Call, template: str, complete: Complete | None = None, within: TraceSpan | None = None
    ) -> AsyncIterator[Answer]:
        """Take a call through all steps; the body of the ``async with`` sends the chunks.

        ``template`` is the route, for the trace. ``complete`` brings what the call goes on from, once it is admitted:
        whoever is over a limit has nothing read. ``within`` is the span of the call that this one is made for.
        Raises any RequestError before the first chunk, and while iterating.
        """
        inputs = self.models.resolve(call.model, call.principal).inputs
        async with self._run(call, template, within) as (record, span, held, admissions):
            if call.background:
                await self._check_still_known(call.principal)
            await self.authorize(call.principal, "models.use", call.model)
            if inputs is not None:
                check_inputs(call.model, inputs, call.request)
            if asks_logprobs(call.request):
                await self.authorize(call.principal, "logprobs.read", call.model)
            await self._admit(call, record, held, admissions)
            if complete is not None:
                call = await complete(call)
                if inputs is not None:
                    check_inputs(call.model, inputs, call.request)
            for admission in admissions:
                call = capped(call, admission)
            call = await self.filters.input(call)
            asked, call = call, await self._retrieve(call, span)
            record.call = call
            with as_the_client_counts(asked.request, call.request):
                chunks = await self._generate(call, record, span, held)
            chunks = _metered(chunks, record, admissions, held)
            chunks = self.filters.output(call, chunks, held)
            chunks = cited(call, chunks) if call.queries else chunks
            chunks = await held.enter_async_context(aclosing(chunks))  # type: ignore[type-var]
            scores = bool(call.passages) and await self.may(call.principal, "scores.read", call.model)
            headers = {**_headers(admissions), **({UNGROUNDED: "true"} if call.ungrounded else {})}
            yield Answer(call, chunks, headers, scores, record)

    @asynccontextmanager
    async def produce(self, call: Call, template: str, examine: Examine) -> AsyncIterator[Production]:
        """The same path for sound and pictures, which are bytes and no chunks; transcripts are filtered as text.

        ``examine`` looks at the call's files once it is admitted: for whoever is over a limit no scanner works.
        Raises any RequestError before the first piece, and while iterating.
        """
        self.models.resolve(call.model, call.principal)
        async with self._run(call, template) as (record, span, held, admissions):
            _, engine = self.models.resolve_task(call.model, cast("MediaTask", call.operation), call.principal)
            await self.authorize(call.principal, "models.use", call.model)
            if asks_logprobs(call.request):
                await self.authorize(call.principal, "logprobs.read", call.model)
            if self.filters.outputs:
                check_filterable(call.request)
            await self._admit(call, record, held, admissions)
            await examine()
            await call.request.load()
            call = await self.filters.input(call)
            record.call = call
            answer = await engine.produce(self._open_step(call, span, held))
            held.push_async_callback(answer.aclose)
            pieces = watched(call, answer, record)
            held.push_async_exit(aclosing(pieces))  # type: ignore[type-var]
            if self.filters.outputs and is_transcript(call.request):
                pieces = filtered(call, pieces, self.filters, held)
                held.push_async_exit(aclosing(pieces))  # type: ignore[type-var]
            yield Production(call, pieces, _headers(admissions))

    async def search(self, call: Call, template: str) -> Found:
        """Take a search of vector stores through its steps. ``call.request`` is the ``Search``, its stores by id.

        The guard has authorized it. Raises any RequestError.
        """
        async with self._run(call, template) as (record, span, held, admissions):
            await self._admit(call, record, held, admissions)
            call = await self.filters.input(call)
            if self.retriever is None:
                raise RetrievalUnavailable("retrieval is off; set retrieval.vector_store in the configuration")
            search = await self._rewritten(call, call.request, span)
            found = await self._findings(call, search, self.retriever.find, span)
            record.call = msgspec.structs.replace(call, queries=search.queries, passages=tuple(found.passages))
            scores = await self.may(call.principal, "scores.read", call.model)
            return Found(search, found.passages, found.more, _headers(admissions), scores)

    @asynccontextmanager
    async def work(self, call: Call, template: str) -> AsyncIterator[tuple[Model, Mapping[str, str]]]:
        """Around work of a model that generates nothing, such as tokenising: authorized, admitted and recorded.

        Gives the model and the reply's headers. Raises any RequestError.
        """
        model = self.models.resolve(call.model, call.principal)
        async with self._run(call, template) as (record, _, held, admissions):
            await self.authorize(call.principal, "models.use", call.model)
            await self._admit(call, record, held, admissions)
            yield model, _headers(admissions)

    @asynccontextmanager
    async def chats(self, call: Call, template: str) -> AsyncIterator[tuple[Ask, Mapping[str, str]]]:
        """Around the chats that one call takes, as the texts that a guard model is to judge: no filter reads these.

        Gives what answers a chat, and the reply's headers. Their tokens count together. Raises any RequestError.
        """
        self.models.resolve(call.model, call.principal)
        async with self._run(call, template) as (record, span, held, admissions):
            await self.authorize(call.principal, "models.use", call.model)
            await self._admit(call, record, held, admissions)
            yield partial(self._chat, call, record, span), _headers(admissions)

    async def _chat(
        self, call: Call, record: CallRecord, span: TraceSpan, request: ChatRequest
    ) -> AsyncGenerator[Chunk, None]:
        inputs = self.models.resolve(call.model, call.principal).inputs
        if inputs is not None:
            check_inputs(call.model, inputs, request)
        before, record.usage = record.usage, Usage()
        try:
            async with AsyncExitStack() as held:
                chat = msgspec.structs.replace(call, operation="chat", request=request)
                async for chunk in await self._generate(chat, record, span, held):
                    yield chunk
        finally:
            record.usage = before + record.usage

    @asynccontextmanager
    async def work_without_model(self, call: Call, template: str) -> AsyncIterator[Mapping[str, str]]:
        """The same around what filters alone do; the caller has been authorized. Gives the reply's headers."""
        async with self._run(call, template) as (record, _, held, admissions):
            await self._admit(call, record, held, admissions)
            yield _headers(admissions)

    @asynccontextmanager
    async def admitted(self, call: Call) -> AsyncIterator[Mapping[str, str]]:
        """Around a write: admitters count it like every call, and nothing else is done. Gives the reply's headers.

        Raises what admitters raise, as RateLimited.
        """
        admissions: list[Admission] = []
        try:
            async with AsyncExitStack() as held:
                await self._admit(call, CallRecord(call=call), held, admissions)
                yield _headers(admissions)
        except RequestError as error:
            error.headers = {**_headers(admissions), **error.headers}
            raise

    @asynccontextmanager
    async def _run(
        self, call: Call, template: str, within: TraceSpan | None = None
    ) -> AsyncIterator[tuple[CallRecord, TraceSpan, AsyncExitStack, list[Admission]]]:
        """What surrounds the steps: everything held is given back, errors are translated, the record is told.

        The call's model is there: names that clients make up get into no log, trace or usage.
        """
        record = CallRecord(call=call)
        span = self._open_call(call, template, within)
        admissions: list[Admission] = []
        try:
            async with AsyncExitStack() as held:
                yield record, span, held, admissions
        except (asyncio.CancelledError, GeneratorExit):
            record.outcome = "aborted"
            record.status = 499
            raise
        except BaseException as error:
            shown = self._failed(error, record, span)
            if admissions and isinstance(shown, RequestError):
                shown.headers = {**_headers(admissions), **shown.headers}
            if shown is error:
                raise
            raise shown from error
        finally:
            await self.recording.record(record, span)

    def _open_call(self, call: Call, template: str, within: TraceSpan | None) -> TraceSpan:
        """The span of a call: the server's own, or a step of the call that it is made for."""
        if within is None:
            return self.telemetry.start_call(call, template)
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": call.model}
        return self.telemetry.start_step(within, "rewrite", attributes)

    async def _admit(self, call: Call, record: CallRecord, held: AsyncExitStack, admissions: list[Admission]) -> None:
        """Enter every lease, and note what it grants."""
        began = time.perf_counter()
        try:
            for name, admitter in self.admitters:
                admission = await held.enter_async_context(Lease(name, admitter, call, record))
                if admission is not None:
                    admissions.append(admission)
        finally:
            record.queued = time.perf_counter() - began

    async def _retrieve(self, call: Call, span: TraceSpan) -> Call:
        """Search, filter what was found, put it before the model."""
        wished = bool(file_search_tools(call.request))
        if self.retriever is None:
            if wished:
                raise BadRequest("documents are not searched here; set retrieval.vector_store", param="tools")
            return call
        if wished:  # the stores that a model is bound to are part of the model
            await self.authorize(call.principal, "stores.search", "file_search")
        search = self.retriever.search_of(call, self.models)
        if search is None:
            return call
        search = await self._rewritten(call, search, span)
        tokenizer = self.models.resolve(call.model, call.principal).tokenizer
        try:
            found = await self._findings(call, search, partial(self.retriever.search, tokenizer=tokenizer), span)
        except RetrievalUnavailable as error:
            if not self.retriever.may_be_missed:
                raise
            log.warning("call %s is answered without documents: %s", call.id, error)
            return msgspec.structs.replace(self.retriever.augment(call, ()), ungrounded=True)
        return self.retriever.augment(call, found.passages, search.queries)

    async def _rewritten(self, call: Call, search: Search, span: TraceSpan) -> Search:
        """The search in a model's words, where that is wished and the caller may use the model."""
        rewriter = self.rewriter
        if not search.rewrite or rewriter is None or not search.queries:
            return search
        if not await self.may(call.principal, "models.use", rewriter.model):
            return search
        if self.retriever is not None:
            await self.retriever.check_stores(call, search)  # who is refused has used no model
        return await rewriter.rewritten(call, search, partial(self.answer, template=_CHAT, within=span))

    async def _findings(
        self, call: Call, search: Search, find: Callable[[Call, Search], Awaitable[Findings]], span: TraceSpan
    ) -> Findings:
        """What a search finds and the filters let pass; the audit log knows before anybody sees it."""
        step = self.telemetry.start_step(span, "retrieval", {"gen_ai.operation.name": "retrieval"})
        try:
            found = await find(call, search)
            passages = list(await self.filters.passages(call, found.passages))
            step.set("gen_ai.retrieval.documents.count", len(passages))
            found = msgspec.structs.replace(found, passages=passages)
            await self.trail.shown(call.principal, call.operation, search, found)
            return found
        except BaseException as error:
            step.fail(error)
            raise
        finally:
            step.end()

    async def _generate(
        self, call: Call, record: CallRecord, span: TraceSpan, held: AsyncExitStack
    ) -> AsyncIterator[Chunk]:
        """Wait until the engine has accepted; then its chunks, watched for the record."""
        call = self._open_step(call, span, held)
        model = self.models.resolve(call.model, call.principal)
        record.asked = model.engine.ready
        if model.tokenizer is not None and call.stream and choices_of(call.request) == 1:
            record.produced = bytearray()
        generation = await model.engine.generate(call)
        # Closed here, not by the generators above it: one that never starts never runs its clean-up.
        held.push_async_callback(generation.aclose)
        return observed(call, generation, record)

    def _open_step(self, call: Call, span: TraceSpan, held: AsyncExitStack) -> Call:
        """Begin the engine's part of the trace, which ends with what is held; the call carries it on."""
        step = self.telemetry.start_step(span, "generate", {"gen_ai.request.model": call.model})
        held.push(ending(step))
        trace = self.telemetry.headers(step)
        return msgspec.structs.replace(call, headers={**call.headers, **trace}) if trace else call

    def _failed(self, error: BaseException, record: CallRecord, span: TraceSpan) -> BaseException:
        translated = error if isinstance(error, ApplianceError) else self.plugins.on_error(error, record.call)
        shown = translated or error
        record.status = shown.status if isinstance(shown, RequestError) else 500
        record.outcome = "refused" if 400 <= record.status < 500 else "error"
        record.error_type = type(shown).__name__
        span.fail(shown)
        return shown


def _headers(admissions: Sequence[Admission]) -> Mapping[str, str]:
    return {name: value for admission in admissions for name, value in admission.headers.items()}


def _metered(
    chunks: AsyncIterator[Chunk], record: CallRecord, admissions: Sequence[Admission], held: AsyncExitStack
) -> AsyncIterator[Chunk]:
    """A stage for each admitter that grants a stream its tokens piece by piece; none where none does."""
    for admission in admissions:
        if record.call.stream and admission.output_tokens is not None and admission.more is not None:
            chunks = metered(chunks, record, admission.output_tokens, admission.more)
            held.push_async_exit(aclosing(chunks))  # type: ignore[type-var]
    return chunks
