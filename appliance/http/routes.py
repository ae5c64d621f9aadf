"""Every route of the core in one table: it drives routing, permissions, the OpenAPI document and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

from litestar import Request, Response
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler, HTTPRouteHandler
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from appliance.anthropic.request import MessagesRequest
from appliance.errors import MethodNotAllowed
from appliance.http import (
    audit,
    batches,
    chat,
    completions,
    conversations,
    file_batches,
    files,
    health,
    hot,
    messages,
    models,
    objects,
    openapi,
    part_uploads,
    responses,
    store_files,
    tokens,
    vector_stores,
)
from appliance.http.errors import FORM
from appliance.http.guard import ACTION, OTHER_ACTIONS
from appliance.http.idempotency import idempotent
from appliance.http.request_id import answer_headers
from appliance.http.requests import HttpRequest
from appliance.permissions import PUBLIC
from appliance.responses.request import ResponsesRequest
from appliance.types import Tokens
from appliance.wire import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]


@dataclass(frozen=True)
class Entry:
    """One operation: ``action`` is what the caller must be allowed, ``body`` and ``returns`` document it.

    ``audit`` is what the audit log calls it, one of ``appliance.audit.ACTIONS``; ``None`` where it tells nothing.
    """

    method: str
    path: str
    action: str
    summary: str
    handler: Handler | hot.Route
    body: type[Any] | None = None
    returns: type[Any] | None = None
    audit: str | None = None


_hot = {route.path: route for route in (*chat.HOT_ROUTES, responses.RESPONSES_ROUTE, messages.MESSAGES_ROUTE)}
_FILES, _STORES = "/v1/files", "/v1/vector_stores"
_FILE, _ONE = f"{_FILES}/{{file_id:str}}", f"{_STORES}/{{vector_store_id:str}}"
_JOBS = "/v1/batches"
_JOB = f"{_JOBS}/{{batch_id:str}}"
_UPLOAD = "/v1/uploads/{upload_id:str}"
_MEMBERS, _BATCHES = f"{_ONE}/files", f"{_ONE}/file_batches"
_MEMBER, _BATCH = f"{_MEMBERS}/{{file_id:str}}", f"{_BATCHES}/{{batch_id:str}}"
_COMPLETIONS = "/v1/chat/completions"
_COMPLETION = f"{_COMPLETIONS}/{{completion_id:str}}"
_RESPONSE = "/v1/responses/{response_id:str}"
_CONVERSATIONS = "/v1/conversations"
_CONVERSATION = f"{_CONVERSATIONS}/{{conversation_id:str}}"
_ITEM = f"{_CONVERSATION}/items/{{item_id:str}}"
_STORE, _MEMBER_OBJECT, _BATCH_OBJECT = objects.VectorStoreObject, objects.StoreFileObject, objects.FileBatchObject

TABLE: tuple[Entry, ...] = (
    Entry("POST", "/v1/chat/completions", "models.use", "Answer a chat", _hot["/v1/chat/completions"], ChatRequest),
    Entry("GET", _COMPLETIONS, "responses.read", "List stored chats", completions.list_completions),
    Entry("GET", _COMPLETION, "responses.read", "Get a stored chat", completions.get_completion),
    Entry(
        "POST",
        _COMPLETION,
        "responses.write",
        "Change a stored chat's metadata",
        completions.update_completion,
        completions.UpdateCompletion,
    ),
    Entry(
        "DELETE",
        _COMPLETION,
        "responses.write",
        "Delete a stored chat",
        completions.delete_completion,
        None,
        objects.Deleted,
    ),
    Entry("GET", f"{_COMPLETION}/messages", "responses.read", "List what was asked", completions.list_messages),
    Entry("POST", "/v1/completions", "models.use", "Complete a text", _hot["/v1/completions"], CompletionRequest),
    Entry("POST", "/v1/embeddings", "models.use", "Embed texts", _hot["/v1/embeddings"], EmbeddingRequest),
    Entry("POST", "/v1/responses", "models.use", "Make a response", _hot["/v1/responses"], ResponsesRequest),
    Entry(
        "POST",
        "/v1/responses/input_tokens",
        "models.use",
        "Count the tokens of an input",
        responses.INPUT_TOKENS_ROUTE,
        ResponsesRequest,
    ),
    Entry("GET", _RESPONSE, "responses.read", "Get a response", responses.get_response),
    Entry(
        "DELETE", _RESPONSE, "responses.write", "Delete a response", responses.delete_response, None, objects.Deleted
    ),
    Entry("POST", f"{_RESPONSE}/cancel", "responses.write", "Cancel a background response", responses.cancel_response),
    Entry("GET", f"{_RESPONSE}/input_items", "responses.read", "List a response's input", responses.list_input_items),
    Entry(
        "POST",
        _CONVERSATIONS,
        "responses.write",
        "Create a conversation",
        conversations.create_conversation,
        conversations.CreateConversation,
        conversations.ConversationObject,
    ),
    Entry(
        "GET",
        _CONVERSATION,
        "responses.read",
        "Get a conversation",
        conversations.get_conversation,
        None,
        conversations.ConversationObject,
    ),
    Entry(
        "POST",
        _CONVERSATION,
        "responses.write",
        "Change a conversation",
        conversations.update_conversation,
        conversations.UpdateConversation,
        conversations.ConversationObject,
    ),
    Entry(
        "DELETE",
        _CONVERSATION,
        "responses.write",
        "Delete a conversation",
        conversations.delete_conversation,
        None,
        objects.Deleted,
    ),
    Entry(
        "POST",
        f"{_CONVERSATION}/items",
        "responses.write",
        "Add items",
        conversations.create_items,
        conversations.CreateItems,
    ),
    Entry("GET", f"{_CONVERSATION}/items", "responses.read", "List items", conversations.list_items),
    Entry("GET", _ITEM, "responses.read", "Get an item", conversations.get_item),
    Entry("DELETE", _ITEM, "responses.write", "Delete an item", conversations.delete_item),
    Entry(
        "POST", "/v1/messages", "models.use", "Answer a chat in Anthropic's form", _hot["/v1/messages"], MessagesRequest
    ),
    Entry(
        "POST",
        "/v1/messages/count_tokens",
        "models.use",
        "Count the tokens of a chat in Anthropic's form",
        messages.COUNT_TOKENS_ROUTE,
        MessagesRequest,
    ),
    Entry("POST", "/tokenize", "models.use", "See a text's tokens", tokens.tokenize, TokenizeRequest, Tokens),
    Entry(
        "POST",
        "/detokenize",
        "models.use",
        "Turn tokens into text",
        tokens.detokenize,
        DetokenizeRequest,
        tokens.Detokenized,
    ),
    Entry("GET", "/v1/models", "models.read", "List the models", models.list_models, None, models.ModelList),
    Entry(
        "GET", "/v1/models/{model_id:path}", "models.read", "Get a model", models.get_model, None, models.ModelObject
    ),
    Entry(
        "POST",
        _FILES,
        "files.write",
        "Upload a file",
        files.upload_file,
        None,
        objects.FileObject,
        audit="files.create",
    ),
    Entry("GET", _FILES, "files.read", "List files", files.list_files),
    Entry("GET", _FILE, "files.read", "Get a file", files.get_file, None, objects.FileObject),
    Entry(
        "DELETE", _FILE, "files.write", "Delete a file", files.delete_file, None, objects.Deleted, audit="files.delete"
    ),
    Entry("GET", f"{_FILE}/content", "files.read", "Download a file", files.download_file, audit="files.download"),
    Entry(
        "POST",
        "/v1/uploads",
        "files.write",
        "Begin an upload in parts",
        part_uploads.create_upload,
        objects.CreateUpload,
        objects.UploadObject,
    ),
    Entry(
        "POST",
        f"{_UPLOAD}/parts",
        "files.write",
        "Upload a part",
        part_uploads.add_part,
        None,
        objects.UploadPartObject,
    ),
    Entry(
        "POST",
        f"{_UPLOAD}/complete",
        "files.write",
        "Make a file of the parts",
        part_uploads.complete_upload,
        objects.CompleteUpload,
        objects.UploadObject,
        audit="uploads.complete",
    ),
    Entry(
        "POST",
        f"{_UPLOAD}/cancel",
        "files.write",
        "Cancel an upload",
        part_uploads.cancel_upload,
        None,
        objects.UploadObject,
    ),
    Entry(
        "POST",
        _STORES,
        "stores.write",
        "Create a vector store",
        vector_stores.create_store,
        objects.CreateVectorStore,
        _STORE,
        audit="stores.create",
    ),
    Entry("GET", _STORES, "stores.read", "List vector stores", vector_stores.list_stores),
    Entry("GET", _ONE, "stores.read", "Get a vector store", vector_stores.get_store, None, _STORE),
    Entry(
        "POST",
        _ONE,
        "stores.write",
        "Change a vector store",
        vector_stores.update_store,
        objects.UpdateVectorStore,
        _STORE,
        audit="stores.update",
    ),
    Entry(
        "DELETE",
        _ONE,
        "stores.write",
        "Delete a vector store",
        vector_stores.delete_store,
        None,
        objects.Deleted,
        audit="stores.delete",
    ),
    Entry(
        "POST",
        f"{_ONE}/search",
        "stores.search",
        "Search a vector store",
        vector_stores.search_store,
        objects.SearchVectorStore,
        objects.SearchResults,
    ),
    Entry(
        "POST",
        _MEMBERS,
        "stores.write",
        "Attach a file",
        store_files.attach_file,
        objects.AttachFile,
        _MEMBER_OBJECT,
        audit="stores.attach",
    ),
    Entry("GET", _MEMBERS, "stores.read", "List a store's files", store_files.list_store_files),
    Entry("GET", _MEMBER, "stores.read", "Get a store's file", store_files.get_store_file, None, _MEMBER_OBJECT),
    Entry(
        "POST",
        _MEMBER,
        "stores.write",
        "Set attributes",
        store_files.update_store_file,
        objects.UpdateStoreFile,
        _MEMBER_OBJECT,
        audit="stores.update_file",
    ),
    Entry(
        "DELETE",
        _MEMBER,
        "stores.write",
        "Detach a file",
        store_files.detach_file,
        None,
        objects.Deleted,
        audit="stores.detach",
    ),
    Entry(
        "GET",
        f"{_MEMBER}/content",
        "stores.read",
        "Get indexed text",
        store_files.store_file_content,
        None,
        objects.FileContent,
        audit="stores.content",
    ),
    Entry(
        "POST",
        _BATCHES,
        "stores.write",
        "Attach many files",
        file_batches.create_batch,
        objects.CreateFileBatch,
        _BATCH_OBJECT,
        audit="stores.attach_batch",
    ),
    Entry("GET", _BATCH, "stores.read", "Get a file batch", file_batches.get_batch, None, _BATCH_OBJECT),
    Entry(
        "POST",
        f"{_BATCH}/cancel",
        "stores.write",
        "Cancel a file batch",
        file_batches.cancel_batch,
        None,
        _BATCH_OBJECT,
        audit="stores.cancel_batch",
    ),
    Entry("GET", f"{_BATCH}/files", "stores.read", "List a batch's files", file_batches.list_batch_files),
    Entry(
        "POST",
        _JOBS,
        "batches.write",
        "Start a batch",
        batches.create_batch,
        batches.CreateBatch,
        batches.BatchObject,
        audit="batches.create",
    ),
    Entry("GET", _JOBS, "batches.read", "List batches", batches.list_batches),
    Entry("GET", _JOB, "batches.read", "Get a batch", batches.get_batch, None, batches.BatchObject),
    Entry(
        "POST",
        f"{_JOB}/cancel",
        "batches.write",
        "Cancel a batch",
        batches.cancel_batch,
        None,
        batches.BatchObject,
        audit="batches.cancel",
    ),
    Entry("GET", "/v1/audit/events", "audit.read", "Read the audit log", audit.list_events, None, audit.AuditEventList),
    Entry("GET", "/livez", PUBLIC, "Is the process alive?", health.livez, None, health.Health),
    Entry("GET", "/readyz", PUBLIC, "Can requests be answered?", health.readyz, None, health.Health),
    Entry("GET", "/openapi.json", "docs.read", "This document", openapi.document),
)


def route_handlers(public_docs: bool) -> list[BaseRouteHandler]:
    """Litestar's handlers for the whole table."""
    mounts = {entry.path: entry for entry in TABLE if isinstance(entry.handler, hot.Route)}
    plain = [entry for entry in TABLE if entry.path not in mounts]
    beside = [entry for entry in TABLE if entry.path in mounts and entry is not mounts[entry.path]]
    return [
        *(_mount(entry, [other for other in beside if other.path == path]) for path, entry in mounts.items()),
        *(_handler(entry, public_docs) for entry in plain),
    ]


