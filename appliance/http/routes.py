"""Every route of the core in one table: it drives routing, permissions, the OpenAPI document and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Response

from appliance.anthropic.request import MessagesRequest
from appliance.http import (
    answers,
    audit,
    batches,
    chat,
    completions,
    conversations,
    file_batches,
    files,
    health,
    hot,
    media,
    messages,
    models,
    moderations,
    objects,
    openapi,
    part_uploads,
    ranking,
    reindex,
    responses,
    store_files,
    tokens,
    vector_stores,
)
from appliance.http.errors import JSON
from appliance.http.requests import HttpRequest, OldestFirst, Page
from appliance.media.requests import (
    ImageEditRequest,
    ImageRequest,
    ImageVariationRequest,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from appliance.permissions import PUBLIC
from appliance.responses.request import ResponsesRequest
from appliance.storage.audit import AuditRecord
from appliance.types import Tokens
from appliance.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ModerationRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]


@dataclass(frozen=True)
class Entry:
    """One operation: ``action`` is what the caller must be allowed, the types tell what goes in and out.

    ``body`` is JSON, ``form`` a multipart form, ``query`` its parameters, ``media`` the types of its success.

    ``also`` is an action that lets in callers who may do only a part of it; the handler sees to that.

    ``keeps``: it makes an object that its tenant keeps, which quotas count.

    ``audit`` is what the audit log calls it, one of ``appliance.audit.ACTIONS``; ``None`` where it tells nothing.
    """

    method: str
    path: str
    action: str
    summary: str
    handler: Handler | hot.Route
    body: Any = None
    returns: Any = None
    audit: str | None = None
    query: type[Any] | None = None
    form: type[Any] | None = None
    media: tuple[str, ...] = (JSON,)
    keeps: bool = False
    also: str | None = None

    @property
    def takes_key(self) -> bool:
        """Whether it reads ``Idempotency-Key``: every POST that writes does, and each hot route says so itself."""
        if isinstance(self.handler, hot.Route):
            return self.handler.idempotent
        return self.method == "POST" and self.action.endswith(".write")


_hot = {route.path: route for route in (*chat.HOT_ROUTES, responses.RESPONSES_ROUTE, messages.MESSAGES_ROUTE)}
_STREAMED = (JSON, "text/event-stream")
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

# A table is read line by line.
# fmt: off
TABLE: tuple[Entry, ...] = (
    Entry("POST", moderations.PATH, "models.use", "Moderate texts and images", moderations.MODERATION_ROUTE,
          body=ModerationRequest, returns=moderations.Moderations),
    Entry("POST", media.TRANSCRIPTION_ROUTE.path, "models.use", "Write down what is said", media.TRANSCRIPTION_ROUTE,
          form=TranscriptionRequest, returns=media.Transcription, media=(*_STREAMED, "text/plain")),
    Entry("POST", media.TRANSLATION_ROUTE.path, "models.use", "Write down in English what is said",
          media.TRANSLATION_ROUTE, form=TranslationRequest, returns=media.Transcription, media=(JSON, "text/plain")),
    Entry("POST", media.SPEECH_ROUTE.path, "models.use", "Speak a text", media.SPEECH_ROUTE, body=SpeechRequest,
          returns=answers.Binary, media=(*media.SOUNDS.values(), "text/event-stream")),
    Entry("POST", media.IMAGE_ROUTE.path, "models.use", "Draw what a text says", media.IMAGE_ROUTE,
          body=ImageRequest, returns=media.Images, media=_STREAMED),
    Entry("POST", media.IMAGE_EDIT_ROUTE.path, "models.use", "Change pictures as a text says",
          media.IMAGE_EDIT_ROUTE, form=ImageEditRequest, returns=media.Images, media=_STREAMED),
    Entry("POST", media.IMAGE_VARIATION_ROUTE.path, "models.use", "Draw pictures like another one",
          media.IMAGE_VARIATION_ROUTE, form=ImageVariationRequest, returns=media.Images),
    *(Entry("POST", route.path, "models.use", "Rerank texts", route, body=RerankRequest, returns=ranking.Ranking)
      for route in ranking.RERANK_ROUTES),
    *(Entry("POST", route.path, "models.use", "Score pairs", route, body=ScoreRequest, returns=ranking.Scores)
      for route in ranking.SCORE_ROUTES),
    Entry("POST", "/v1/chat/completions", "models.use", "Answer a chat", _hot["/v1/chat/completions"],
          body=ChatRequest, returns=answers.ChatCompletion, media=_STREAMED),
    Entry("GET", _COMPLETIONS, "responses.read", "List stored chats", completions.list_completions,
          returns=answers.Listing[answers.ChatCompletion], query=completions.CompletionPage),
    Entry("GET", _COMPLETION, "responses.read", "Get a stored chat", completions.get_completion,
          returns=answers.ChatCompletion),
    Entry("POST", _COMPLETION, "responses.write", "Change a stored chat's metadata",
          completions.update_completion, body=completions.UpdateCompletion, returns=answers.ChatCompletion),
    Entry("DELETE", _COMPLETION, "responses.write", "Delete a stored chat", completions.delete_completion,
          returns=objects.Deleted),
    Entry("GET", f"{_COMPLETION}/messages", "responses.read", "List what was asked", completions.list_messages,
          returns=answers.Listing[answers.ChatMessage], query=OldestFirst),
    Entry("POST", "/v1/completions", "models.use", "Complete a text", _hot["/v1/completions"],
          body=CompletionRequest, returns=answers.TextCompletion, media=_STREAMED),
    Entry("POST", "/v1/embeddings", "models.use", "Embed texts", _hot["/v1/embeddings"], body=EmbeddingRequest,
          returns=answers.EmbeddingList),
    Entry("POST", "/v1/responses", "models.use", "Make a response", _hot["/v1/responses"], body=ResponsesRequest,
          returns=answers.ResponseObject, media=_STREAMED),
    Entry("POST", "/v1/responses/input_tokens", "models.use", "Count the tokens of an input",
          responses.INPUT_TOKENS_ROUTE, body=ResponsesRequest, returns=answers.InputTokens),
    Entry("GET", _RESPONSE, "responses.read", "Get a response", responses.get_response,
          returns=answers.ResponseObject, query=responses.ResponseQuery, media=_STREAMED),
    Entry("DELETE", _RESPONSE, "responses.write", "Delete a response", responses.delete_response,
          returns=objects.Deleted),
    Entry("POST", f"{_RESPONSE}/cancel", "responses.write", "Cancel a background response",
          responses.cancel_response, returns=answers.ResponseObject),
    Entry("GET", f"{_RESPONSE}/input_items", "responses.read", "List a response's input",
          responses.list_input_items, returns=answers.Listing[answers.Item], query=Page),
    Entry("POST", _CONVERSATIONS, "responses.write", "Create a conversation", conversations.create_conversation,
          body=conversations.CreateConversation, returns=conversations.ConversationObject, keeps=True),
    Entry("GET", _CONVERSATION, "responses.read", "Get a conversation", conversations.get_conversation,
          returns=conversations.ConversationObject),
    Entry("POST", _CONVERSATION, "responses.write", "Change a conversation", conversations.update_conversation,
          body=conversations.UpdateConversation, returns=conversations.ConversationObject),
    Entry("DELETE", _CONVERSATION, "responses.write", "Delete a conversation", conversations.delete_conversation,
          returns=objects.Deleted),
    Entry("POST", f"{_CONVERSATION}/items", "responses.write", "Add items", conversations.create_items,
          body=conversations.CreateItems, returns=answers.Listing[answers.Item], keeps=True),
    Entry("GET", f"{_CONVERSATION}/items", "responses.read", "List items", conversations.list_items,
          returns=answers.Listing[answers.Item], query=Page),
    Entry("GET", _ITEM, "responses.read", "Get an item", conversations.get_item, returns=answers.Item),
    Entry("DELETE", _ITEM, "responses.write", "Delete an item", conversations.delete_item,
          returns=conversations.ConversationObject),
    Entry("POST", "/v1/messages", "models.use", "Answer a chat in Anthropic's form", _hot["/v1/messages"],
          body=MessagesRequest, returns=answers.AnthropicMessage, media=_STREAMED),
    Entry("POST", "/v1/messages/count_tokens", "models.use", "Count the tokens of a chat in Anthropic's form",
          messages.COUNT_TOKENS_ROUTE, body=MessagesRequest, returns=answers.CountedTokens),
    Entry("POST", "/tokenize", "models.use", "See a text's tokens", tokens.tokenize, body=TokenizeRequest,
          returns=Tokens),
    Entry("POST", "/detokenize", "models.use", "Turn tokens into text", tokens.detokenize,
          body=DetokenizeRequest, returns=tokens.Detokenized),
    Entry("GET", "/v1/models", "models.read", "List the models", models.list_models, returns=models.ModelList),
    Entry("GET", "/v1/models/{model_id:path}", "models.read", "Get a model", models.get_model,
          returns=models.ModelObject),
    Entry("POST", _FILES, "files.write", "Upload a file", files.upload_file, returns=objects.FileObject,
          audit="files.create", form=answers.UploadForm, keeps=True, also="batches.write"),
    Entry("GET", _FILES, "files.read", "List files", files.list_files,
          returns=answers.Listing[objects.FileObject], query=files.FilePage),
    Entry("GET", _FILE, "files.read", "Get a file", files.get_file, returns=objects.FileObject, also="batches.read"),
    Entry("DELETE", _FILE, "files.write", "Delete a file", files.delete_file, returns=objects.Deleted,
          audit="files.delete", also="batches.write"),
    Entry("GET", f"{_FILE}/content", "files.read", "Download a file", files.download_file,
          returns=answers.Binary, audit="files.download", media=("application/octet-stream",), also="batches.read"),
    Entry("POST", "/v1/uploads", "files.write", "Begin an upload in parts", part_uploads.create_upload,
          body=objects.CreateUpload, returns=objects.UploadObject, audit="uploads.create", keeps=True,
          also="batches.write"),
    Entry("POST", f"{_UPLOAD}/parts", "files.write", "Upload a part", part_uploads.add_part,
          returns=objects.UploadPartObject, form=answers.PartForm, audit="uploads.part",
          also="batches.write"),
    Entry("POST", f"{_UPLOAD}/complete", "files.write", "Make a file of the parts", part_uploads.complete_upload,
          body=objects.CompleteUpload, returns=objects.UploadObject, audit="uploads.complete", also="batches.write"),
    Entry("POST", f"{_UPLOAD}/cancel", "files.write", "Cancel an upload", part_uploads.cancel_upload,
          returns=objects.UploadObject, audit="uploads.cancel", also="batches.write"),
    Entry("POST", _STORES, "stores.write", "Create a vector store", vector_stores.create_store,
          body=objects.CreateVectorStore, returns=_STORE, audit="stores.create", keeps=True),
    Entry("GET", _STORES, "stores.read", "List vector stores", vector_stores.list_stores,
          returns=answers.Listing[objects.VectorStoreObject], query=Page),
    Entry("GET", _ONE, "stores.read", "Get a vector store", vector_stores.get_store, returns=_STORE),
    Entry("POST", _ONE, "stores.write", "Change a vector store", vector_stores.update_store,
          body=objects.UpdateVectorStore, returns=_STORE, audit="stores.update"),
    Entry("DELETE", _ONE, "stores.write", "Delete a vector store", vector_stores.delete_store,
          returns=objects.Deleted, audit="stores.delete"),
    Entry("POST", f"{_ONE}/search", "stores.search", "Search a vector store", vector_stores.search_store,
          body=objects.SearchVectorStore, returns=objects.SearchResults),
    Entry("POST", f"{_ONE}/reindex", "stores.reindex", "Change a store's embedding model", reindex.reindex_store,
          body=reindex.ReindexStore, returns=reindex.ReindexObject),
    Entry("GET", f"{_ONE}/reindex", "stores.reindex", "See what embeds a store", reindex.get_reindex,
          returns=reindex.ReindexObject),
    Entry("POST", _MEMBERS, "stores.write", "Attach a file", store_files.attach_file, body=objects.AttachFile,
          returns=_MEMBER_OBJECT, audit="stores.attach"),
    Entry("GET", _MEMBERS, "stores.read", "List a store's files", store_files.list_store_files,
          returns=answers.Listing[objects.StoreFileObject], query=store_files.MemberPage),
    Entry("GET", _MEMBER, "stores.read", "Get a store's file", store_files.get_store_file,
          returns=_MEMBER_OBJECT),
    Entry("POST", _MEMBER, "stores.write", "Set attributes", store_files.update_store_file,
          body=objects.UpdateStoreFile, returns=_MEMBER_OBJECT, audit="stores.update_file"),
    Entry("DELETE", _MEMBER, "stores.write", "Detach a file", store_files.detach_file, returns=objects.Deleted,
          audit="stores.detach"),
    Entry("GET", f"{_MEMBER}/content", "stores.read", "Get indexed text", store_files.store_file_content,
          returns=objects.FileContent, audit="stores.content"),
    Entry("POST", _BATCHES, "stores.write", "Attach many files", file_batches.create_batch,
          body=objects.CreateFileBatch, returns=_BATCH_OBJECT, audit="stores.attach_batch"),
    Entry("GET", _BATCH, "stores.read", "Get a file batch", file_batches.get_batch, returns=_BATCH_OBJECT),
    Entry("POST", f"{_BATCH}/cancel", "stores.write", "Cancel a file batch", file_batches.cancel_batch,
          returns=_BATCH_OBJECT, audit="stores.cancel_batch"),
    Entry("GET", f"{_BATCH}/files", "stores.read", "List a batch's files", file_batches.list_batch_files,
          returns=answers.Listing[objects.StoreFileObject], query=store_files.MemberPage),
    Entry("POST", _JOBS, "batches.write", "Start a batch", batches.create_batch, body=batches.CreateBatch,
          returns=batches.BatchObject, audit="batches.create", keeps=True),
    Entry("GET", _JOBS, "batches.read", "List batches", batches.list_batches,
          returns=answers.Listing[batches.BatchObject], query=Page),
    Entry("GET", _JOB, "batches.read", "Get a batch", batches.get_batch, returns=batches.BatchObject),
    Entry("POST", f"{_JOB}/cancel", "batches.write", "Cancel a batch", batches.cancel_batch,
          returns=batches.BatchObject, audit="batches.cancel"),
    Entry("GET", "/v1/audit/events", "audit.read", "Read the audit log", audit.list_events,
          returns=answers.Listing[AuditRecord], query=audit.EventPage),
    Entry("GET", "/livez", PUBLIC, "Is the process alive?", health.livez, returns=health.Health),
    Entry("GET", "/readyz", PUBLIC, "Can requests be answered?", health.readyz, returns=health.Health),
    Entry("GET", "/openapi.json", "docs.read", "This document", openapi.document, returns=answers.Object),
)
# fmt: on
