"""Plugin ``fair_queue``: a bounded queue before each model, fair between tenants by the tokens they are served.

    plugin:
      fair_queue:
        max_running: 64
        reserved: 8
        weights: {team-a: 2}
        priorities: {"role:support": 10, "key:3f9k2m8x0abc": -5}

``_vtc`` has the algorithm and its source. A token of the answer counts twice as much as one of the prompt, as in the
paper: about what it costs an engine. Priorities order the calls of one tenant; none lets a tenant starve another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Annotated, Literal, NamedTuple

import msgspec

from appliance.plugin import (
    Admitter,
    AppContext,
    Call,
    CallRecord,
    ChatRequest,
    CompletionRequest,
    Config,
    ConfigError,
    EmbeddingRequest,
    Gauge,
    Principal,
    Strict,
    choices_of,
    hookimpl,
    message_text,
)
from appliance_plugins._vtc import FairQueue, Place

OUTPUT_WEIGHT = 2.0
_CHARACTERS_PER_TOKEN = 4
_FIRST_GUESS = 128.0
"""Tokens of an answer, before any was seen."""
_SMOOTHING = 0.1
_LAST = 2**63
"""What a call's priority is lowered by when nobody waits for it: below all that can be configured."""
_QUEUED = ("chat", "completion", "embeddings")

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Weight = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class FairQueueSettings(Strict, frozen=True):
    """Places are per model; ``models`` gives single ones another ``max_running``. ``max_wait`` is in seconds."""

    max_running: _Positive = 64
    models: Mapping[str, _Positive] = {}
    reserved: Annotated[int, msgspec.Meta(ge=0)] = 8
    max_queued: Annotated[int, msgspec.Meta(ge=0)] = 256
    max_wait: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    between: Literal["tenant", "user"] = "tenant"
    weights: Mapping[str, _Weight] = {}
    priorities: Mapping[str, int] = {}


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """The block under ``plugin.fair_queue``."""
    return FairQueueSettings


@hookimpl
def appliance_admitters(settings: FairQueueSettings, context: AppContext) -> Sequence[Admitter]:
    """One queue a model, whose lengths are gauges."""
    queues = FairQueues(settings, context.config)
    context.gauges.add(
        Gauge(name="appliance_queue_depth", help="Calls that wait for a model.", label="model", read=queues.depths)
    )
    return [queues]


class FairQueues:
    """The queues of all models with an engine; aliases wait in their model's.

    Raises ConfigError for settings that name nothing.
    """

    def __init__(self, settings: FairQueueSettings, config: Config) -> None:
        _check(settings, config)
        self._settings = settings
        self._queues = {
            model.name: _ModelQueue(settings, settings.models.get(model.name, settings.max_running))
            for model in config.models
            if model.engine
        }
        self._queue_of = {
            model.name: self._queues[model.alias_of or model.name]
            for model in config.models
            if (model.alias_of or model.name) in self._queues
        }

    def depths(self) -> Mapping[str, float]:
        """How many calls wait, by model."""
        return {name: queue.depth for name, queue in self._queues.items()}

    def admit(self, call: Call) -> AbstractAsyncContextManager[None]:
        """A lease that waits for the call's turn. Work that is no generation, as a search, does not queue here.

        Neither does what is made for a call that has its place: all places could be of calls that wait for theirs. A
        search has none, so what is made for it waits like the rest.
        """
        queues = call.operation in _QUEUED and call.within not in _QUEUED
        queue = self._queue_of.get(call.model) if queues else None
        return Lease(queue, call, self._flow(call)) if queue else _FREE

    def _flow(self, call: Call) -> _Flow:
        principal = call.principal
        name, weight = principal.tenant, self._settings.weights.get(principal.tenant, 1.0)
        if self._settings.between == "user":  # two parts never run into one another: the length of the first is told
            name = f"{len(name)}:{name}:{principal.user or principal.id}"
        priority = self._priority(principal)
        return _Flow(name, weight, priority - _LAST if call.background else priority)

    def _priority(self, principal: Principal) -> int:
        """The key's own, else the highest of its roles'."""
        known = self._settings.priorities
        if not known:
            return 0
        if principal.key is not None and (found := known.get(f"key:{principal.key}")) is not None:
            return found
        return max((known[name] for role in principal.roles if (name := f"role:{role}") in known), default=0)


