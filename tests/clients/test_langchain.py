"""LangChain's own suites for chat models and embeddings, against the appliance."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from served import Served

# They fetch pictures, sounds and PDFs from the internet, or replay what was recorded from it.
FROM_THE_INTERNET = {
    f"test_{name}"
    for name in ("audio_inputs", "image_inputs", "image_tool_message", "pdf_inputs", "pdf_tool_message", "stream_time")
}
_NEEDS_MORE = re.compile(r"test_.*(tool|structured|json|agent|anthropic)")

pytestmark = [
    pytest.mark.slow,
    # The client's own: it declares a field without a type and puts an object in; it takes old schemas reluctantly.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
    pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema"),
]


class Connected:
    """What all of LangChain's OpenAI classes are made with."""

    params: dict[str, Any]

    @pytest.fixture(autouse=True)
    async def _connected(self, url: str) -> AsyncIterator[None]:
        # LangChain keeps one pool for all models, and a pool belongs to the loop it was made in.
        async with openai.DefaultAsyncHttpxClient() as http:
            self.params = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "http_async_client": http}
            yield


class TestChatCompletions(Connected, ChatModelIntegrationTests):
    """Every test of the suite that needs nothing from the internet, over ``/v1/chat/completions``."""

    left_out = FROM_THE_INTERNET

    @pytest.fixture
    def url(self, acting: str) -> str:
        return acting

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**self.params, "model": "m", "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "second"


class TestResponses(TestChatCompletions):
    """The same over ``/v1/responses``."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestRealModel(TestChatCompletions):
    """What is about text, with the real model: it is too small to keep to a schema or to call tools when it should."""

    pytestmark = pytest.mark.model
    left_out = FROM_THE_INTERNET | {name for name in dir(ChatModelIntegrationTests) if _NEEDS_MORE.match(name)}

    @pytest.fixture
    def url(self, appliance: Served) -> str:
        return appliance.url

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "model": "smollm2", "temperature": 0, "max_completion_tokens": 16}

    @property
    def model_override_value(self) -> str:
        return "docs"


class TestEmbeddings(Connected, EmbeddingsIntegrationTests):
    """The real MiniLM. LangChain is told to send texts: by default it sends token ids of an OpenAI model."""

    pytestmark = pytest.mark.model

    @pytest.fixture
    def url(self, appliance: Served) -> str:
        return appliance.url

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {**self.params, "model": "minilm", "check_embedding_ctx_length": False}
