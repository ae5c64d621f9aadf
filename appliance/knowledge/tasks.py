"""Several things at once, of which none goes on behind the failure of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """As ``asyncio.TaskGroup``, but raises what the first that failed has raised; its callers tell errors apart.

    ``asyncio.gather`` would let the others run on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
