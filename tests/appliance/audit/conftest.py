"""An app with an audit log, and a client of it."""

import pytest
from loopback import http_client
from trail_kit import serve


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path) as made:
        yield made


@pytest.fixture
async def client(served):
    async with http_client(base_url=served.base, timeout=30) as made:
        yield made
