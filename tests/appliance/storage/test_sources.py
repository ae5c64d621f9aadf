"""What earlier versions copied from ``retrieval.stores`` becomes a source's, so that no start copies it again."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.storage.database import Database
from appliance.storage.migrations.run import settings, upgrade
from appliance.storage.sources import documents

ROWS = """
INSERT INTO vector_stores (id, tenant, name, metadata, last_active_at, removing, created_us, metric, generation,
                           generations)
VALUES ('vs_1', 'default', 'handbook', '{}', 1, FALSE, 1, 'cosine', 0, 0);
INSERT INTO files (id, tenant, filename, purpose, bytes, sha256, created_us, restricted)
VALUES ('file-1', 'default', 'docs/a.md', 'configuration', 1, 'aa', 1, FALSE),
       ('file-2', 'default', 'docs/a.md', 'assistants', 1, 'bb', 1, FALSE),
       ('file-3', 'default', 'twice.md', 'configuration', 1, 'cc', 1, FALSE),
       ('file-4', 'default', 'twice.md', 'configuration', 1, 'dd', 1, FALSE);
INSERT INTO vector_store_files (store_id, file_id, tenant, version, status, attributes, chunk_size, chunk_overlap,
                                chunks, usage_bytes, notes, removing, stale, public, created_us)
SELECT 'vs_1', id, tenant, 1, 'completed', '{}', 100, 0, 1, 1, '[]', FALSE, FALSE, TRUE, 1 FROM files
"""


async def test_files_of_configured_stores_become_their_sources(url) -> None:
    from alembic import command

    def make_old(connection) -> None:
        upgrade(connection)
        command.downgrade(settings(connection), "0012")
        for statement in ROWS.split(";"):
            connection.execute(text(statement))

    if url.startswith("sqlite"):
        Path(make_url(url).database).parent.mkdir(exist_ok=True)
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(make_old)
    await engine.dispose()

    async with Database(url) as database, database.tenant("default", write=False) as session:
        found = await documents(session, "stores/default/handbook")
    assert sorted((row.key, row.file_id, row.next_id, row.sha256, row.version) for row in found) == [
        ("docs/a.md", "file-1", None, "aa", ""),
        ("twice.md", "file-3", "file-4", "", ""),
    ]
