"""A scripted engine: plays a script instead of running a model, and keeps a diary of each call.

As the plugin ``scripted`` it serves configurations without a model: ``options: {reply: "some words"}`` or
``{echo: true}``. In tests make your own with ``ScriptedPlugin``:

    plugin = ScriptedPlugin([Wait(2), Emit("par"), Emit("tial"), Fail("out of memory")])
    app = make_app({"models": [{"name": "m", "engine": "scripted"}]}, plugins={"scripted": plugin})
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from appliance.config import convert
from appliance.context import AppContext
from appliance.errors import BadRequest, ContextLengthExceeded, EngineError
from appliance.hookspecs import hookimpl
from appliance.media.requests import MediaRequest
from appliance.protocols import Engine, EngineFactory, Generation, MediaAnswer
from appliance.strict import Strict
from appliance.testing.scripted_media import ScriptedMedia
from appliance.types import Call, Chunk, ModelSpec, Tokens
from appliance.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    TokenizeRequest,
    message_text,
)

_LONGEST = 64
"""Characters of a token: as with real ones, few tokens cannot stand for gigabytes of text."""


@dataclass(frozen=True)
class Wait:
    """Do nothing for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Do nothing until the gate is open: ``gate.set()`` in the event loop that the engine runs in."""

    gate: asyncio.Event


@dataclass(frozen=True)
class Emit:
    """Say a piece of text, as one token, in one choice; ``part`` is where it goes in a chat's message."""

    text: str
    choice: int = 0
    part: Literal["content", "reasoning_content", "refusal"] = "content"


@dataclass(frozen=True)
class CallTool:
    """Emit a piece of a tool call's arguments; ``index`` tells a choice's calls apart."""

    arguments: str
    name: str = "tool"
    choice: int = 0
    index: int = 0


@dataclass(frozen=True)
class Fail:
    """Break off, as an engine that dies; with a ``message`` by a foreign exception, whose text no client must see."""

    message: str | None = None
    error: BaseException | None = None

    def exception(self) -> BaseException:
        """What to raise."""
        if self.error is not None:
            return self.error
        return EngineError("the engine broke off; try again") if self.message is None else RuntimeError(self.message)


@dataclass(frozen=True)
class Finish:
    """End with another finish reason than ``stop``."""

    reason: str


Step: TypeAlias = Wait | Hold | Emit | CallTool | Fail | Finish
Script: TypeAlias = Sequence[Step] | Callable[[Call], Sequence[Step]]


@dataclass
class Diary:
    """What happened to one call: ``start``, then ``end`` (complete), ``abort`` (closed early) or ``fail``."""

    call: Call
    events: list[str] = field(default_factory=list)


class ScriptedEngine:
    """Plays its script for every call. A word is a token; ``max_context`` is in words."""

    def __init__(self, script: Script, *, max_context: int = 8192) -> None:
        self.script = script
        self.max_context = max_context
        self.diaries: list[Diary] = []
        self.running = 0
        self._ready = False
        self._vocabulary: dict[str, int] = {}
        """Ids of words, in the order they were first seen."""

    @property
    def ready(self) -> bool:
        """True between start and stop."""
        return self._ready

    async def start(self) -> None:
        """Ready at once."""
        self._ready = True

    async def stop(self) -> None:
        """Stopped at once."""
        self._ready = False

    async def generate(self, call: Call) -> Generation:
        """Accept a call. Raises ContextLengthExceeded for prompts longer than ``max_context`` words."""
        if not isinstance(call.request, ChatRequest | CompletionRequest):
            raise BadRequest(f"model {call.model} answers chats and completes texts, nothing else", param="model")
        words = prompt_words(call.request)
        if words > self.max_context:
            raise ContextLengthExceeded(
                f"the prompt has {words} tokens and the model reads {self.max_context}; shorten it", param="messages"
            )
        diary = Diary(call)
        self.diaries.append(diary)
        script = self.script(call) if callable(self.script) else self.script
        return _Performance(self, diary, list(script), words)

    async def produce(self, call: Call) -> MediaAnswer:
        """Accept a call for sound or pictures; the script is what a recording says."""
        diary = Diary(call)
        self.diaries.append(diary)
        script = self.script(call) if callable(self.script) else self.script
        diary.events.append("start")
        self.running += 1

        def close(event: str) -> None:
            if diary.events == ["start"]:
                diary.events.append(event)
                self.running -= 1

        return ScriptedMedia(call, _words_said(script), close)

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Each word a token, a long one several; messages are read one after the other."""
        words = words_of(request.messages) if request.messages is not None else (request.prompt or "").split()
        words = [word[start : start + _LONGEST] for word in words for start in range(0, len(word), _LONGEST)]
        ids = [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]
        strs = words if request.return_token_strs else None
        return Tokens(count=len(ids), max_model_len=self.max_context, tokens=ids, token_strs=strs)

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """The words, with blanks between. Raises BadRequest for a token that was never given out."""
        words = list(self._vocabulary)
        unknown = [token for token in request.tokens if token >= len(words)]
        if unknown:
            raise BadRequest(f"tokens holds {unknown[0]}, which is no token of this model", param="tokens")
        return " ".join(words[token] for token in request.tokens)


class _Performance:
    """One call's script being played."""

    def __init__(self, engine: ScriptedEngine, diary: Diary, script: list[Step], words: int) -> None:
        self._engine = engine
        self._diary = diary
        self._words = words
        self._bodies = self._play(script)
        self._open = True
        diary.events.append("start")
        engine.running += 1

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            return Chunk(body=await anext(self._bodies))
        except StopAsyncIteration:
            self._close("end")
            raise
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._close("fail")
            raise

    async def aclose(self) -> None:
        """Abort, if the script is not over."""
        self._close("abort")
        await self._bodies.aclose()

    def _close(self, event: str) -> None:
        if self._open:
            self._open = False
            self._engine.running -= 1
            self._diary.events.append(event)

    async def _play(self, script: list[Step]) -> AsyncGenerator[dict[str, Any], None]:
        call = self._diary.call
        writer = _Writer(call, self._words)
        for step in script:
            await _pass(step)
            if isinstance(step, Emit | CallTool | Finish):
                for body in writer.write(step):
                    yield body
        for body in writer.finish():
            yield body


