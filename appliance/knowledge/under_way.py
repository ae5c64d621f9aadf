"""What is worked on this moment, and how it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from appliance.knowledge.sealing import Key, Sealer


@dataclass
class UnderWay:
    """The files that are indexed or sealed. True while there are any."""

    running: dict[Key, asyncio.Task[None]]
    """What indexes them; a task leaves by itself when it ends."""
    sealer: Sealer
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while work is begun, and by those whom it must not begin behind."""

    def __bool__(self) -> bool:
        return bool(self.running or len(self.sealer))

    def keys(self) -> set[Key]:
        """Of all of them."""
        return {*self.running, *self.sealer.keys()}

    async def end(self, keys: Collection[Key]) -> None:
        """End the work on these; what is being completed this moment is waited for."""
        await self.end_tasks(keys)
        await self.sealer.forget(keys)

    async def end_of_store(self, store_id: str) -> None:
        """End the work on all files of a store."""
        await self.end({key for key in self.keys() if key[0] == store_id})

    async def end_tasks(self, keys: Collection[Key]) -> None:
        """End the indexing of these; what is written already is still sealed."""
        tasks = [task for key in tuple(keys) if (task := self.running.get(key))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
