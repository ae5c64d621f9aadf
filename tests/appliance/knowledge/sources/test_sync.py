"""What a sync comes to in the store, whatever the source: versions, names, rights, tenants, and work in between."""

from __future__ import annotations

import shutil
import time

import pytest
from eventually import until
from sources_kit import digest_of, folder, synced, write

from appliance.errors import NotFound, RetrievalUnavailable
from appliance.knowledge.sources.folder import FolderSource
from appliance.knowledge.sources.source import Entry, Listing
from appliance.source_config import AccessConfig
from appliance.storage import sources, store_files
from appliance.storage.tables import File, StoreFile
from appliance.storage.tables.sources import SourceFile
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope, Search


async def test_the_old_version_answers_until_the_new_one_is_indexed(root, tmp_path, monkeypatch) -> None:
    embedder = ScriptedEmbedder()
    async with synced(tmp_path / "appliance", monkeypatch, embedder) as kit:
        write(root, a="zebrafinch old")
        await kit.use(folder(root))
        await kit.sync()
        embedder.hold_from = len(embedder.calls)
        write(root, a="zebrafinch new")
        assert (await kit.sync(indexed=False)).changed == 1
        # By words: the embedder is held.
        words = Search(store_ids=(await kit.store(),), queries=("zebrafinch",), embedding_weight=0)
        found = (await kit.made.knowledge.search(words, Scope())).passages
        assert [hit.text for hit in found] == ["zebrafinch old"]
        embedder.release()
        await kit.indexed()
        assert await kit.texts() == {"a.md": "zebrafinch new"}
        assert kit.blobs() == 1


async def test_a_version_that_cannot_be_indexed_leaves_the_old_one_and_is_told(root, kit) -> None:
    write(root, a="zebrafinch old")
    await kit.use(folder(root))
    await kit.sync()
    write(root, a=" ", b="\n")
    await kit.sync()
    assert await kit.texts() == {"a.md": "zebrafinch old"}
    rows = await kit.rows()
    assert "no text" in rows["a.md"].error
    assert "no text" in rows["b.md"].error
    store = await kit.store()
    assert (await kit.made.row(store, rows["b.md"].file_id)).status == "failed"
    assert (await kit.sync()).changed == 0, "what failed is not tried again until it changes"
    write(root, a="zebrafinch newer")
    await kit.sync()
    assert await kit.texts() == {"a.md": "zebrafinch newer"}
    assert (await kit.rows())["a.md"].error is None


async def test_a_file_that_changes_while_it_is_indexed_ends_up_in_its_newest_version(
    root, tmp_path, monkeypatch
) -> None:
    embedder = ScriptedEmbedder()
    async with synced(tmp_path / "appliance", monkeypatch, embedder) as kit:
        embedder.hold_from = 0
        write(root, a="zebrafinch one")
        await kit.use(folder(root))
        await kit.sync(indexed=False)
        write(root, a="zebrafinch two")
        await kit.sync(indexed=False)
        embedder.release()
        await kit.indexed()
        assert await kit.texts() == {"a.md": "zebrafinch two"}
        assert kit.blobs() == 1


async def test_a_renamed_file_keeps_its_id_and_is_not_indexed_again(root, kit) -> None:
    write(root, **{f"old__{n}": f"zebrafinch {n}" for n in range(12)})
    await kit.use(folder(root))
    await kit.sync()
    before = {row.sha256: row.file_id for row in (await kit.rows()).values()}
    embedded = len(kit.made.embedder.calls)
    (root / "old").rename(root / "new")
    report = await kit.sync()
    assert (report.renamed, report.added, report.removed, report.error) == (12, 0, 0, None)
    assert {row.sha256: row.file_id for row in (await kit.rows()).values()} == before
    assert len(kit.made.embedder.calls) == embedded
    assert set(await kit.texts(limit=20)) == {f"new/{n}.md" for n in range(12)}


async def test_access_and_attributes_follow_the_configuration_also_while_the_source_is_gone(root, kit) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root, access=AccessConfig(groups=("hr",)), attributes={"team": "people"}))
    await kit.sync()
    store, file_id = await kit.store(), (await kit.rows())["a.md"].file_id

    async def seen_by(*groups: str) -> int:
        search = Search(store_ids=(store,), queries=("zebrafinch",))
        scope = Scope(readers=("*", *(f"group:{group}" for group in groups)))
        return len((await kit.made.knowledge.search(search, scope)).passages)

    assert (await seen_by("hr"), await seen_by("board"), await seen_by()) == (1, 0, 0)
    shutil.rmtree(root)
    embedded = len(kit.made.embedder.calls)
    await kit.use(folder(root, access=AccessConfig(groups=("board",)), attributes={"team": "top"}))
    assert "is not there" in (await kit.sync()).error
    assert len(kit.made.embedder.calls) == embedded
    assert (await seen_by("hr"), await seen_by("board")) == (0, 1)
    async with kit.made.database.session(write=False) as session:
        assert (await store_files.find(session, store, file_id)).attributes == {"team": "top"}


