"""The official client for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from served import Served


@pytest.fixture
def client(appliance: Served) -> Iterator[openai.OpenAI]:
    """The official client, pointed at the appliance."""
    with openai.OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
