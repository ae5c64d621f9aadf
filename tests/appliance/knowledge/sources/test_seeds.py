"""The files of ``retrieval.stores``, which are sources too."""

from __future__ import annotations

from sources_kit import synced, write

from appliance.config import StoreConfig
from appliance.knowledge.report import SyncOrder
from appliance.knowledge.sources.opening import seeds
from appliance.knowledge.sources.waiting import until_indexed
from appliance.testing.scripted_embedder import ScriptedEmbedder


def handbook(*paths: str) -> tuple[StoreConfig, ...]:
    return (StoreConfig(name="handbook", paths=paths),)


async def test_configured_files_are_there_from_the_first_start_and_once_only(tmp_path, monkeypatch) -> None:
    write(tmp_path, docs__a="zebrafinch a", docs__b="zebrafinch b", c="zebrafinch c", d="zebrafinch d")
    async with synced(tmp_path, monkeypatch) as kit:
        for _ in range(2):
            await kit.use(seeds=handbook("docs/*.md", "c.md"))
            await kit.service.sync(SyncOrder(names=seeds(kit.config)))
            await until_indexed(kit.config, kit.made.database)
            assert await kit.texts() == {
                "docs/a.md": "zebrafinch a",
                "docs/b.md": "zebrafinch b",
                "c.md": "zebrafinch c",
            }
            assert await kit.made.backend.count(await kit.store()) == 3


async def test_changed_files_are_replaced_and_missing_ones_removed_however_many(tmp_path, monkeypatch) -> None:
    write(tmp_path, a="zebrafinch old", **{f"b{n}": "zebrafinch gone" for n in range(12)})
    async with synced(tmp_path, monkeypatch) as kit:
        await kit.use(seeds=handbook("*.md"))
        await kit.sync()
        mine = await kit.made.add(await kit.store(), "zebrafinch by a client", "mine.txt")
        write(tmp_path, a="zebrafinch new")
        for n in range(12):
            (tmp_path / f"b{n}.md").unlink()
        await kit.sync()
        assert await kit.texts() == {"a.md": "zebrafinch new", "mine.txt": "zebrafinch by a client"}
        assert kit.made.blobs.path(mine).exists()
        assert kit.blobs() == 2
        await kit.use(seeds=handbook())
        await kit.sync()
        assert await kit.texts() == {"mine.txt": "zebrafinch by a client"}


async def test_a_pattern_that_matches_nothing_is_told(tmp_path, monkeypatch, caplog) -> None:
    write(tmp_path, a="a")
    async with synced(tmp_path, monkeypatch) as kit:
        await kit.use(seeds=handbook("", "**.md", "../*.md", "b/*.md", "a.md"))
        assert (await kit.sync()).listed == 1
    told = {record.getMessage().partition(" matches")[0] for record in caplog.records if "pattern" in record.msg}
    assert told == {"", "**.md", "../*.md", "b/*.md"}


async def test_waiting_for_configured_files_is_bounded(tmp_path, monkeypatch, caplog) -> None:
    write(tmp_path, a="zebrafinch")
    embedder = ScriptedEmbedder(hold_from=0)
    async with synced(tmp_path, monkeypatch, embedder) as kit:
        await kit.use(seeds=handbook("a.md"))
        await kit.sync(indexed=False)
        await until_indexed(kit.config, kit.made.database, 0.2)
        embedder.release()
    assert "1 configured files are still being indexed" in caplog.text
