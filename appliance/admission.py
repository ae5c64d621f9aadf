"""What an admitter grants with a place: headers for the reply, and how much the answer may hold.

An admitter's lease gives an ``Admission`` on entry, or ``None`` when it has nothing to say. Without one nothing here
costs anything.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from appliance.errors import ApplianceError
from appliance.types import Call, CallRecord, Chunk
from appliance.wire import ChatRequest, CompletionRequest

if TYPE_CHECKING:
    from appliance.protocols import Admitter

log = logging.getLogger("appliance.pipeline")
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


class Lease:
    """An admitter's lease; says which plugin failed when entering or leaving it does."""

    __slots__ = ("_lease", "_name")

    def __init__(self, name: str, admitter: Admitter, call: Call, record: CallRecord) -> None:
        """``name`` is the plugin's; the lease follows ``record`` if it wants to. Raises what ``admit`` raises."""
        self._name = name
        self._lease = admitter.admit(call)
        # Looked up by name: asking a protocol costs more than the rest of a lease.
        follow = getattr(self._lease, "follow", None)
        if follow is not None:
            follow(record)

    async def __aenter__(self) -> Admission | None:
        """Enter the admitter's. Raises as it does."""
        try:
            return await self._lease.__aenter__()
        except ApplianceError:
            raise
        except Exception:
            log.exception("plugin %s failed to admit a request", self._name)
            raise

    async def __aexit__(self, *exc: object) -> bool | None:
        """Leave it. Raises as it does."""
        try:
            return await self._lease.__aexit__(*exc)  # type: ignore[arg-type]
        except Exception as error:
            if error is not exc[1]:
                log.exception("plugin %s failed to release a request", self._name)
            raise


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


def choices_of(request: object) -> int:
    """How many answers an engine makes for a request: ``n``, or ``best_of``, for each prompt; token ids are one."""
    if isinstance(request, ChatRequest):
        return request.n or 1
    if not isinstance(request, CompletionRequest):
        return 1
    prompts = request.prompt
    many = isinstance(prompts, list) and not isinstance(prompts[0], int)
    return max(request.n or 1, request.best_of or 1) * (len(prompts) if many else 1)


async def metered(chunks: AsyncIterator[Chunk], record: CallRecord, granted: int, more: More) -> AsyncIterator[Chunk]:
    """The chunks of a stream for as long as their tokens are granted. Counts events, as the record does."""
    async for chunk in chunks:
        if record.tokens > granted:
            granted = await more(record.tokens)
        yield chunk
