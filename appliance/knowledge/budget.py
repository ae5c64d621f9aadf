"""How much of what was found goes before the model: as configured, and as its context has room for.

Passages come best first, and the worst are left out. A passage is worth more than what stands around another one, so
neighbours get what is left over. Where a prompt might not fit, the engine's own tokenizer counts it, template and tools
included; where it is so short that it fits however it is cut into tokens, nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from appliance.errors import RequestError
from appliance.protocols import Tokenizer
from appliance.types import Passage
from appliance.wire import ChatRequest, TokenizeRequest

_encode = msgspec.json.Encoder().encode
MESSAGE_TOKENS, TOOLS_TOKENS, PART_TOKENS = 64, 512, 1024
"""At most what a template adds for a message and for tools, and what a picture or sound takes."""
_ANSWER_TOKENS = 1024
_TRIES = 4
_SHORTEST = 200
"""Characters; less of a passage helps nobody."""
_MARGIN = 1.1


def within_characters(passages: Sequence[Passage], characters: int) -> list[Passage]:
    """As many of the best as fit, the first always; then what stands around them, where there is room for it."""
    kept: list[Passage] = []
    for passage in passages:
        left = characters - len(passage.context) - len(passage.text)
        if kept and left < 0:
            break
        kept.append(passage)
        characters = left
    for i, passage in enumerate(kept):
        around = len(passage.before) + len(passage.after)
        if around > characters:
            kept[i] = alone(passage)
        else:
            characters -= around
    return kept


def alone(passage: Passage) -> Passage:
    """The passage without what stands around it."""
    return replace(passage, before="", after="", neighbor_ids=())


def whole(passage: Passage) -> Passage:
    """The passage and what stands around it as one text."""
    if not passage.neighbor_ids:
        return passage
    text = "\n".join(part for part in (passage.before, passage.text, passage.after) if part)
    return replace(passage, text=text, before="", after="")


def reading_order(passages: Sequence[Passage]) -> list[Passage]:
    """File by file, each from its beginning.

    The same passages stand in the same order whatever the question, so an engine that keeps prompts finds them again.
    """
    return sorted(passages, key=lambda p: (p.filename, p.file_id, p.start, p.chunk_id))


class ContextBudget:
    """Fits passages to the models' contexts, whose lengths it remembers by the models' names."""

    def __init__(self) -> None:
        self._windows: dict[str, int] = {}

    async def fit(
        self,
        passages: Sequence[Passage],
        tokenizer: Tokenizer | None,
        request_with: Callable[[Sequence[Passage]], ChatRequest],
    ) -> list[Passage]:
        """The passages that leave room for the answer; all of them where the tokenizer cannot be asked.

        ``request_with`` makes the request that the model would get with some passages.
        """
        kept = list(passages)
        if tokenizer is None:
            return kept
        for _ in range(_TRIES):
            try:
                excess = await self._excess(request_with(kept), tokenizer) if kept else 0
            except RequestError:  # generating will say what is wrong
                return kept
            if excess <= 0:
                return kept
            kept = [alone(p) for p in kept] if any(p.neighbor_ids for p in kept) else _shortened(kept, excess)
        return []

    async def _excess(self, request: ChatRequest, tokenizer: Tokenizer) -> int:
        """About how many bytes too long the request is; not above 0 if it fits."""
        size, extra = _size(request)
        window = self._windows.get(request.model)
        if window is not None and size + extra + _answer(request, window) <= window:
            return 0  # a token has a byte at least
        found = await tokenizer.tokenize(_asked(request))
        window = self._windows[request.model] = found.max_model_len
        over = found.count + _parts(request) + _answer(request, window) - window
        return over if over <= 0 else int(over * _MARGIN * size / max(found.count, 1)) + 1


def _answer(request: ChatRequest, window: int) -> int:
    """The tokens that are the answer's."""
    return request.max_completion_tokens or request.max_tokens or min(_ANSWER_TOKENS, window // 4)


def _asked(request: ChatRequest) -> TokenizeRequest:
    extra = request.extra or {}
    return TokenizeRequest(
        model=request.model,
        messages=request.messages,
        tools=request.tools,
        chat_template_kwargs=extra.get("chat_template_kwargs"),
    )


def _size(request: ChatRequest) -> tuple[int, int]:
    """Its bytes, and the most tokens that come to them."""
    extra = MESSAGE_TOKENS * len(request.messages) + _parts(request) + (TOOLS_TOKENS if request.tools else 0)
    return len(_encode((request.messages, request.tools))), extra


def _parts(request: ChatRequest) -> int:
    """Tokens of pictures and sounds, which count where they are not in the text."""
    contents = (message.content for message in request.messages)
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return PART_TOKENS * sum(part.type not in ("text", "refusal") for part in parts)


def _shortened(passages: Sequence[Passage], size: int) -> list[Passage]:
    """Without ``size`` bytes of the worst passages; the last one left is cut at the end of a word."""
    kept = list(passages)
    while kept and size > 0:
        last = kept.pop()
        length = len(last.text.encode())
        if length - size >= _SHORTEST:
            text = last.text.encode()[: length - size].decode(errors="ignore").rsplit(None, 1)[0]
            kept.append(replace(last, text=text, end=last.start + len(text)))
        size -= length
    return kept
