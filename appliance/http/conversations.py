"""``/v1/conversations``: items that responses go on from and add to."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import BadRequest
from appliance.http.objects import Deleted
from appliance.http.requests import (
    HttpRequest,
    Page,
    answer,
    listing,
    plain_session,
    principal,
    query_of,
    read_json,
    runtime,
)
from appliance.responses.items import read_input
from appliance.storage import conversations
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables.responses import Conversation
from appliance.wire import Metadata, decoder

MAX_NEW_ITEMS = 20
"""Items that one request may bring, as at OpenAI."""


class CreateConversation(msgspec.Struct, kw_only=True):
    """``POST /v1/conversations``."""

    items: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, kw_only=True):
    """``POST /v1/conversations/{conversation_id}``; null takes the metadata away."""

    metadata: Metadata | UnsetType | None = UNSET


class CreateItems(msgspec.Struct, kw_only=True):
    """``POST /v1/conversations/{conversation_id}/items``."""

    items: list[dict[str, Any]]


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, Any]


_decode_create = decoder(CreateConversation)
_decode_update = decoder(UpdateConversation)
_decode_items = decoder(CreateItems)


async def create_conversation(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/conversations``."""
    body = await read_json(request, _decode_create)
    new = _new_items(body.items or [])
    caller = principal(request)
    row = Conversation(id=new_id("conv_"), user=caller.user, created_us=now_us(), labels=body.metadata or {})
    async with plain_session(request) as session:
        session.add(row)
        await session.flush()
        await conversations.append(session, row, new)
        await runtime(request).quotas.confirm(session)
    return answer(_object(row))


async def get_conversation(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/conversations/{conversation_id}``."""
    async with plain_session(request, write=False) as session:
        return answer(_object(await _row(session, request)))


async def update_conversation(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/conversations/{conversation_id}``."""
    body = await read_json(request, _decode_update)
    async with plain_session(request) as session:
        row = await _row(session, request, lock=True)
        if not isinstance(body.metadata, UnsetType):
            row.labels = body.metadata or {}
        return answer(_object(row))


async def delete_conversation(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/conversations/{conversation_id}``, with its items; responses stay."""
    async with plain_session(request) as session:
        row = await _row(session, request, lock=True)
        await session.delete(row)
    return answer(Deleted(id=row.id, object="conversation.deleted"))


async def create_items(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/conversations/{conversation_id}/items``: answers with what was added."""
    new = _new_items((await read_json(request, _decode_items)).items)
    async with plain_session(request) as session:
        await conversations.append(session, await _row(session, request, lock=True), new)
        await runtime(request).quotas.confirm(session)
    return answer(listing(new, [item["id"] for item in new], has_more=False))


async def list_items(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/conversations/{conversation_id}/items``, newest first by default."""
    async with plain_session(request, write=False) as session:
        row = await _row(session, request)
        rows, more = await conversations.page(session, row.id, query_of(request, Page))
    return answer(listing([item.body for item in rows], [item.id for item in rows], has_more=more))


async def get_item(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/conversations/{conversation_id}/items/{item_id}``."""
    async with plain_session(request, write=False) as session:
        row = await _row(session, request)
        return answer((await conversations.item(session, row.id, request.path_params["item_id"])).body)


async def delete_item(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/conversations/{conversation_id}/items/{item_id}``: answers with the conversation."""
    async with plain_session(request) as session:
        row = await _row(session, request, lock=True)
        await session.delete(await conversations.item(session, row.id, request.path_params["item_id"]))
        return answer(_object(row))


def _new_items(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(raw) > MAX_NEW_ITEMS:
        raise BadRequest(f"items holds more than {MAX_NEW_ITEMS}; send them in several requests", param="items")
    return read_input(raw, "items")


async def _row(session: AsyncSession, request: HttpRequest, *, lock: bool = False) -> Conversation:
    return await conversations.get(session, request.path_params["conversation_id"], principal(request).user, lock=lock)


def _object(row: Conversation) -> ConversationObject:
    return ConversationObject(id=row.id, created_at=row.created_us // 1_000_000, metadata=row.labels)
