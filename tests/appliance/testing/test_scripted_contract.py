"""The scripted engine is an engine like any other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from appliance.testing import Emit, ScriptedEngine
from appliance.testing.contracts.engine import EngineContract
from appliance.testing.contracts.media import MediaEngineContract
from appliance.testing.contracts.tokenizer import TokenizerContract


class TestScriptedEngine(EngineContract, MediaEngineContract, TokenizerContract):
    @pytest.fixture
    async def engine(self, unstarted_engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
        await unstarted_engine.start()
        yield unstarted_engine
        await unstarted_engine.stop()
        assert unstarted_engine.running == 0

    @pytest.fixture
    def unstarted_engine(self) -> ScriptedEngine:
        return ScriptedEngine([Emit("Hello"), Emit(" there.")])