async def test_what_a_client_takes_out_comes_back_and_what_it_put_in_stays(root, kit) -> None:
    write(root, a="zebrafinch a", b="zebrafinch b")
    await kit.use(folder(root))
    await kit.sync()
    store = await kit.store()
    mine = await kit.made.add(store, "zebrafinch mine", "mine.txt")
    other = await kit.made.make_store()
    shared = (await kit.rows())["b.md"].file_id
    await kit.made.attach(other, shared)
    await kit.made.settled(other, shared)
    await kit.made.knowledge.remove_file(store, (await kit.rows())["a.md"].file_id)
    (root / "b.md").unlink()
    await kit.sync()
    assert await kit.texts() == {"a.md": "zebrafinch a", "mine.txt": "zebrafinch mine"}
    assert kit.made.blobs.path(mine).exists()
    assert [hit.file_id for hit in await kit.made.search(other, "zebrafinch")] == [shared]


async def test_a_store_that_was_deleted_is_made_and_filled_anew(root, kit) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root))
    await kit.sync()
    first = await kit.store()
    await kit.made.knowledge.remove_store(first)
    await kit.sync()
    assert await kit.store() != first
    assert await kit.texts() == {"a.md": "zebrafinch a"}
    assert kit.blobs() == 1


async def test_a_source_of_a_tenant_fills_that_tenants_store_and_no_other(root, kit) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root, tenant="acme"))
    await kit.sync()
    store = await kit.store(tenant="acme")
    search = Search(store_ids=(store,), queries=("zebrafinch",))
    assert len((await kit.made.knowledge.search(search, Scope("acme"))).passages) == 1
    with pytest.raises(NotFound):
        await kit.made.knowledge.search(search, Scope("other"))
    assert await kit.rows() == {}
    assert set(await kit.rows(tenant="acme")) == {"a.md"}


@pytest.mark.slow
async def test_a_source_that_is_given_to_another_tenant_is_told_and_takes_and_changes_nothing(root, kit) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root, tenant="acme"))
    await kit.sync()
    await kit.use(folder(root))
    report = await kit.sync()
    assert "belongs to tenant acme; set its tenant back, or give it another name" in report.error
    assert (await kit.rows(), list(await kit.rows(tenant="acme"))) == ({}, ["a.md"])
    async with kit.made.database.session(write=False) as session:
        assert (await sources.known(session))["docs"].error == report.error
    await kit.use(folder(root, tenant="acme"))
    assert (await kit.sync()).error is None


async def test_while_a_changed_document_cannot_take_its_place_its_source_says_so_once_and_rests(
    root, kit, monkeypatch, caplog
) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root))
    await kit.sync()
    write(root, a="zebrafinch anew")
    old, delete = (await kit.rows())["a.md"].file_id, kit.made.backend.delete_file
    turn, turns = kit.service._turn, []

    async def counted() -> None:
        await turn()
        turns.append(len(told()))

    def told() -> list[str]:
        return [record.levelname for record in caplog.records if record.name == "appliance.sources"]

    async def down(collection: str, file_id: str) -> None:
        if file_id == old:
            raise RetrievalUnavailable("the vector store is down")
        await delete(collection, file_id)

    with monkeypatch.context() as patch:
        patch.setattr(kit.service, "_turn", counted)
        patch.setattr(kit.made.backend, "delete_file", down)
        await kit.sync(indexed=False)
        await until(lambda: turns.count(1) >= 5, 30)
        assert set(turns) <= {0, 1}
        assert told() == ["WARNING"]
    kit.service._resting.clear()  # as after ten seconds
    await kit.indexed()
    assert await kit.texts() == {"a.md": "zebrafinch anew"}


async def test_ten_thousand_documents_that_are_known_cost_a_look_at_their_rows(root, kit) -> None:
    await kit.use(folder(root))
    await kit.sync()
    store = await kit.store()
    found = {f"{number}.md": Entry(f"v{number}") for number in range(10_000)}
    async with kit.made.database.session() as session:
        for key, entry in found.items():
            session.add(
                File(
                    id=f"file-{key}",
                    tenant="default",
                    filename=key,
                    purpose="configuration",
                    bytes=1,
                    sha256="",
                    created_us=1,
                )
            )
            session.add(
                SourceFile(
                    source="docs",
                    key=key,
                    tenant="default",
                    version=entry.version,
                    sha256="x",
                    settings=digest_of(kit),
                    file_id=f"file-{key}",
                )
            )
        await session.flush()
        for key in found:
            session.add(
                StoreFile(
                    store_id=store,
                    file_id=f"file-{key}",
                    tenant="default",
                    version=1,
                    status="completed",
                    attributes={},
                    chunk_size=100,
                    chunk_overlap=0,
                    created_us=1,
                )
            )

    async def listed(_: FolderSource) -> Listing:
        return Listing(dict(found))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FolderSource, "list", listed)
        began = time.process_time()
        report = await kit.sync()
    assert (report.listed, report.added, report.removed, report.error) == (10_000, 0, 0, None)
    assert time.process_time() - began < 8
