"""What every ``Admitter`` must do.

Inherit, and give the ``admitter`` fixture:

    class TestMyLimits(AdmitterContract):
        places = 2

        @pytest.fixture
        def admitter(self):
            return MyLimits(concurrent=2)

Needs pytest and pytest-asyncio (``asyncio_mode = auto``). ``places`` is how many calls of one caller the fixture's
admitter lets run at once; ``None`` when it has no such limit. It must not limit rates.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import ClassVar

import pytest

from appliance.errors import RateLimited
from appliance.protocols import Admitter
from appliance.testing.answers import chat_call


class AdmitterContract:
    """A place is given back on every path, once."""

    places: ClassVar[int | None] = None

    def test_it_is_an_admitter(self, admitter: Admitter) -> None:
        assert isinstance(admitter, Admitter)

    async def test_places_come_back_after_success_error_and_cancellation(self, admitter: Admitter) -> None:
        for _ in range(3 * (self.places or 1)):
            async with admitter.admit(chat_call()):
                pass
            with pytest.raises(ValueError, match="broken"):
                async with admitter.admit(chat_call()):
                    raise ValueError("broken")
            await self._cancel_one(admitter)
        await self._fill(admitter)

    async def test_a_lease_that_is_never_entered_takes_no_place(self, admitter: Admitter) -> None:
        for _ in range(2 * (self.places or 1)):
            admitter.admit(chat_call())
        await self._fill(admitter)

    async def test_over_the_limit_it_says_when_to_come_back_and_takes_nothing(self, admitter: Admitter) -> None:
        if self.places is None:
            return
        for _ in range(2):
            async with AsyncExitStack() as held:
                for _ in range(self.places):
                    await held.enter_async_context(admitter.admit(chat_call()))
                for _ in range(3):
                    with pytest.raises(RateLimited) as caught:
                        await held.enter_async_context(admitter.admit(chat_call()))
                    assert caught.value.retry_after is not None
                    assert caught.value.retry_after > 0

    async def _fill(self, admitter: Admitter) -> None:
        async with AsyncExitStack() as held:
            for _ in range(self.places or 3):
                await held.enter_async_context(admitter.admit(chat_call()))

    async def _cancel_one(self, admitter: Admitter) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with admitter.admit(chat_call()):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        async with asyncio.timeout(5):
            await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
