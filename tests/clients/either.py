"""One scenario for a client's two forms: what the async one has to await, the sync one gives at once."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any

from client_types import exactly


async def got(value: Any) -> Any:
    """What a method of either client answers."""
    return await value if inspect.isawaitable(value) else value


async def listed(values: AsyncIterable[Any] | Iterable[Any]) -> list[Any]:
    """A stream's events, or the objects of all pages."""
    values = await got(values)
    return [value async for value in values] if isinstance(values, AsyncIterable) else list(values)


@asynccontextmanager
async def entered(manager: AbstractAsyncContextManager[Any] | AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """The stream of a streaming helper."""
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager as stream:
            yield stream
    else:
        with manager as stream:
            yield stream


def valid(answer: Any) -> Any:
    """The answer, once it holds what its type asks for and nothing more: the clients themselves check neither."""
    exactly(type(answer), answer.to_dict())
    return answer
