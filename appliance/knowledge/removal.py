"""Deletes files whole: out of every vector store first, then the row, then the bytes."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import IntegrityError

from appliance.errors import Conflict, RetrievalUnavailable
from appliance.knowledge.api import Knowledge
from appliance.storage import files
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.types import Scope

_TRIES = 5


async def remove_file(
    database: Database, knowledge: Knowledge | None, blobs: BlobStore, scope: Scope, file_id: str
) -> None:
    """Delete a file; again if it was attached meanwhile.

    Raises:
        Conflict: a batch reads it, or a vector store holds it that is out of ``scope``.
        RetrievalUnavailable: it is in a vector store, and those are out of reach.
    """
    for _ in range(_TRIES):
        async with database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            store_ids = await files.stores_of(session, file_id)
        if store_ids and knowledge is None:
            raise RetrievalUnavailable("the file is in a vector store and retrieval is off; set retrieval.vector_store")
        for store_id in store_ids:
            if knowledge is not None:
                await knowledge.remove_file(store_id, file_id)
        try:
            async with database.tenant(scope.tenant, stores=scope.stores) as session:
                await files.remove(session, file_id)
        except IntegrityError:
            continue
        await asyncio.to_thread(blobs.remove, file_id)
        return
    raise Conflict(
        f"file {file_id} is in a vector store that you may not reach, or is being attached again and again; take it "
        "out of the store first, or delete it when that is over"
    )
