"""Plugin ``wordlist``: blocks or masks terms in what goes to the model and in what it says.

    plugin:
      wordlist:
        block: [kumquat]
        mask: [email, "project x"]
        categories: {violence: ["knuckle duster"]}

A blocked term refuses a request, drops a retrieved passage, and ends a choice of an answer with ``finish_reason:
content_filter``. ``/v1/moderations`` flags it, and the terms of categories in these. ``email`` stands for every e-mail
address. On streams only the end that may still become a match is held back. While answers are filtered, log
probabilities are left out of them: they spell the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from appliance.plugin import (
    BadRequest,
    Blocked,
    Call,
    ChatRequest,
    Chunk,
    CompletionRequest,
    ConfigError,
    InputFilter,
    Judgement,
    MediaRequest,
    Message,
    OutputFilter,
    Passage,
    RerankRequest,
    ScoreRequest,
    Search,
    Strict,
    choices_of,
    hookimpl,
)
from appliance_plugins._answers import Answer
from appliance_plugins._folding import fold
from appliance_plugins._window import MAX_TERM_CHARACTERS, PATTERNS, Rules, Window

Category: TypeAlias = Literal[
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
]
"""OpenAI's."""
_SLICE = 4_096
"""Characters looked at between two looks at the event loop; less than a millisecond for ordinary text."""
_T = TypeVar("_T")


_FREE_FORM = ("tools", "functions", "response_format", "prediction")
_PASSAGE = ("text", "context", "filename")
"""What of a passage goes to the model; citations show the name of its file, too."""


class WordlistSettings(Strict, frozen=True):
    """Terms match as they read, also inside words (``_folding``); names of patterns (``email``) stand for them."""

    block: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    mask_with: str = "***"
    categories: Mapping[Category, tuple[str, ...]] = {}
    """Terms that ``/v1/moderations`` flags in these of OpenAI's categories; elsewhere they pass, unless blocked too."""
    apply: tuple[Literal["input", "output"], ...] = ("input", "output")


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """The block under ``plugin.wordlist``."""
    return WordlistSettings


@hookimpl
def appliance_input_filters(settings: WordlistSettings) -> Sequence[InputFilter]:
    """The filter; it looks at passages in any case, as they go to the model and, quoted in citations, to the client."""
    return [Wordlist(settings) if "input" in settings.apply else PassagesOnly(settings)]


@hookimpl
def appliance_output_filters(settings: WordlistSettings) -> Sequence[OutputFilter]:
    """The filter, if it is to look at answers."""
    return [Wordlist(settings)] if "output" in settings.apply else []