class _Flow(NamedTuple):
    name: str
    weight: float
    priority: int


class _ModelQueue(FairQueue):
    """A queue that learns how long its model's answers are."""

    def __init__(self, settings: FairQueueSettings, max_running: int) -> None:
        super().__init__(
            max_running, reserved=settings.reserved, max_queued=settings.max_queued, max_wait=settings.max_wait
        )
        self.answer_tokens = _FIRST_GUESS

    def learn(self, tokens: float) -> None:
        """An answer had so many tokens."""
        self.answer_tokens += _SMOOTHING * (tokens - self.answer_tokens)


class Lease(Place):
    """One call's way through the queue."""

    __slots__ = ("_choices", "_output", "_prompt", "_queue", "_record")

    def __init__(self, queue: _ModelQueue, call: Call, flow: _Flow) -> None:
        super().__init__(*flow)
        self._queue = queue
        self._record: CallRecord | None = None
        self._choices = choices_of(call.request)
        self._prompt = (prompt_characters(call.request) + call.unread) / _CHARACTERS_PER_TOKEN
        self._output = self._choices * _expected_tokens(call.request, queue.answer_tokens)

    def follow(self, record: CallRecord) -> None:
        """Keep the record: it tells how many tokens there were so far, and in the end."""
        self._record = record

    async def __aenter__(self) -> None:
        await self._queue.enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record = self._record
        if record is not None and record.usage.completion_tokens:
            self._queue.learn(record.usage.completion_tokens / self._choices)
        self._queue.leave(self)

    def spent(self) -> float:
        """What was read and said so far."""
        return self._cost(0.0)

    def expected(self) -> float:
        """An answer of the usual length, or longer if it is so already."""
        return self._cost(self._output)

    def _cost(self, at_least: float) -> float:
        record = self._record
        if record is None:
            return self._prompt + OUTPUT_WEIGHT * at_least
        usage = record.usage
        output = max(at_least, usage.completion_tokens or record.tokens)
        return (usage.prompt_tokens or self._prompt) + OUTPUT_WEIGHT * output


def prompt_characters(request: object) -> int:
    """The length of the prompt; token ids count as the characters they may stand for."""
    if isinstance(request, ChatRequest):
        return sum(len(message_text(message)) for message in request.messages)
    if isinstance(request, CompletionRequest):
        return _length(request.prompt)
    return _length(request.input) if isinstance(request, EmbeddingRequest) else 0


def _length(prompt: object) -> int:
    if not prompt or not isinstance(prompt, list):
        return len(prompt) if isinstance(prompt, str) else 0
    return len(prompt) * _CHARACTERS_PER_TOKEN if isinstance(prompt[0], int) else sum(map(_length, prompt))


def _expected_tokens(request: object, usual: float) -> float:
    """Of one choice: as many as usual, at most what the client allows."""
    if not isinstance(request, ChatRequest | CompletionRequest):
        return 0.0
    most = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    most = request.max_tokens if most is None else most
    return usual if most is None else min(usual, most)


def _check(settings: FairQueueSettings, config: Config) -> None:
    for name in settings.models:
        model = config.model(name)
        if model is None or model.engine is None:
            raise ConfigError(f"plugin.fair_queue.models.{name}: is not a model with an engine; name one that is")
    for name in settings.priorities:
        kind, _, rest = name.partition(":")
        if kind not in ("role", "key") or not rest:
            raise ConfigError(f"plugin.fair_queue.priorities.{name}: write role:NAME or key:SHORT_ID")


_FREE: AbstractAsyncContextManager[None] = nullcontext()
