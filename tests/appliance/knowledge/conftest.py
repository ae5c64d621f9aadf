from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parsing_kit import Pool, pools


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """Makes pools whose children find the ``documents`` plugin and one named ``probe``; stops them all."""
    async with pools(tmp_path / "site", monkeypatch) as make:
        yield make
