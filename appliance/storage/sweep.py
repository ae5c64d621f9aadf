"""Removes file bytes that no row names: left by an upload that was never answered, or a delete that was cut short."""

from __future__ import annotations

from itertools import islice

from appliance.storage import files
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database

MIN_AGE_SECONDS = 3600.0
"""Younger bytes may belong to an upload whose row is about to be written."""
_GROUP = 500


async def sweep_blobs(database: Database, blobs: BlobStore, older_than: float = MIN_AGE_SECONDS) -> int:
    """Remove bytes without a row; returns how many files."""
    removed = 0
    found = blobs.ids(older_than)
    while group := list(islice(found, _GROUP)):
        async with database.session(write=False) as session:
            known = await files.known(session, group)
        for blob_id in set(group) - known:
            blobs.remove(blob_id)
            removed += 1
    return removed
