"""The official Python client, sync and async: moderations by a guard model."""

from __future__ import annotations

import asyncio
from functools import partial

import openai
import pytest

from appliance.plugin import Call
from appliance.testing import Emit
from appliance.testing.scripted import last_user_text
from clients.either import got, valid

CONFIG = {"filters": {"moderation_model": "m"}}


def guard(call: Call) -> list[Emit]:
    """Llama Guard's words: fights are violent, everything else is safe."""
    return [Emit("unsafe\nS1" if "fight" in last_user_text(call) else "safe")]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_texts_are_judged_each_by_itself(box, asynchronous) -> None:
    async with box(guard, CONFIG) as b:
        client_type = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        client = client_type(base_url=f"{b.url}/v1", api_key="none", max_retries=0, timeout=20)
        # The sync client holds up the loop that serves; it gets a thread.
        ask = client.moderations.create if asynchronous else partial(asyncio.to_thread, client.moderations.create)
        try:
            answer = valid(await ask(input=["a song", "a fight"]))
            parts = [{"type": "text", "text": "a fight"}]
            several = valid(await ask(input=parts, model="omni-moderation-latest"))
        finally:
            await got(client.close())
    assert [one.flagged for one in answer.results] == [False, True]
    assert answer.results[1].categories.violence
    assert answer.results[1].category_scores.violence == 1
    assert answer.results[1].category_applied_input_types.violence == ["text"]
    assert not answer.results[1].categories.hate
    assert [one.flagged for one in several.results] == [True]
