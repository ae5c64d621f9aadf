"""Several things at once, of which none goes on behind the failure of another; and steps that are tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from appliance.errors import ApplianceError


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


async def tried(what: str, step: Awaitable[object], log: logging.Logger) -> bool:
    """Do a step of what goes on whatever befalls it: errors are told in the log alone. False if it failed."""
    try:
        await step
    except ApplianceError as error:
        log.warning("%s waits: %s", what, error)
    except Exception:
        log.exception("%s failed and is tried again", what)
    else:
        return True
    return False
