"""Keeps chat completions whose clients asked for it (``store``): puts the answer together and stores it.

The id is our own: an engine's may follow from the request's id, and that a client chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from appliance.storage import completions
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables.completions import StoredCompletion
from appliance.types import Call, Chunk, Usage

if TYPE_CHECKING:
    from appliance.quotas import Quotas
    from appliance.storage.database import Database

Json: TypeAlias = dict[str, Any]
PREFIX = "chatcmpl-"
_PIECES = frozenset({"arguments", "data", "transcript"})
"""Texts inside a function call or an audio answer that come in pieces."""


class Keeping:
    """One answer that is to be kept: show it every chunk, then ``keep`` it before the client sees the end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._id = new_id(PREFIX)
        self._body: Json = {}
        self._choices: dict[int, Json] = {}
        self._calls: dict[tuple[int, int], Json] = {}
        """Tool calls by their choice and index, which an engine may begin anywhere."""

    def feed(self, chunk: Chunk) -> Chunk:
        """Take a chunk in, the only one of a plain answer too; give it back as it goes out."""
        shown = Chunk(body={**chunk.body, "id": self._id})
        if not self._call.stream:
            self._body = shown.body
            return shown
        self._body = self._body or {key: value for key, value in shown.body.items() if key not in ("choices", "usage")}
        for piece in shown.body.get("choices") or ():
            self._add(piece)
        return shown

    async def keep(self, database: Database, quotas: Quotas, usage: Usage) -> None:
        """Store it; ``usage`` is what a stream came to. Raises QuotaExceeded: others took the room meanwhile."""
        principal, request = self._call.principal, self._call.request
        row = StoredCompletion(
            id=self._id,
            user=principal.user,
            created_us=now_us(),
            model=self._call.model,
            body=self._joined(usage) if self._call.stream else self._body,
            messages=msgspec.to_builtins(request.messages),
            labels=request.metadata or {},
        )
        async with database.tenant(principal.tenant) as session:
            await completions.add(session, row)
            await quotas.confirm(session)

    def _add(self, piece: Json) -> None:
        """A choice's piece of a stream."""
        index = piece.get("index", 0)
        message = {"role": "assistant", "content": None, "refusal": None}
        choice = self._choices.setdefault(
            index, {"index": index, "message": message, "logprobs": None, "finish_reason": "stop"}
        )
        delta = piece.get("delta") or {}
        _extend(choice["message"], delta)
        for call in delta.get("tool_calls") or ():
            self._add_call(choice["message"], (index, call.get("index", 0)), call)
        for kind, entries in (piece.get("logprobs") or {}).items():
            if entries:
                choice["logprobs"] = choice["logprobs"] or {"content": None, "refusal": None}
                choice["logprobs"][kind] = (choice["logprobs"].get(kind) or []) + entries
        choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]

    def _add_call(self, message: Json, place: tuple[int, int], piece: Json) -> None:
        """The first piece of a call names it; those after it bring more of its arguments."""
        call = self._calls.get(place)
        if call is None:
            call = self._calls[place] = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            message.setdefault("tool_calls", []).append(call)
        call["id"] = call["id"] or piece.get("id") or ""
        _extend_object(call["function"], piece.get("function") or {})

    def _joined(self, usage: Usage) -> Json:
        """The stream as the plain answer that it would have been."""
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._body, "object": "chat.completion", "choices": choices, "usage": counts}


def _extend(message: Json, delta: Json) -> None:
    """Add a delta to a message: texts and lists grow. Tool calls are not added here."""
    for name, value in delta.items():
        if value is None or name in ("role", "tool_calls"):
            continue
        if isinstance(value, dict):
            _extend_object(message.setdefault(name, {}), value)
        elif isinstance(value, str | list):
            message[name] = message[name] + value if message.get(name) else value
        else:
            message[name] = value


def _extend_object(target: Json, piece: Json) -> None:
    for name, value in piece.items():
        if name in _PIECES:
            target[name] = (target.get(name) or "") + (value or "")
        elif value is not None:
            target[name] = value
