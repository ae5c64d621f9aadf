"""Turns the chunks of a chat into a message and the events of its stream.

One builder serves both: a plain answer is fed as one chunk, and its events are not sent. Content blocks follow each
other: one is open at a time, and a new kind of output closes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from appliance.storage.ids import new_id

Json: TypeAlias = dict[str, Any]
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


@dataclass
class MessageBuilder:
    """Builds one message. Call ``begin``, then ``feed`` for every chunk, then ``finish``."""

    model: str
    message: Json = field(init=False)
    _block: Json | None = None
    """The content block that is open."""
    _call: int = -1
    """Which of the model's tool calls is open, and its JSON so far."""
    _arguments: str = ""
    _citations: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.message = {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def begin(self) -> Iterator[Json]:
        """``message_start``."""
        yield {"type": "message_start", "message": {**self.message, "content": []}}

    def feed(self, body: Mapping[str, Any]) -> Iterator[Json]:
        """One chunk of a stream, or a whole chat completion."""
        if usage := body.get("usage"):
            self.message["usage"] = _usage(usage)
        for choice in body.get("choices") or []:
            yield from self._read(choice.get("delta") or choice.get("message") or {})
            if reason := choice.get("finish_reason"):
                self._stop(reason, choice.get("stop_reason"))

    def _read(self, part: Mapping[str, Any]) -> Iterator[Json]:
        if thought := part.get("reasoning_content") or part.get("reasoning"):
            yield from self._add("thinking", thought)
        if text := part.get("content") or part.get("refusal"):
            yield from self._add("text", text)
        for call in part.get("tool_calls") or []:
            yield from self._add_call(call)
        for annotation in part.get("annotations") or []:
            self._citations.append(_citation(annotation, len(self._citations)))

    def _stop(self, reason: str, sequence: object) -> None:
        """vLLM names the text that stopped it in ``stop_reason``; there a number is a token's id."""
        self.message["stop_reason"] = _STOP_REASONS.get(reason, "end_turn")
        if reason == "stop" and isinstance(sequence, str):
            self.message["stop_reason"], self.message["stop_sequence"] = "stop_sequence", sequence

    def finish(self) -> Iterator[Json]:
        """The end of the last block, citations before it, and of the message."""
        yield from self._cite()
        yield from self._close()
        stop = {name: self.message[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": stop, "usage": self.message["usage"]}
        yield {"type": "message_stop"}

    # -- blocks ------------------------------------------------------------------------------------------

    def _add(self, kind: str, text: str) -> Iterator[Json]:
        if self._block is None or self._block["type"] != kind:
            yield from self._close()
            yield from self._begin(
                {"type": kind, kind: ""} if kind == "text" else {"type": kind, kind: "", "signature": ""}
            )
        self.message["content"][-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _add_call(self, call: Mapping[str, Any]) -> Iterator[Json]:
        function = call.get("function") or {}
        place = call.get("index", self._call + 1)
        if self._call != place:
            yield from self._close()
            call_id = call.get("id") or new_id("toolu_")
            yield from self._begin({"type": "tool_use", "id": call_id, "name": function.get("name") or "", "input": {}})
            self._call, self._arguments = place, ""
        if arguments := function.get("arguments"):
            self._arguments += arguments
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, block: Json) -> Iterator[Json]:
        yield {"type": "content_block_start", "index": len(self.message["content"]), "content_block": dict(block)}
        self._block = block
        self.message["content"].append(block)

    def _cite(self) -> Iterator[Json]:
        """Citations belong to a text; without one there is nothing that they could support."""
        texts = [block for block in self.message["content"] if block["type"] == "text"]
        if not self._citations or not texts:
            return
        texts[-1]["citations"] = self._citations
        if texts[-1] is self._block:
            for citation in self._citations:
                yield self._delta({"type": "citations_delta", "citation": citation})

    def _close(self) -> Iterator[Json]:
        if self._block is None:
            return
        if self._block["type"] == "tool_use":
            self._block["input"] = _arguments(self._arguments)
        self._block = None
        yield {"type": "content_block_stop", "index": len(self.message["content"]) - 1}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.message["content"]) - 1, "delta": delta}


def _arguments(text: str) -> Json:
    """A model may write arguments that are no object; the client gets them under one name then."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = text
    return found if isinstance(found, dict) else {"arguments": found}


def _usage(usage: Mapping[str, Any]) -> Json:
    """Tokens read from the prompt cache are counted apart from the others."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max(0, (usage.get("prompt_tokens") or 0) - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _citation(annotation: Mapping[str, Any], number: int) -> Json:
    return {
        "type": "search_result_location",
        "cited_text": annotation.get("quote") or "",
        "source": annotation.get("file_id") or "",
        "title": annotation.get("filename"),
        "search_result_index": number,
        "start_block_index": 0,
        "end_block_index": 1,
    }
