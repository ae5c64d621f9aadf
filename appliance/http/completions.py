"""``/v1/chat/completions`` of those that were kept: list, get, label and delete them. ``http/chat.py`` makes them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Response

from appliance.errors import BadRequest
from appliance.http.objects import Deleted
from appliance.http.requests import (
    HttpRequest,
    OldestFirst,
    answer,
    item_page,
    listing,
    plain_session,
    principal,
    query_of,
    read_json,
)
from appliance.storage import completions
from appliance.storage.tables.completions import StoredCompletion
from appliance.storage.tenancy import TenantSession
from appliance.wire import MAX_METADATA, Metadata, decoder

_LABEL = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)


class UpdateCompletion(msgspec.Struct, kw_only=True):
    """``POST /v1/chat/completions/{completion_id}``; null takes the metadata away."""

    metadata: Metadata | None


class CompletionPage(OldestFirst, frozen=True, kw_only=True):
    """The parameters of the list; ``metadata[KEY]=VALUE`` stands for entries of ``metadata``.

    Whatever a client means by a value, a query brings it as a text.
    """

    model: str | None = None
    metadata: dict[str, Any] | None = None


_decode_update = decoder(UpdateCompletion)


async def list_completions(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/chat/completions``, oldest first by default; ``model`` and ``metadata[KEY]`` narrow it."""
    caller, wanted = principal(request), query_of(request, CompletionPage)
    labels = _labels(request)
    async with plain_session(request, write=False) as session:
        rows, more = await completions.page(session, wanted, caller.user, model=wanted.model, labels=labels)
    return answer(listing([_object(row) for row in rows], [row.id for row in rows], has_more=more))


async def get_completion(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/chat/completions/{completion_id}``."""
    async with plain_session(request, write=False) as session:
        return answer(_object(await _row(session, request)))


async def update_completion(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/chat/completions/{completion_id}``: other metadata."""
    body = await read_json(request, _decode_update)
    async with plain_session(request) as session:
        row = await _row(session, request, lock=True)
        await completions.relabel(session, row, body.metadata or {})
        return answer(_object(row))


async def delete_completion(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/chat/completions/{completion_id}``."""
    async with plain_session(request) as session:
        row = await _row(session, request, lock=True)
        await session.delete(row)
    return answer(Deleted(id=row.id, object="chat.completion.deleted"))


async def list_messages(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/chat/completions/{completion_id}/messages``: what was asked, oldest first by default."""
    wanted = query_of(request, OldestFirst)
    async with plain_session(request, write=False) as session:
        row = await _row(session, request)
    return answer(item_page([_message(row.id, i, message) for i, message in enumerate(row.messages)], wanted))


async def _row(session: TenantSession, request: HttpRequest, *, lock: bool = False) -> StoredCompletion:
    return await completions.get(session, request.path_params["completion_id"], principal(request).user, lock=lock)


def _labels(request: HttpRequest) -> dict[str, str]:
    """The metadata asked for. Raises BadRequest where it is more than a completion can have."""
    given = {found[1]: value for name, value in request.query_params.items() if (found := _LABEL.fullmatch(name))}
    if len(given) > MAX_METADATA:
        raise BadRequest(f"metadata: at most {MAX_METADATA} keys can be asked for", param="metadata")
    return given


def _object(row: StoredCompletion) -> dict[str, Any]:
    return {**row.body, "metadata": row.labels}


def _message(completion_id: str, place: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message with an id; one of parts shows its text, and of its parts those that OpenAI's object knows."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    texts = [part["text"] for part in parts or () if part.get("text")]
    return {
        "refusal": None,
        **message,
        "id": f"{completion_id}-{place}",
        "content": content if parts is None else "\n".join(texts) or None,
        "content_parts": None if parts is None else [part for part in parts if part["type"] in ("text", "image_url")],
    }
