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
import time
from contextlib import AsyncExitStack
from typing import ClassVar

import pytest

from appliance.errors import RateLimited
from appliance.protocols import Admitter, Follower
from appliance.testing.answers import chat_call
from appliance.types import CallRecord, Usage


class AdmitterContract:
    """A place is given back on every path, once; what is granted can be used."""

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

    async def test_calls_that_come_at_once_share_the_places(self, admitter: Admitter) -> None:
        wanted = 3 * (self.places or 10)
        async with AsyncExitStack() as held:
            entering = (held.enter_async_context(admitter.admit(chat_call())) for _ in range(wanted))
            outcomes = await asyncio.gather(*entering, return_exceptions=True)
            refused = [one for one in outcomes if isinstance(one, BaseException)]
            assert all(isinstance(one, RateLimited) for one in refused)
            assert len(refused) == (wanted - self.places if self.places else 0)
        await self._fill(admitter)

    async def test_a_client_that_leaves_while_its_place_is_given_back_keeps_nothing(self, admitter: Admitter) -> None:
        for _ in range(2 * (self.places or 1)):
            lease = admitter.admit(chat_call())
            await lease.__aenter__()
            leaving = asyncio.ensure_future(lease.__aexit__(None, None, None))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
        await self._fill(admitter, patience=20)

    async def test_what_it_grants_can_be_sent_and_asked_for(self, admitter: Admitter) -> None:
        for stream in (True, False):
            async with admitter.admit(chat_call(stream=stream)) as admission:
                if admission is None:
                    continue
                for name, value in admission.headers.items():
                    assert name == name.lower()
                    (name + value).encode("ascii")
                assert (admission.output_tokens is None) == (admission.more is None)
                if admission.output_tokens is not None and admission.more is not None:
                    assert await admission.more(admission.output_tokens + 1) > admission.output_tokens

    async def test_a_lease_that_follows_its_call_is_settled_whatever_it_came_to(self, admitter: Admitter) -> None:
        for usage in (Usage(), Usage(prompt_tokens=3, completion_tokens=5)):
            for error in (None, ValueError("broken"), asyncio.CancelledError(), GeneratorExit()):
                record = CallRecord(call=chat_call(), usage=usage)
                lease = admitter.admit(record.call)
                if isinstance(lease, Follower):
                    lease.follow(record)
                await lease.__aenter__()
                await lease.__aexit__(type(error) if error else None, error, None)
        await self._fill(admitter)

    async def _fill(self, admitter: Admitter, patience: float = 0.0) -> None:
        """Take every place at once; ``patience`` is how many seconds they may take to come back."""
        end = time.monotonic() + patience
        while True:
            try:
                await self._fill_now(admitter)
                return
            except RateLimited:
                if time.monotonic() >= end:
                    raise
                await asyncio.sleep(0.01)

    async def _fill_now(self, admitter: Admitter) -> None:
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
        async with asyncio.timeout(20):
            await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
