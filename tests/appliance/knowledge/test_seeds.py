"""Stores that the configuration asks for."""

import msgspec
from knowledge_kit import Stack, stack

from appliance.config import RetrievalConfig, StoreConfig
from appliance.knowledge import seeds
from appliance.knowledge.seeds import Seeder, matching
from appliance.storage import stores
from appliance.testing.scripted_embedder import ScriptedEmbedder


async def seed(made: Stack, *paths: str) -> str:
    retrieval = RetrievalConfig(vector_store="memory", stores=(StoreConfig(name="handbook", paths=paths),))
    config = msgspec.structs.replace(made.config, retrieval=retrieval)
    seeder = Seeder(config, made.database, made.blobs, made.knowledge)
    await seeder.run()
    await seeder.wait()
    async with made.database.tenant("default", write=False) as session:
        return (await stores.by_name(session, "handbook")).id


async def texts(made: Stack, store: str, query: str) -> set[tuple[str, str]]:
    return {(found.filename, found.text) for found in await made.search(store, query)}


async def test_configured_files_are_there_from_the_first_start_and_once_only(tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("zebrafinch a")
    (tmp_path / "docs" / "b.md").write_text("zebrafinch b")
    (tmp_path / "c.txt").write_text("zebrafinch c")
    async with stack(tmp_path) as made:
        store = await seed(made, "docs/*.md", "c.txt")
        expected = {("docs/a.md", "zebrafinch a"), ("docs/b.md", "zebrafinch b"), ("c.txt", "zebrafinch c")}
        assert await texts(made, store, "zebrafinch") == expected
        assert await seed(made, "docs/*.md", "c.txt") == store
        assert await made.backend.count(store) == 3


async def test_changed_files_are_replaced_and_missing_ones_removed(tmp_path) -> None:
    (tmp_path / "a.md").write_text("zebrafinch old")
    (tmp_path / "b.md").write_text("zebrafinch gone")
    async with stack(tmp_path) as made:
        store = await seed(made, "*.md")
        mine = await made.add(store, "zebrafinch by a client", "mine.txt")
        (tmp_path / "a.md").write_text("zebrafinch new")
        (tmp_path / "b.md").unlink()
        await seed(made, "*.md")
        assert await texts(made, store, "zebrafinch") == {
            ("a.md", "zebrafinch new"),
            ("mine.txt", "zebrafinch by a client"),
        }
        assert made.blobs.path(mine).exists()
        assert len(list((tmp_path / "data" / "files").glob("??/*"))) == 2


async def test_a_file_that_cannot_be_read_is_told_and_keeps_what_was_read_of_it(tmp_path, monkeypatch, caplog) -> None:
    (tmp_path / "a.md").write_text("zebrafinch a")
    async with stack(tmp_path) as made:
        store = await seed(made, "*.md")
        (tmp_path / "b.md").write_text("zebrafinch b")
        digest = seeds._digest

        def refused(path):
            if path.name == "a.md":
                raise PermissionError(13, "Permission denied")
            return digest(path)

        monkeypatch.setattr(seeds, "_digest", refused)
        await seed(made, "*.md")
        assert await texts(made, store, "zebrafinch") == {("a.md", "zebrafinch a"), ("b.md", "zebrafinch b")}
    assert "a.md cannot be read (Permission denied); check its permissions" in caplog.text


def test_a_text_that_is_no_pattern_matches_nothing_and_is_told(tmp_path, caplog) -> None:
    (tmp_path / "a.md").write_text("a")
    assert matching(tmp_path, ["", "/", "**.md", "a.md"]) == [tmp_path / "a.md"]
    assert caplog.text.count("check the pattern") == 3


def test_patterns_match_nothing_outside_of_the_folder(tmp_path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "a.md").write_text("a")
    (tmp_path / "secret.md").write_text("s")
    (inside / "link.md").symlink_to(tmp_path / "secret.md")
    assert matching(inside, ["*.md", "../*.md", str(tmp_path / "secret.md"), str(inside / "a.md")]) == [inside / "a.md"]


async def test_waiting_for_configured_files_is_bounded(tmp_path, caplog) -> None:
    (tmp_path / "a.md").write_text("zebrafinch")
    async with stack(tmp_path, ScriptedEmbedder(hold_from=0)) as made:
        retrieval = RetrievalConfig(vector_store="memory", stores=(StoreConfig(name="handbook", paths=("a.md",)),))
        config = msgspec.structs.replace(made.config, retrieval=retrieval)
        seeder = Seeder(config, made.database, made.blobs, made.knowledge)
        await seeder.run()
        await seeder.wait(0.2)
    assert "1 configured files are still being indexed" in caplog.text
