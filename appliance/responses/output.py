"""Turns the chunks of a chat into a response object and the events of its stream.

One builder serves both: a plain answer is fed as one chunk, and its events are not sent. The order of events is the
one of OpenAI's streams; ``sequence_number`` counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from appliance.errors import RateLimited, RequestError
from appliance.responses.request import LOGPROBS, RESULTS, ResponsesRequest
from appliance.storage.ids import new_id, now
from appliance.types import Passage

Json: TypeAlias = dict[str, Any]
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def new_response(request: ResponsesRequest, response_id: str, status: str = "in_progress") -> Json:
    """The response object before anything was generated."""
    text = request.text
    kind = text.format if text else None
    shown: Json = {"type": "text"}
    if kind is not None and kind.type != "text":
        fields = ("type", "name", "description", "schema", "strict")
        shown = {name: value for name in fields if (value := getattr(kind, name)) is not None}
    return {
        "id": response_id,
        "object": "response",
        "created_at": now(),
        "completed_at": None,
        "status": status,
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "conversation": {"id": request.conversation_id} if request.conversation_id else None,
        "reasoning": {
            "effort": request.reasoning.effort if request.reasoning else None,
            "summary": request.reasoning.summary if request.reasoning else None,
        },
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": shown, "verbosity": (text.verbosity if text else None) or "medium"},
        "tool_choice": request.tool_choice or "auto",
        "tools": [_shown_tool(tool) for tool in request.tools or []],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
        **({"prompt": msgspec.to_builtins(request.prompt)} if request.prompt else {}),
    }


def _shown_tool(tool: Json) -> Json:
    return {"parameters": {}, "strict": True, **tool} if tool.get("type") == "function" else tool


@dataclass
class _Open:
    """An item under way, and where it stands in ``output``."""

    item: Json
    index: int


@dataclass
class ResponseBuilder:
    """Builds one response. Call ``begin``, then ``feed`` for every chunk, then ``finish`` or ``fail``."""

    response: Json
    include: Sequence[str] = ()
    number: int = 0
    """Of the next event: another than 0 where the first ones are known already."""
    _reasoning: _Open | None = None
    _message: _Open | None = None
    _calls: dict[int, _Open] = field(default_factory=dict)
    _annotations: list[Json] = field(default_factory=list)
    _finish_reason: str | None = None

    def queued(self) -> Iterator[Json]:
        """``created`` and ``queued``: what there is to say before anybody works on it."""
        yield self.event("response.created", response=self._snapshot())
        yield self.event("response.queued", response=self._snapshot())

    def begin(
        self, passages: Sequence[Passage] = (), queries: Sequence[str] = (), *, scores: bool = False
    ) -> Iterator[Json]:
        """``created``, ``in_progress``, and the search that came before the answer; with ``scores`` where it may."""
        if self.number == 0:
            yield self.event("response.created", response=self._snapshot())
        yield self.event("response.in_progress", response=self._snapshot())
        if queries:
            yield from self._search(passages, queries, scores)

    def _search(self, passages: Sequence[Passage], queries: Sequence[str], scores: bool) -> Iterator[Json]:
        asked: Json = {"status": "in_progress", "queries": list(queries)}
        call: Json = {"id": new_id("fs_"), "type": "file_search_call", **asked}
        opened = self._open({**call, "results": None})
        yield self.event("response.output_item.added", output_index=opened.index, item=dict(opened.item))
        for step in ("in_progress", "searching", "completed"):
            yield self.event(f"response.file_search_call.{step}", output_index=opened.index, item_id=call["id"])
        opened.item["status"] = "completed"
        if RESULTS in self.include:
            opened.item["results"] = [_result(passage, scores=scores) for passage in passages]
        yield self.event("response.output_item.done", output_index=opened.index, item=dict(opened.item))

    def feed(self, body: Mapping[str, Any]) -> Iterator[Json]:
        """One chunk of a stream, or a whole chat completion."""
        if usage := body.get("usage"):
            self.response["usage"] = _usage(usage)
        for choice in body.get("choices") or []:
            part = choice.get("delta") or choice.get("message") or {}
            yield from self._read(part, choice.get("logprobs") or {})
            if choice.get("finish_reason"):
                self._finish_reason = choice["finish_reason"]

    def _read(self, part: Mapping[str, Any], logprobs: Mapping[str, Any]) -> Iterator[Json]:
        if thought := part.get("reasoning_content") or part.get("reasoning"):
            yield from self._think(thought)
        if text := part.get("content"):
            yield from self._say(text, "output_text", _logprobs(logprobs.get("content")))
        if text := part.get("refusal"):
            yield from self._say(text, "refusal", [])
        for call in part.get("tool_calls") or []:
            yield from self._call(call)
        for annotation in part.get("annotations") or []:
            self._annotations.append({key: value for key, value in annotation.items() if key != "quote"})

    # -- items -------------------------------------------------------------------------------------------

    def _think(self, text: str) -> Iterator[Json]:
        if self._reasoning is None or self._reasoning.item["status"] != "in_progress":
            item: Json = {
                "id": new_id("rs_"),
                "type": "reasoning",
                "summary": [],
                "content": [],
                "status": "in_progress",
            }
            self._reasoning = self._open(item)
            yield self.event(
                "response.output_item.added", output_index=self._reasoning.index, item={**item, "content": []}
            )
            part = {"type": "reasoning_text", "text": ""}
            item["content"].append(dict(part))
            yield self._part_event("added", self._reasoning, 0, part)
        self._reasoning.item["content"][0]["text"] += text
        yield self._piece("response.reasoning_text.delta", self._reasoning, 0, delta=text)

    def _say(self, text: str, kind: str, logprobs: list[Json]) -> Iterator[Json]:
        yield from self._end_reasoning()
        if self._message is None:
            item: Json = {
                "id": new_id("msg_"),
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            self._message = self._open(item)
            yield self.event(
                "response.output_item.added", output_index=self._message.index, item={**item, "content": []}
            )
        parts = self._message.item["content"]
        if not parts or parts[-1]["type"] != kind:
            part = _empty_part(kind)
            parts.append(part)
            yield self._part_event("added", self._message, len(parts) - 1, _empty_part(kind))
        place = len(parts) - 1
        if kind == "refusal":
            parts[place]["refusal"] += text
            yield self._piece("response.refusal.delta", self._message, place, delta=text)
            return
        parts[place]["text"] += text
        if LOGPROBS in self.include:
            parts[place]["logprobs"] += logprobs
        yield self._piece("response.output_text.delta", self._message, place, delta=text, logprobs=shortened(logprobs))

    def _call(self, call: Mapping[str, Any]) -> Iterator[Json]:
        yield from self._end_reasoning()
        function = call.get("function") or {}
        place = call.get("index", len(self._calls))
        opened = self._calls.get(place)
        if opened is None:
            item: Json = {
                "id": new_id("fc_"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.get("id") or new_id("call_"),
                "name": function.get("name") or "",
                "arguments": "",
            }
            opened = self._calls[place] = self._open(item)
            yield self.event("response.output_item.added", output_index=opened.index, item=dict(item))
        if arguments := function.get("arguments"):
            opened.item["arguments"] += arguments
            yield self.event(
                "response.function_call_arguments.delta",
                item_id=opened.item["id"],
                output_index=opened.index,
                delta=arguments,
            )

    def _open(self, item: Json) -> _Open:
        self.response["output"].append(item)
        return _Open(item, len(self.response["output"]) - 1)

    # -- endings -----------------------------------------------------------------------------------------

    def finish(self) -> Iterator[Json]:
        """The ends of all items, and of the response: completed, or incomplete with the reason."""
        reason = _INCOMPLETE.get(self._finish_reason or "")
        status = "incomplete" if reason else "completed"
        yield from self._end_reasoning()
        yield from self._end_message(status)
        yield from self._end_calls(status)
        self.response["status"] = status
        self.response["completed_at"] = now()
        if reason:
            self.response["incomplete_details"] = {"reason": reason}
        yield self.event(f"response.{status}", response=self._snapshot())

    def fail(self, error: RequestError) -> Json:
        """The last event of a response that broke off. Its error has one of the codes that OpenAI lists."""
        self.response |= {"status": "failed", "completed_at": None, "incomplete_details": None}
        code = "rate_limit_exceeded" if isinstance(error, RateLimited) else "server_error"
        self.response["error"] = {"code": code, "message": str(error)}
        for item in self.response["output"]:
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"
        return self.event("response.failed", response=self._snapshot())

    def _end_reasoning(self) -> Iterator[Json]:
        opened = self._reasoning
        if opened is None or opened.item["status"] != "in_progress":
            return
        part = opened.item["content"][0]
        yield self._piece("response.reasoning_text.done", opened, 0, text=part["text"])
        yield self._part_event("done", opened, 0, dict(part))
        yield self._done(opened, "completed")

    def _end_message(self, status: str) -> Iterator[Json]:
        opened = self._message
        if opened is None:
            return
        for place, part in enumerate(opened.item["content"]):
            if part["type"] == "refusal":
                yield self._piece("response.refusal.done", opened, place, refusal=part["refusal"])
            else:
                yield from self._annotate(opened, place, part)
                shown = shortened(part["logprobs"])
                yield self._piece("response.output_text.done", opened, place, text=part["text"], logprobs=shown)
            yield self._part_event("done", opened, place, dict(part))
        yield self._done(opened, status)

    def _annotate(self, opened: _Open, place: int, part: Json) -> Iterator[Json]:
        part["annotations"] = self._annotations
        for number, annotation in enumerate(self._annotations):
            yield self._piece(
                "response.output_text.annotation.added", opened, place, annotation_index=number, annotation=annotation
            )

    def _end_calls(self, status: str) -> Iterator[Json]:
        for opened in self._calls.values():
            item = opened.item
            yield self.event(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=opened.index,
                arguments=item["arguments"],
            )
            yield self._done(opened, status)

    def _done(self, opened: _Open, status: str) -> Json:
        opened.item["status"] = status
        return self.event("response.output_item.done", output_index=opened.index, item=dict(opened.item))

    # -- events ------------------------------------------------------------------------------------------

    def event(self, kind: str, **fields: Any) -> Json:
        """The next event."""
        event = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        return event

    def _piece(self, kind: str, opened: _Open, place: int, **fields: Any) -> Json:
        return self.event(kind, item_id=opened.item["id"], output_index=opened.index, content_index=place, **fields)

    def _part_event(self, step: str, opened: _Open, place: int, part: Json) -> Json:
        return self._piece(f"response.content_part.{step}", opened, place, part=part)

    def _snapshot(self) -> Json:
        """The response as it stands: an event is encoded at once, so a shallow copy does."""
        return {**self.response, "output": list(self.response["output"])}


def _empty_part(kind: str) -> Json:
    if kind == "refusal":
        return {"type": "refusal", "refusal": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _logprobs(content: Sequence[Mapping[str, Any]] | None) -> list[Json]:
    fields = ("token", "bytes", "logprob")
    return [
        {
            **{name: entry.get(name) for name in fields},
            "top_logprobs": [{name: top.get(name) for name in fields} for top in entry.get("top_logprobs") or []],
        }
        for entry in content or []
    ]


def shortened(logprobs: Sequence[Json]) -> list[Json]:
    """Events tell tokens and their logs, without bytes."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]


def _usage(usage: Mapping[str, Any]) -> Json:
    prompt, answer = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    read, wrote = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": read.get("cached_tokens") or 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": wrote.get("reasoning_tokens") or 0},
        "total_tokens": prompt + answer,
    }


def _result(passage: Passage, *, scores: bool) -> Json:
    return {
        "file_id": passage.file_id,
        "filename": passage.filename,
        **({"score": passage.score} if scores else {}),
        "attributes": dict(passage.attributes),
        "text": passage.text,
    }
