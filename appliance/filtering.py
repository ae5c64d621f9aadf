"""Runs the content filters of a call, in order, and decides what happens when one of them breaks.

A filter that raises anything but a RequestError blocks the request (fails closed), unless its plugin is listed
under ``filters.fail_open``; either way the log names it. An answer of which a filter has changed something is broken
off all the same: what the filter still holds of it nobody knows, and an answer with a gap must not look whole.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from appliance.errors import RequestError
from appliance.protocols import InputFilter, Moderator, OutputFilter
from appliance.types import Call, Chunk, Judgement, Passage

log = logging.getLogger("appliance.filters")


@dataclass(frozen=True)
class Filters:
    """The input and output filters with their plugins' names."""

    inputs: Sequence[tuple[str, InputFilter]] = ()
    outputs: Sequence[tuple[str, OutputFilter]] = ()
    fail_open: frozenset[str] = frozenset()

    async def input(self, call: Call) -> Call:
        """Pass a call through every input filter. Raises Blocked."""
        for name, filter_ in self.inputs:
            try:
                call = await filter_.filter_input(call)
            except RequestError:
                raise
            except Exception:
                if not self._survives(name, call):
                    raise
        return call

    async def passages(self, call: Call, passages: Sequence[Passage]) -> Sequence[Passage]:
        """Pass retrieved passages through every input filter."""
        for name, filter_ in self.inputs:
            try:
                passages = await filter_.filter_passages(call, passages)
            except RequestError:
                raise
            except Exception:
                if not self._survives(name, call):
                    raise
        return passages

    @property
    def moderators(self) -> list[tuple[str, Moderator]]:
        """The input filters that judge too, with their plugins' names."""
        return [(name, filter_) for name, filter_ in self.inputs if isinstance(filter_, Moderator)]

    async def judge(self, call: Call, text: str) -> list[Judgement]:
        """What each of them says of a text."""
        found: list[Judgement] = []
        for name, moderator in self.moderators:
            try:
                found.append(await moderator.moderate(call, text))
            except RequestError:
                raise
            except Exception:
                if not self._survives(name, call):
                    raise
        return found

    def output(self, call: Call, chunks: AsyncIterator[Chunk], held: AsyncExitStack) -> AsyncIterator[Chunk]:
        """Stack every output filter on the chunks; ``held`` closes each stage."""
        for name, filter_ in self.outputs:
            chunks = self._guarded(name, filter_, call, chunks)
            held.push_async_exit(aclosing(chunks))  # type: ignore[type-var]
        return chunks

    async def _guarded(
        self, name: str, filter_: OutputFilter, call: Call, chunks: AsyncIterator[Chunk]
    ) -> AsyncIterator[Chunk]:
        """One filter; if it breaks and may, what it had taken and not given back passes unfiltered."""
        taken = _Taken(chunks)
        try:
            async with aclosing(filter_.filter_output(call, taken.chunks())) as filtered:  # type: ignore[type-var]
                async for chunk in filtered:
                    taken.give_back(chunk)
                    yield chunk
            return
        except RequestError:
            raise
        except Exception:
            if taken.failed or not self._survives(name, call, changed=taken.changed):
                raise
        async for chunk in taken.rest():
            yield chunk

    def _survives(self, name: str, call: Call, *, changed: bool = False) -> bool:
        survives = name in self.fail_open and not changed
        log.exception(
            "filter plugin %s broke; request %s %s", name, call.id, "passes unfiltered" if survives else "is blocked"
        )
        return survives


class _Taken:
    """What a filter takes of an answer, and what of it the filter still holds while it changes nothing."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: deque[Chunk] = deque()
        self.failed = False
        """Whether the answer broke off before it came to the filter."""
        self.changed = False

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The answer as the filter gets it."""
        try:
            async for chunk in self._chunks:
                if not self.changed:
                    self._held.append(chunk)
                yield chunk
        except BaseException:
            self.failed = True
            raise

    def give_back(self, chunk: Chunk) -> None:
        """Note a chunk that comes out of the filter."""
        if self._held and chunk is self._held[0]:
            self._held.popleft()
        else:
            self.changed = True
            self._held.clear()

    async def rest(self) -> AsyncIterator[Chunk]:
        """What the filter holds, and what it has not seen."""
        for chunk in self._held:
            yield chunk
        async for chunk in self._chunks:
            yield chunk
