"""Rows of conversations and their items. Sessions are bound to a tenant; within it a conversation is its maker's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import BadRequest, NotFound
from appliance.storage import paging
from appliance.storage.ids import now_us
from appliance.storage.responses import MAX_CONTEXT
from appliance.storage.tables.responses import Conversation, ConversationItem
from appliance.storage.tenancy import seen_by

MAX_ITEMS = 4096
"""Items that one conversation may hold: all of them are the context of its next response."""
_encode = msgspec.json.Encoder().encode


async def get(session: AsyncSession, conversation_id: str, user: str | None, *, lock: bool = False) -> Conversation:
    """One conversation that this user may see; ``lock`` it to change it or its items. Raises NotFound."""
    query = select(Conversation).where(Conversation.id == conversation_id)
    query = query.where(seen_by(user, Conversation.user))
    found = await session.scalar(query.with_for_update() if lock else query)
    if found is None:
        raise NotFound(
            f"no conversation has the id {conversation_id[:64]!r}; POST /v1/conversations makes one",
            param="conversation",
        )
    return found


async def extent(session: AsyncSession, conversation_id: str, user: str | None) -> int:
    """Characters of all items of a conversation that this user may see; none is read. Raises NotFound."""
    await get(session, conversation_id, user)
    size = func.sum(func.length(cast(ConversationItem.body, Text)))
    return await session.scalar(select(size).where(ConversationItem.conversation_id == conversation_id)) or 0


async def items(session: AsyncSession, conversation_id: str) -> list[dict[str, Any]]:
    """All items, oldest first."""
    query = select(ConversationItem.body).where(ConversationItem.conversation_id == conversation_id)
    return list((await session.scalars(query.order_by(ConversationItem.created_us))).all())


async def page(
    session: AsyncSession, conversation_id: str, wanted: paging.PageRequest
) -> tuple[Sequence[ConversationItem], bool]:
    """A page of items, and whether more follow."""
    query = select(ConversationItem).where(ConversationItem.conversation_id == conversation_id)
    return await paging.fetch(session, query, (ConversationItem.created_us, ConversationItem.id), wanted)


async def item(session: AsyncSession, conversation_id: str, item_id: str) -> ConversationItem:
    """One item. Raises NotFound."""
    query = select(ConversationItem).where(ConversationItem.conversation_id == conversation_id)
    found = await session.scalar(query.where(ConversationItem.id == item_id))
    if found is None:
        raise NotFound(f"the conversation has no item with the id {item_id[:64]!r}", param="item_id")
    return found


async def append(session: AsyncSession, conversation: Conversation, new: Sequence[dict[str, Any]]) -> None:
    """Add items, each with an id of its own, behind the last one; one that is there already stays where it is.

    The conversation must be locked. Raises BadRequest when it would hold too much.
    """
    query = select(
        ConversationItem.id, ConversationItem.created_us, func.length(cast(ConversationItem.body, Text)).label("size")
    ).where(ConversationItem.conversation_id == conversation.id)
    rows = (await session.execute(query)).all()
    present = {row.id: row.created_us for row in rows}
    if len(present) + len(new) > MAX_ITEMS:
        raise BadRequest(f"a conversation holds at most {MAX_ITEMS} items; begin a new one", param="conversation")
    if sum(row.size for row in rows) + sum(len(_encode(body)) for body in new) > MAX_CONTEXT:
        raise BadRequest(
            f"a conversation holds at most {MAX_CONTEXT} characters; begin a new one", param="conversation"
        )
    place = max([now_us(), *(created + 1 for created in present.values())])
    for body in new:
        if body["id"] not in present:
            session.add(
                ConversationItem(
                    id=body["id"],
                    conversation_id=conversation.id,
                    created_us=place,
                    body=body,
                )
            )
            place += 1
