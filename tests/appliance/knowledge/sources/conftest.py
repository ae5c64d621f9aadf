"""A stack with sources, and an S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from s3_server import Bucket, S3Server
from sources_kit import synced

_numbers = itertools.count()


@pytest.fixture
def root(tmp_path):
    """An empty folder for documents."""
    made = tmp_path / "docs"
    made.mkdir()
    return made


@pytest.fixture
async def kit(tmp_path, monkeypatch):
    """A stack whose sources tests choose."""
    async with synced(tmp_path / "appliance", monkeypatch) as made:
        yield made


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The S3 server."""
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    """An empty bucket."""
    return s3.bucket(f"bucket-{next(_numbers)}")
