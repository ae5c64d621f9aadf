"""Rows of document sources: what earlier versions copied becomes a source's, and what is news of one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from appliance.storage.database import Database
from appliance.storage.migrations.run import settings, upgrade
from appliance.storage.sources import documents, with_news
from appliance.storage.tables import File, StoreFile, VectorStore
from appliance.storage.tables.sources import DocumentSource, SourceFile

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


async def test_a_file_that_a_client_put_into_another_store_is_no_news_while_its_own_indexes_it(database) -> None:
    mine = {"tenant": "default"}
    async with database.session() as session:
        session.add_all(
            VectorStore(id=store_id, name="", labels={}, last_active_at=0, removing=False, created_us=1, **mine)
            for store_id in ("vs_source", "vs_client")
        )
        session.add(File(id="file-1", filename="a.md", purpose="", bytes=1, sha256="", created_us=1, **mine))
        await session.flush()
        session.add_all(
            StoreFile(
                store_id=store_id, file_id="file-1", version=1, status=status, attributes={}, chunk_size=100,
                chunk_overlap=0, created_us=1, **mine,
            )
            for store_id, status in (("vs_source", "in_progress"), ("vs_client", "completed"))
        )  # fmt: skip
        session.add(DocumentSource(name="docs", store_id="vs_source", tried_us=1, **mine))
        session.add(SourceFile(source="docs", key="a.md", next_id="file-1", **mine))
    async with database.session() as session:
        assert await with_news(session) == set()
        await session.execute(update(StoreFile).values(status="completed"))
        assert await with_news(session) == {"docs"}
