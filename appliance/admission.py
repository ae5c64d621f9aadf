"""What an admitter grants with a place: headers for the reply, and how much the answer may hold.

An admitter's lease gives an ``Admission`` on entry, or ``None`` when it has nothing to say. Without one nothing here
costs anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from appliance.types import Call, CallRecord, Chunk
from appliance.wire import ChatRequest, CompletionRequest

More = Callable[[int], Awaitable[int]]
"""``await more(seen)``: so many tokens came out; the new total that may. Raises RateLimited when none is left."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What one admitter grants one call.

    ``headers`` go out with the reply, whatever comes of it. ``output_tokens`` is how many tokens the answer may hold
    before ``more`` is asked; ``None`` is no limit. A plain answer cannot be stopped half-way, so the engine gets the
    number as its maximum where the client named none.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    output_tokens: int | None = None
    more: More | None = None


def capped(call: Call, admission: Admission) -> Call:
    """A plain call that names no maximum gets the granted one, shared among its choices."""
    request = call.request
    if admission.output_tokens is None or call.stream or not isinstance(request, ChatRequest | CompletionRequest):
        return call
    each = max(1, admission.output_tokens // choices_of(request))
    if isinstance(request, CompletionRequest):
        changed: ChatRequest | CompletionRequest = msgspec.structs.replace(
            request, max_tokens=request.max_tokens or each
        )
    elif request.max_completion_tokens is None and request.max_tokens is None:
        changed = msgspec.structs.replace(request, max_completion_tokens=each)
    else:
        return call
    return msgspec.structs.replace(call, request=changed)


def choices_of(request: ChatRequest | CompletionRequest) -> int:
    """How many answers an engine makes for a request: ``n``, or ``best_of``, for each prompt; token ids are one."""
    if isinstance(request, ChatRequest):
        return request.n or 1
    prompts = request.prompt
    return max(request.n or 1, request.best_of or 1) * (
        len(prompts) if isinstance(prompts, list) and not isinstance(prompts[0], int) else 1
    )


async def metered(chunks: AsyncIterator[Chunk], record: CallRecord, granted: int, more: More) -> AsyncIterator[Chunk]:
    """The chunks of a stream for as long as their tokens are granted. Counts events, as the record does."""
    async for chunk in chunks:
        if record.tokens > granted:
            granted = await more(record.tokens)
        yield chunk
