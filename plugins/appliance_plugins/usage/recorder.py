"""Takes note of finished calls and books them into the database, a batch a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from appliance.plugin import (
    ApplianceError,
    Call,
    CallRecord,
    ChatRequest,
    Config,
    Usage,
    UsageKey,
    UsageStore,
    UsageSums,
    cost,
    message_text,
    price_of,
    usage_label,
)
from appliance_plugins.usage.spool import Entry, Spool, read

log = logging.getLogger("appliance.usage")
_MOST_COST = 10**15
"""A call's most: at any price no sum overflows."""
_RETRY_SECONDS = 5.0


class UsageRecorder:
    """Writes calls to the spool, and the spool to the database every ``interval`` seconds."""

    def __init__(self, config: Config, store: UsageStore, spool: Spool, interval: float) -> None:
        self._config = config
        self._store = store
        self._spool = spool
        self._interval = interval
        self._recorded = asyncio.Event()
        self._booking = asyncio.Lock()
        self._removed: list[str] = []
        """Batches whose files are gone: the database may forget them."""

    async def record(self, record: CallRecord) -> None:
        """Write a call down; durable against a kill when this returns."""
        self._spool.append(Entry(key_of(record, datetime.now(UTC)), sums_of(record, self._config)))
        self._recorded.set()

    async def book(self) -> None:
        """Bring all calls recorded so far into the database. Raises OutOfSpace, Unavailable: they stay in the spool."""
        async with self._booking:
            for path in self._spool.closed:
                await self._book(path)
            if (latest := self._spool.rotate()) is not None:
                await self._book(latest)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Books what an earlier process left, then what comes, and the rest at the end."""
        await asyncio.to_thread(self._spool.open)
        self._recorded.set()
        task = asyncio.create_task(self._book_for_ever())
        try:
            yield
        finally:
            async with self._booking:  # not in the middle of a batch
                task.cancel()
            await asyncio.wait({task})
            await self._book_or_warn()

    async def _book_for_ever(self) -> None:
        while True:
            await self._recorded.wait()
            self._recorded.clear()
            if await self._book_or_warn():
                await asyncio.sleep(self._interval)
            else:
                self._recorded.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _book(self, path: Path) -> None:
        """A file is a batch: booked once, whenever and however often this is interrupted and tried again."""
        sums = await self._read(path)
        if sums is not None:
            await self._store.book(path.stem, sums, forget=self._removed)
            self._removed = []
            await asyncio.to_thread(self._spool.remove, path)
            self._removed.append(path.stem)
        self._spool.drop(path)

    async def _read(self, path: Path) -> dict[UsageKey, UsageSums] | None:
        """The sums of a file; ``None`` if nothing can be had from it, now or later."""
        try:
            return await asyncio.to_thread(read, path)
        except FileNotFoundError:
            log.debug("%s is gone: an attempt that was interrupted had booked and removed it", path)
        except OSError as error:
            log.warning("usage in %s cannot be read (%s) and is not booked; it is set aside", path, error.strerror)
            await asyncio.to_thread(self._spool.set_aside, path)
        return None

    async def _book_or_warn(self) -> bool:
        try:
            await self.book()
        except ApplianceError as error:
            log.warning("usage stays in data_dir/usage for now: %s", error)
            return False
        except Exception:
            log.exception("usage stays in data_dir/usage for now")
            return False
        return True


def key_of(record: CallRecord, when: datetime) -> UsageKey:
    """Whom and what a call is counted for, on the day it ended."""
    call, principal = record.call, record.call.principal
    return UsageKey(
        when.date().isoformat(),
        usage_label(principal.tenant),
        usage_label(principal.user),
        usage_label(principal.key, 64),
        usage_label(call.model),
        usage_label(call.operation, 32),
    )


def sums_of(record: CallRecord, config: Config) -> UsageSums:
    """What one call adds."""
    usage = record.usage
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    counted = Usage(usage.prompt_tokens, usage.completion_tokens or record.tokens, cached)
    return UsageSums(
        requests=1,
        errors=int(record.outcome in ("error", "refused")),
        aborted=int(record.outcome == "aborted"),
        input_tokens=counted.prompt_tokens,
        cached_tokens=counted.cached_tokens,
        output_tokens=counted.completion_tokens,
        retrieved_tokens=_retrieved_tokens(record.call, usage.prompt_tokens),
        retrieved_passages=len(record.call.passages),
        cost=min(cost(price_of(config, record.call.model), counted), _MOST_COST),
    )


def _retrieved_tokens(call: Call, prompt_tokens: int) -> int:
    """The prompt's tokens in proportion to its characters: counting them would mean to tokenise every prompt again."""
    if not call.passages or not isinstance(call.request, ChatRequest):
        return 0
    passages = sum(len(passage.text) for passage in call.passages)
    everything = sum(len(message_text(message)) for message in call.request.messages)
    return round(prompt_tokens * passages / max(everything, passages, 1))