async def _words_said(script: Sequence[Step]) -> AsyncIterator[str]:
    for step in script:
        await _pass(step)
        if isinstance(step, Emit):
            yield step.text


async def _pass(step: Step) -> None:
    """Take the time that a step takes, or break off where it says so."""
    if isinstance(step, Wait):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, Hold):
        await step.gate.wait()
    elif isinstance(step, Fail):
        raise step.exception()


class _Writer:
    """Turns steps into OpenAI bodies: chunks when streaming, one answer otherwise."""

    def __init__(self, call: Call, words: int) -> None:
        self._call = call
        self._chat = isinstance(call.request, ChatRequest)
        self._n = _choices_of(call.request)
        self._words = words
        self._created = int(time.time())
        self._texts: list[dict[str, str]] = [{} for _ in range(self._n)]
        self._spelled: list[list[dict[str, Any]]] = [[] for _ in range(self._n)]
        self._top = (call.request.top_logprobs or 0) if self._chat and call.request.logprobs else None
        self._calls: list[dict[int, dict[str, Any]]] = [{} for _ in range(self._n)]
        self._reasons: list[str | None] = [None] * self._n
        self._tokens = 0
        self._begun: set[int] = set()

    def write(self, step: Emit | CallTool | Finish) -> list[dict[str, Any]]:
        """What to send for one step; nothing when not streaming."""
        if isinstance(step, Finish):
            self._reasons = [step.reason] * self._n
            return []
        choices = range(self._n) if step.choice == 0 and self._n > 1 else [step.choice]
        self._tokens += len(choices)
        bodies: list[dict[str, Any]] = []
        for choice in choices:
            bodies += self._piece(step, choice)
        return bodies if self._call.stream else []

    def _piece(self, step: Emit | CallTool, choice: int) -> list[dict[str, Any]]:
        bodies = []
        if self._chat and choice not in self._begun:
            self._begun.add(choice)
            bodies.append(self._chunk(choice, {"role": "assistant", "content": ""}))
        if isinstance(step, Emit):
            texts = self._texts[choice]
            texts[step.part] = texts.get(step.part, "") + step.text
            bodies.append(self._chunk(choice, {step.part: step.text} if self._chat else step.text))
            if self._top is not None and step.part == "content":
                self._spelled[choice].append(_spelled(step.text, self._top))
                bodies[-1]["choices"][0]["logprobs"] = {"content": self._spelled[choice][-1:], "refusal": None}
        else:
            bodies.append(self._chunk(choice, {"tool_calls": [self._call_piece(step, self._calls[choice])]}))
        return bodies

    def _call_piece(self, step: CallTool, calls: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """The first piece of a call names it, as OpenAI's do; clients join what pieces hold."""
        if step.index in calls:
            calls[step.index]["function"]["arguments"] += step.arguments
            return {"index": step.index, "function": {"arguments": step.arguments}}
        function = {"name": step.name, "arguments": step.arguments}
        begun = {"id": f"call_{self._call.id}_{step.index}", "type": "function", "function": function}
        calls[step.index] = {**begun, "function": dict(function)}
        return {"index": step.index, **begun}

    def finish(self) -> list[dict[str, Any]]:
        """The end: finish reasons and usage, or the whole plain answer."""
        if not self._call.stream:
            return [self._answer()]
        ends = [self._chunk(i, {} if self._chat else "", self._reason(i)) for i in range(self._n)]
        return [*ends, {**self._head("chunk"), "choices": [], "usage": self._usage()}]

    def _reason(self, choice: int) -> str:
        return self._reasons[choice] or ("tool_calls" if self._calls[choice] else "stop")

    def _head(self, kind: str) -> dict[str, Any]:
        name = ("chat.completion" if self._chat else "text_completion") + (f".{kind}" if kind and self._chat else "")
        prefix = "chatcmpl" if self._chat else "cmpl"
        return {"id": f"{prefix}-{self._call.id}", "object": name, "created": self._created, "model": self._call.model}

    def _chunk(self, choice: int, delta: Any, reason: str | None = None) -> dict[str, Any]:
        piece = {"delta": delta} if self._chat else {"text": delta}
        return {
            **self._head("chunk"),
            "choices": [{"index": choice, **piece, "logprobs": None, "finish_reason": reason}],
        }

    def _answer(self) -> dict[str, Any]:
        choices = [self._choice(i) for i in range(self._n)]
        return {**self._head(""), "choices": choices, "usage": self._usage()}

    def _choice(self, i: int) -> dict[str, Any]:
        logprobs = {"content": self._spelled[i], "refusal": None} if self._top is not None else None
        end = {"index": i, "logprobs": logprobs, "finish_reason": self._reason(i)}
        if not self._chat:
            return {**end, "text": self._texts[i].get("content", "")}
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, **self._texts[i]}
        if self._calls[i]:
            message["tool_calls"] = list(self._calls[i].values())
        return {**end, "message": message}

    def _usage(self) -> dict[str, int]:
        total = self._words + self._tokens
        return {"prompt_tokens": self._words, "completion_tokens": self._tokens, "total_tokens": total}


