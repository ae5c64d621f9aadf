"""Finds and removes file bytes that no row names: left by an upload that was never answered, or a delete cut short."""

from __future__ import annotations

import asyncio
from itertools import islice

from appliance.storage import files
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database

MIN_AGE_SECONDS = 3600.0
"""Younger bytes may belong to an upload whose row is about to be written."""
_GROUP = 500


async def lost_blobs(
    database: Database, blobs: BlobStore, older_than: float = MIN_AGE_SECONDS
) -> tuple[list[str], int]:
    """Ids of bytes without a row, and how many were looked at."""
    lost: list[str] = []
    seen = 0
    found = blobs.ids(older_than)
    while group := await asyncio.to_thread(lambda: list(islice(found, _GROUP))):
        async with database.session(write=False) as session:
            lost += set(group) - await files.known(session, group)
        seen += len(group)
    return sorted(lost), seen


async def sweep_blobs(database: Database, blobs: BlobStore, older_than: float = MIN_AGE_SECONDS) -> int:
    """Remove bytes without a row; returns how many files."""
    lost, _ = await lost_blobs(database, blobs, older_than)
    for blob_id in lost:
        await asyncio.to_thread(blobs.remove, blob_id)
    return len(lost)
