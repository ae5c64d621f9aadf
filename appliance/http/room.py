"""How much one caller may send at once. Bodies come before any limit is asked, and lie in memory or on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from litestar.types import Receive

from appliance.errors import RateLimited

AT_ONCE = 32
"""How many bodies of the largest size may be on their way from one caller, or as many bytes in more of them."""
SMALL_BYTES = 99_999
"""Bodies of no more are not counted: a connection has buffers of that size anyway."""


class Room:
    """What is on its way, by callers and by how large a body of its kind may be."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], int] = {}

    @contextmanager
    def counted(self, caller: str, limit: int, receive: Receive) -> Iterator[Receive]:
        """The same ``receive`` with its pieces counted until the block is left.

        It raises RateLimited when the caller's bodies together have more than ``AT_ONCE`` times ``limit`` bytes.
        """
        key, mine = (caller, limit), 0

        async def counting() -> Any:
            nonlocal mine
            message: Any = await receive()
            size = len(message.get("body", b""))
            taken = self._taken.get(key, 0) + size
            if taken > AT_ONCE * limit:
                raise RateLimited(
                    f"more than {AT_ONCE * limit} bytes of your requests are on their way; send fewer at once",
                    retry_after=1,
                )
            mine += size
            self._taken[key] = taken
            return message

        try:
            yield counting
        finally:
            left = self._taken.pop(key, 0) - mine
            if left:
                self._taken[key] = left
