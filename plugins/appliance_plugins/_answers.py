"""Puts the text of OpenAI answers through windows, plain or streamed, and leaves everything else as it is.

Each choice has its own state, and in it each text: content, reasoning, refusal, completion text, and the arguments of
each tool call. A blocked choice ends with ``finish_reason: content_filter``. Log probabilities spell the answer token
by token, so they do not get out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from appliance.plugin import Chunk
from appliance_plugins._window import Rules, Window

_TEXT_FIELDS = ("reasoning_content", "reasoning", "content", "refusal")
_SPELLED = ("logprobs", "token_ids")


class Answer:
    """One answer on its way out. ``choices`` is how many the client asked for."""

    def __init__(self, rules: Rules, choices: int, *, streamed: bool) -> None:
        self._rules = rules
        self._streamed = streamed
        self._expected = choices
        self._choices: dict[int, _Choice] = {}
        self._latest: Mapping[str, Any] = {}

    @property
    def over(self) -> bool:
        """True when nothing more can get out although the engine still writes: what has not ended is blocked."""
        known = self._choices.values()
        running = any(choice.blocked and not choice.ended for choice in known)
        return running and len(known) >= self._expected and all(choice.blocked or choice.ended for choice in known)

    def rewrite(self, chunk: Chunk) -> Chunk | None:
        """The chunk as it may go out: the same object if nothing changed, ``None`` if nothing is left of it."""
        before: list[dict[str, Any]] = chunk.body.get("choices") or []
        if not before:
            return chunk
        self._latest = chunk.body
        after = [self._rewrite(choice) for choice in before]
        if all(new is old for new, old in zip(after, before, strict=True)):
            return chunk
        left = [choice for choice in after if choice is not None]
        return Chunk(body={**chunk.body, "choices": left}) if left or chunk.body.get("usage") else None

    def rest(self) -> Chunk | None:
        """What is still held back by choices that never got a ``finish_reason``."""
        left = [choice for index, state in self._choices.items() if (choice := state.rest(index, self._latest))]
        return Chunk(body={**self._latest, "choices": left}) if left else None

    def _rewrite(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        state = self._choices.setdefault(choice.get("index", 0), _Choice(self._rules, ended=not self._streamed))
        return state.rewrite(choice)


class _Choice:
    """The windows of one choice."""

    def __init__(self, rules: Rules, *, ended: bool) -> None:
        self._rules = rules
        self._windows: dict[str | tuple[str, int], Window] = {}
        self.blocked = False
        self.ended = ended
        """The engine has said the last of it."""

    def rewrite(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        was_blocked = self.blocked
        self.ended = self.ended or choice.get("finish_reason") is not None
        if was_blocked:
            return None
        new = self._rewritten(choice)
        if self.blocked:
            return {**new, "finish_reason": "content_filter"}
        if new == choice:
            return choice
        return new if self.ended or _says_something(new) else None

    def rest(self, index: int, latest: Mapping[str, Any]) -> dict[str, Any] | None:
        if self.ended or self.blocked:
            return None
        shape = (latest.get("choices") or [{}])[0]
        empty: dict[str, Any] = {"text": ""} if "text" in shape else {"delta": {}}
        new = self.rewrite({"index": index, **empty, "finish_reason": "stop"})
        if new is None or not (_says_something(new) or self.blocked):
            return None
        return new if self.blocked else {**new, "finish_reason": None}

    def _rewritten(self, choice: dict[str, Any]) -> dict[str, Any]:
        new = {key: None if key in _SPELLED else value for key, value in choice.items()}
        if "text" in choice:
            new["text"] = self._pass("text", choice["text"])
        for holder in ("delta", "message"):
            if isinstance(choice.get(holder), dict):
                new[holder] = self._holder(choice[holder])
        return new

    def _holder(self, holder: dict[str, Any]) -> dict[str, Any]:
        """A ``delta`` or ``message``."""
        new = dict(holder)
        for field in _TEXT_FIELDS:
            text = self._pass(field, holder.get(field))
            if text or field in holder:
                new[field] = text
        if "function_call" in holder or (self.ended and "function_call" in self._windows):
            new["function_call"] = self._arguments("function_call", holder.get("function_call") or {})
        calls = self._tool_calls(holder.get("tool_calls") or [])
        if calls or "tool_calls" in holder:
            new["tool_calls"] = calls or None
        return new

    def _tool_calls(self, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        indices = [call.get("index", position) for position, call in enumerate(calls)]
        new: list[dict[str, Any]] = []
        for index, call in zip(indices, calls, strict=True):
            if not self.blocked:
                new.append(self._tool_call(index, call))
        if self.ended:
            new += self._tails(set(indices))
        return [call for call in new if _holds_call(call)]

    def _tool_call(self, index: int, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function")
        return {**call, "function": self._arguments(("tool", index), function)} if isinstance(function, dict) else call

    def _tails(self, seen: set[int]) -> Iterator[dict[str, Any]]:
        """Arguments still held back of calls that the last chunk does not mention."""
        for key in list(self._windows):
            if isinstance(key, tuple) and key[1] not in seen and (rest := self._pass(key, None)):
                yield {"index": key[1], "function": {"arguments": rest}}

    def _arguments(self, key: str | tuple[str, int], function: dict[str, Any]) -> dict[str, Any]:
        return {**function, "arguments": self._pass(key, function.get("arguments"))}

    def _pass(self, key: str | tuple[str, int], text: str | None) -> str | None:
        """Put one more piece of a text through its window; the last one when the choice has ended."""
        window = self._windows.get(key)
        if self.blocked or (window is None and not text):
            return "" if self.blocked and text else text
        if window is None:
            window = self._windows[key] = Window(self._rules)
        out = window.feed(text or "", final=self.ended)
        self.blocked = window.blocked
        return out if out or text else text


def _says_something(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or choice.get("finish_reason") or any(delta.values()))


def _holds_call(call: Mapping[str, Any]) -> bool:
    function = call.get("function") or {}
    return bool(call.get("id") or function.get("name") or function.get("arguments"))