class Wordlist:
    """Filters requests, passages and answers. Raises ConfigError for terms that cannot be used."""

    def __init__(self, settings: WordlistSettings) -> None:
        _check(settings)
        self._rules = Rules(settings.block, settings.mask, settings.mask_with)
        self._blocked = Rules(settings.block, ())
        self._judged = {name: Rules(terms, ()) for name, terms in settings.categories.items()}

    async def filter_input(self, call: Call) -> Call:
        """The call with masked messages or prompt. Raises Blocked naming the field, never the term."""
        if isinstance(call.request, ChatRequest):
            free_form = {name: await self._walk(getattr(call.request, name), name) for name in _FREE_FORM}
            return _with(call, messages=await self._messages(call.request.messages), **free_form)
        if isinstance(call.request, CompletionRequest):
            prompt = await self._prompt(call.request.prompt)
            suffix = await self._optional(call.request.suffix, "suffix")
            return _with(call, prompt=prompt, suffix=suffix)
        if isinstance(call.request, RerankRequest):
            documents = await self._texts(call.request.texts, "documents")
            return _with(call, query=await self._text(call.request.query, "query"), documents=documents)
        if isinstance(call.request, ScoreRequest):
            queries = await self._texts(call.request.queries, "text_1")
            return _with(call, text_1=queries, text_2=await self._texts(call.request.texts, "text_2"))
        if isinstance(call.request, MediaRequest):
            return _with(call, **{name: await self._text(text, name) for name, text in _texts_of(call.request)})
        if isinstance(call.request, Search):
            queries = [await self._text(query, f"query[{i}]") for i, query in enumerate(call.request.queries)]
            return _with(call, queries=tuple(queries))
        return call

    async def moderate(self, call: Call, text: str) -> Judgement:
        """Flagged for a blocked term, and in the categories of whose terms it holds one."""
        blocked = await _blocks(self._blocked, text)
        found = [name for name, rules in self._judged.items() if await _blocks(rules, text)]
        return Judgement(blocked or bool(found), frozenset(found))

    async def filter_passages(self, call: Call, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The passages without blocked terms, masked where needed."""
        kept: list[Passage] = []
        for passage in passages:
            filtered = {name: await self._filtered(getattr(passage, name)) for name in _PASSAGE}
            if any(blocked for _, blocked in filtered.values()):
                continue
            changed = {name: text for name, (text, _) in filtered.items() if text != getattr(passage, name)}
            kept.append(msgspec.structs.replace(passage, **changed) if changed else passage)
        return kept

    async def filter_output(self, call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        """The answer, masked; a choice with a blocked term stops right before it. Ends when nothing can follow."""
        answer = Answer(self._rules, choices_of(call.request), streamed=call.stream)
        async for chunk in chunks:
            rewritten = answer.rewrite(chunk)
            if rewritten is not None:
                yield rewritten
            if answer.over:
                return
        rest = answer.rest()
        if rest is not None:
            yield rest

    async def _walk(self, value: Any, where: str) -> Any:
        """Free-form JSON with every text in it filtered; keys stay, as they name things."""
        if isinstance(value, str):
            return await self._text(value, where)
        if isinstance(value, dict):
            return {key: await self._walk(item, where) for key, item in value.items()}
        return [await self._walk(item, where) for item in value] if isinstance(value, list) else value

    async def _messages(self, messages: Sequence[Message]) -> list[Message]:
        return [await self._message(message, f"messages[{i}]") for i, message in enumerate(messages)]

    async def _message(self, message: Message, where: str) -> Message:
        content = message.content
        if isinstance(content, list):
            parts = [
                msgspec.structs.replace(
                    part,
                    text=await self._optional(part.text, f"{where}.content[{i}].text"),
                    refusal=await self._optional(part.refusal, f"{where}.content[{i}].refusal"),
                )
                for i, part in enumerate(content)
            ]
            message = msgspec.structs.replace(message, content=parts)
        else:
            message = msgspec.structs.replace(message, content=await self._optional(content, f"{where}.content"))
        for i, tool_call in enumerate(message.tool_calls or []):
            masked = await self._text(tool_call.function.arguments, f"{where}.tool_calls[{i}].function.arguments")
            function = msgspec.structs.replace(tool_call.function, arguments=masked)
            message = _replaced_call(message, i, function=function)
        told = ("reasoning_content", "reasoning", "refusal")
        texts = {name: await self._optional(getattr(message, name), f"{where}.{name}") for name in told}
        return msgspec.structs.replace(message, **texts)

    async def _prompt(self, prompt: str | list[str | int | list[int]]) -> str | list[str | int | list[int]]:
        if isinstance(prompt, str):
            return await self._text(prompt, "prompt")
        texts: list[str | int | list[int]] = []
        for i, item in enumerate(prompt):
            if not isinstance(item, str):
                raise BadRequest("prompts are filtered here, so token ids are not taken; send text", param="prompt")
            texts.append(await self._text(item, f"prompt[{i}]"))
        return texts

    async def _texts(self, texts: Sequence[str], where: str) -> list[str]:
        return [await self._text(text, f"{where}[{i}]") for i, text in enumerate(texts)]

    async def _optional(self, text: str | None, where: str) -> str | None:
        return await self._text(text, where) if text else text

    async def _text(self, text: str, where: str) -> str:
        filtered, blocked = await self._filtered(text)
        if blocked:
            raise Blocked(f"{where} holds a term that is not allowed here; leave it out and send again", param=where)
        return filtered

    async def _filtered(self, text: str) -> tuple[str, bool]:
        """The masked text, and whether a blocked term cut it short."""
        window = Window(self._rules)
        return await _through(window, text), window.blocked


async def _through(window: Window, text: str) -> str:
    """What comes out of a window for a whole text. Of a long one, other requests run in between."""
    if len(text) <= _SLICE:
        return window.feed(text, final=True)
    out: list[str] = []
    for start in range(0, len(text), _SLICE):
        out.append(window.feed(text[start : start + _SLICE]))
        await asyncio.sleep(0)
    out.append(window.finish())
    return "".join(out)


async def _blocks(rules: Rules, text: str) -> bool:
    window = Window(rules)
    await _through(window, text)
    return window.blocked


class PassagesOnly(Wordlist):
    """Leaves requests alone."""

    async def filter_input(self, call: Call) -> Call:
        """The call as it is."""
        return call


def _with(call: Call, **fields: Any) -> Call:
    return msgspec.structs.replace(call, request=msgspec.structs.replace(call.request, **fields))


def _replaced_call(message: Message, position: int, **fields: Any) -> Message:
    calls = list(message.tool_calls or [])
    calls[position] = msgspec.structs.replace(calls[position], **fields)
    return msgspec.structs.replace(message, tool_calls=calls)


def _texts_of(request: MediaRequest) -> list[tuple[str, str]]:
    """What a person wrote in a request for sound or pictures, by field."""
    given = ((name, getattr(request, name, None)) for name in ("prompt", "input", "instructions"))
    return [(name, text) for name, text in given if isinstance(text, str)]


def _check(settings: WordlistSettings) -> None:
    lists = {"block": settings.block, "mask": settings.mask}
    lists |= {f"categories.{name}": terms for name, terms in settings.categories.items()}
    for key, terms in lists.items():
        for i, term in enumerate(terms):
            if not fold(term).strip() or len(term) > MAX_TERM_CHARACTERS:
                raise ConfigError(
                    f"plugin.wordlist.{key}[{i}]: a term has 1 to {MAX_TERM_CHARACTERS} characters that show; "
                    f"change it or name a pattern ({', '.join(PATTERNS)})"
                )
    if any(char in '"\\' or char < " " for char in settings.mask_with):
        raise ConfigError(
            "plugin.wordlist.mask_with: quotes, backslashes and control characters break JSON arguments; leave them out"
        )