def _mount(entry: Entry, beside: list[Entry]) -> BaseRouteHandler:
    """A hot route. Litestar gives a mount every method, so what else is on its path is told apart here."""
    route = entry.handler
    if not isinstance(route, hot.Route):
        raise TypeError(f"{entry.path} is no hot route")
    others = {method: other for other in beside for method in _methods(other)}
    actions = {method: other.action for method, other in others.items()}
    opt: dict[str, Any] = {ACTION: entry.action, OTHER_ACTIONS: actions, FORM: route.form}
    apps = {method: _as_app(_wrapped(other)) for method, other in others.items()}
    app = _by_method({entry.method: route, **apps}) if apps else route.__call__
    return ASGIRouteHandler(entry.path, opt=opt, copy_scope=False)(app)


def _by_method(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = apps.get(cast("Any", scope)["method"])
        if found is None:
            raise MethodNotAllowed("this path does not take that method; see GET /openapi.json", allow=", ".join(apps))
        await found(scope, receive, send)

    return app


def _as_app(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request: HttpRequest = Request(cast("HTTPScope", scope), receive, send)
        response = await handler(request)
        await response.to_asgi_response(None, request)(scope, receive, send)

    return app


def _handler(entry: Entry, public_docs: bool) -> BaseRouteHandler:
    action = PUBLIC if public_docs and entry.action == "docs.read" else entry.action
    route = HTTPRouteHandler(entry.path, http_method=_methods(entry), opt={ACTION: action}, status_code=200)  # type: ignore[arg-type]
    return route(_wrapped(entry))


def _methods(entry: Entry) -> list[str]:
    """RFC 9110 section 9.1: who takes GET takes HEAD; the server leaves out the body."""
    return ["GET", "HEAD"] if entry.method == "GET" else [entry.method]


def _wrapped(entry: Entry) -> Handler:
    """An ordinary handler with all that surrounds it."""
    if isinstance(entry.handler, hot.Route):
        raise TypeError(f"{entry.path} is a hot route")
    handler = audit.reporting(entry.handler, entry.audit) if entry.audit else entry.handler
    if entry.method == "POST" and entry.action.endswith(".write"):
        handler = idempotent(handler)
    return _with_headers(handler)


def _with_headers(handler: Handler) -> Handler:
    """The same handler, its answers carrying the request's id and how long it took."""

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        response = await handler(request)
        response.headers.update(answer_headers(request.scope["state"]))
        return response

    return answered