def _spelled(text: str, top: int) -> dict[str, Any]:
    """A token with its log probability, and as many others as asked for."""
    token = {"token": text, "logprob": -0.25, "bytes": list(text.encode())}
    others = [{"token": f"{text}{place}", "logprob": -1.0 - place, "bytes": None} for place in range(1, top)]
    return {**token, "top_logprobs": [token, *others] if top else []}


def _choices_of(request: ChatRequest | CompletionRequest) -> int:
    """As many as asked for, for each prompt; those of the first prompt come first, as vLLM's do."""
    return (request.n or 1) * (1 if isinstance(request, ChatRequest) else len(_prompts(request)))


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    prompt = request.prompt
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return prompt if many else [prompt]  # type: ignore[list-item, return-value]


def prompt_words(request: ChatRequest | CompletionRequest) -> int:
    """The scripted engine's token count: words of all messages, or of the prompt."""
    if isinstance(request, ChatRequest):
        return len(words_of(request.messages))
    return sum(len(prompt.split()) if isinstance(prompt, str) else len(prompt) for prompt in _prompts(request))


def words_of(messages: Sequence[Message]) -> list[str]:
    """The words of all messages."""
    return [word for message in messages for word in message_text(message).split()]


def last_user_text(call: Call) -> str:
    """The text of the last user message, or the prompt; nothing where a request has neither."""
    if isinstance(call.request, ChatRequest):
        return next((message_text(m) for m in reversed(call.request.messages) if m.role == "user"), "")
    if isinstance(call.request, MediaRequest):
        return " ".join(call.request.texts)
    return str(getattr(call.request, "prompt", ""))


class ScriptedOptions(Strict, frozen=True):
    """Options of a configured scripted engine."""

    reply: str = "This is a scripted answer."
    echo: bool = False
    delay: float = 0.0
    """Seconds before each word."""
    hold: bool = False
    """Never end: say it, and then nothing more until the caller leaves."""
    max_context: int = 8192


class ScriptedPlugin:
    """The plugin with a script of your own; ``engines`` holds the engines it made, by model name."""

    def __init__(self, script: Script | None = None, *, max_context: int = 8192) -> None:
        self._script = script
        self._max_context = max_context
        self.engines: dict[str, ScriptedEngine] = {}

    @property
    def engine(self) -> ScriptedEngine:
        """The only engine."""
        (engine,) = self.engines.values()
        return engine

    @hookimpl
    def appliance_engines(self) -> Mapping[str, EngineFactory]:
        """Provide the engine kind ``scripted``."""
        return {"scripted": self._make}

    def _make(self, spec: ModelSpec, context: AppContext) -> Engine:
        options = convert(dict(spec.options), ScriptedOptions, f"{spec.where}.options")
        script = self._script if self._script is not None else _configured(options)
        engine = ScriptedEngine(script, max_context=min(self._max_context, options.max_context))
        self.engines[spec.name] = engine
        return engine


def _configured(options: ScriptedOptions) -> Callable[[Call], Sequence[Step]]:
    def script(call: Call) -> Sequence[Step]:
        text = last_user_text(call) if options.echo else options.reply
        words = [word + " " for word in text.split(" ")]
        words[-1] = words[-1][:-1]
        pause: list[Step] = [Wait(options.delay)] if options.delay else []
        end: list[Step] = [Hold(asyncio.Event())] if options.hold else []
        return [*(step for word in words for step in [*pause, Emit(word)]), *end]

    return script


@hookimpl
def appliance_engines() -> Mapping[str, EngineFactory]:
    """Provide the engine kind ``scripted`` to configurations."""
    return ScriptedPlugin().appliance_engines()
