"""A folder as a source: what is found in it, what is not taken, and what must not be taken for gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from sources_kit import folder, write

from appliance.knowledge.sources import folder as folder_module
from appliance.knowledge.sources.folder import OUTSIDE, FolderSource
from appliance.knowledge.sources.source import SourceError


async def test_what_is_new_changed_and_gone_in_a_folder_is_so_in_the_store(root, kit) -> None:
    write(root, a="zebrafinch a", sub__b="zebrafinch b", sub__deep__c="zebrafinch c")
    await kit.use(folder(root))
    report = await kit.sync()
    assert (report.listed, report.added, report.error) == (3, 3, None)
    assert await kit.texts() == {
        "a.md": "zebrafinch a",
        "sub/b.md": "zebrafinch b",
        "sub/deep/c.md": "zebrafinch c",
    }
    assert (await kit.sync()).added == 0

    write(root, a="zebrafinch anew", d="zebrafinch d")
    (root / "sub" / "b.md").unlink()
    report = await kit.sync()
    assert (report.added, report.changed, report.removed) == (1, 1, 1)
    assert await kit.texts() == {
        "a.md": "zebrafinch anew",
        "d.md": "zebrafinch d",
        "sub/deep/c.md": "zebrafinch c",
    }
    assert kit.blobs() == 3


async def test_a_file_that_was_only_touched_is_not_indexed_again(root, kit) -> None:
    write(root, a="zebrafinch")
    await kit.use(folder(root))
    await kit.sync()
    before = (await kit.rows())["a.md"]
    os.utime(root / "a.md", (1, 1))
    await kit.sync()
    after = (await kit.rows())["a.md"]
    assert after.file_id == before.file_id
    assert after.version != before.version


async def test_content_that_changes_under_the_same_time_and_size_is_noticed(root, kit) -> None:
    write(root, a="zebrafinch 1")
    os.utime(root / "a.md", (1, 1))
    await kit.use(folder(root))
    await kit.sync()
    write(root, a="zebrafinch 2")
    os.utime(root / "a.md", (1, 1))
    await kit.sync()
    assert await kit.texts() == {"a.md": "zebrafinch 2"}


async def test_a_file_that_is_still_being_written_waits(root, kit) -> None:
    write(root, a="zebrafinch whole", b="zebrafinch ha")
    os.utime(root / "a.md", (time.time() - 60, time.time() - 60))
    await kit.use(folder(root, settle=30))
    report = await kit.sync()
    assert (report.added, report.waiting) == (1, 1)
    write(root, b="zebrafinch half")
    os.utime(root / "b.md", (time.time() - 60, time.time() - 60))
    await kit.sync()
    assert await kit.texts() == {"a.md": "zebrafinch whole", "b.md": "zebrafinch half"}


@pytest.mark.parametrize("settle", [0, 30])
async def test_a_file_with_a_date_in_the_future_waits_for_no_such_day(root, kit, settle) -> None:
    write(root, a="zebrafinch of tomorrow")
    os.utime(root / "a.md", (time.time() + 86_400, time.time() + 86_400))
    await kit.use(folder(root, settle=settle))
    assert (await kit.sync()).waiting == 0
    assert await kit.texts() == {"a.md": "zebrafinch of tomorrow"}


async def test_a_known_file_that_is_being_written_to_is_not_taken_for_gone(root, kit) -> None:
    write(root, a="zebrafinch")
    await kit.use(folder(root))
    await kit.sync()
    write(root, a="zebrafinch half")
    await kit.use(folder(root, settle=30))
    report = await kit.sync()
    assert (report.waiting, report.removed) == (1, 0)
    assert await kit.texts() == {"a.md": "zebrafinch"}


@pytest.mark.parametrize("how", ["missing", "empty", "file"])
async def test_a_mount_that_is_gone_removes_nothing(root, kit, how) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root))
    await kit.sync()
    shutil.rmtree(root)
    if how == "empty":
        root.mkdir()
    elif how == "file":
        root.write_text("")
    report = await kit.sync()
    assert {"missing": "is not there", "empty": "1 of 1 documents are gone", "file": "is no folder"}[
        how
    ] in report.error
    assert report.removed == 0
    assert await kit.texts() == {"a.md": "zebrafinch a"}


async def test_more_than_may_vanish_at_once_stays_until_somebody_allows_it(root, kit) -> None:
    write(root, **{f"f{n}": f"zebrafinch {n}" for n in range(24)})
    await kit.use(folder(root, max_removed=0.5))
    await kit.sync()
    for n in range(13):
        (root / f"f{n}.md").unlink()
    report = await kit.sync()
    assert "13 of 24 documents are gone" in report.error
    assert "appliance sources sync docs --allow-removals" in report.error
    assert len(await kit.rows()) == 24
    (root / "f12.md").write_text("zebrafinch 12")
    assert (await kit.sync()).removed == 12
    for n in range(12, 24):
        (root / f"f{n}.md").unlink()
    assert "12 of 12" in (await kit.sync()).error
    assert (await kit.sync(remove_all=True)).removed == 12
    assert kit.blobs() == 0


async def test_what_lies_below_a_folder_that_cannot_be_read_is_not_taken_for_gone(root, kit, monkeypatch) -> None:
    write(root, a="zebrafinch a", closed__b="zebrafinch b", open__c="zebrafinch c")
    await kit.use(folder(root))
    await kit.sync()
    (root / "open" / "c.md").unlink()
    names = os.listdir

    def refused(path):
        if str(path).endswith("closed/"):
            raise PermissionError(13, "Permission denied")
        return names(path)

    monkeypatch.setattr(os, "listdir", lambda path: refused(f"{path}/"))
    report = await kit.sync()
    assert (report.removed, report.failures) == (1, {"closed/": "cannot be read; check its permissions"})
    assert await kit.texts() == {"a.md": "zebrafinch a", "closed/b.md": "zebrafinch b"}


async def test_a_file_that_cannot_be_read_keeps_what_was_read_of_it_and_stops_no_other(root, kit, monkeypatch) -> None:
    write(root, a="zebrafinch a")
    await kit.use(folder(root))
    await kit.sync()
    write(root, a="zebrafinch anew", b="zebrafinch b")
    opened = os.open

    def refused(path, *arguments, **options):
        if str(path) == str(root / "a.md"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    report = await kit.sync()
    assert report.failures == {"a.md": "cannot be read (Permission denied); check its permissions"}
    assert await kit.texts() == {"a.md": "zebrafinch a", "b.md": "zebrafinch b"}
    assert (await kit.rows())["a.md"].error == report.failures["a.md"]
    monkeypatch.undo()
    await kit.sync()
    assert (await kit.texts())["a.md"] == "zebrafinch anew"
    assert (await kit.rows())["a.md"].error is None


async def test_D4_links_that_lead_out_of_the_folder_are_refused_and_told(root, kit, tmp_path) -> None:
    write(tmp_path / "outside", secret="zebrafinch secret", deep__secret="zebrafinch secret")
    write(root, a="zebrafinch a")
    (root / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "nowhere.md").symlink_to(tmp_path / "nothing.md")
    (root / "inside.md").symlink_to(root / "a.md")
    (root / "circle").symlink_to(root)
    await kit.use(folder(root, paths=("**/*", "folder/*", "folder/**/*")))
    report = await kit.sync()
    assert report.failures == {"link.md": OUTSIDE}
    assert await kit.texts() == {"a.md": "zebrafinch a", "inside.md": "zebrafinch a"}


async def test_D4_a_file_that_became_a_link_since_it_was_listed_is_not_followed(root, kit, tmp_path) -> None:
    write(tmp_path, secret="s")
    write(root, a="zebrafinch")
    source = FolderSource(root, ("*",), 0, 1000)
    assert set((await source.list()).entries) == {"a.md"}
    (root / "a.md").unlink()
    (root / "a.md").symlink_to(tmp_path / "secret.md")
    with kit.made.blobs.writer() as writer:
        with pytest.raises(SourceError, match="leads out of the folder"):
            await source.fetch("a.md", "", writer)
        assert writer.size == 0
        os.mkfifo(root / "pipe")
        with pytest.raises(SourceError, match="is no file"):
            await source.fetch("pipe", "", writer)


async def test_names_that_cannot_be_kept_are_told_and_stop_no_other(root, kit) -> None:
    write(root, a="zebrafinch a")
    (root / "two\nlines.md").write_text("zebrafinch")
    Path(os.fsdecode(os.fsencode(root) + b"/latin-\xe9.md")).write_text("zebrafinch")
    await kit.use(folder(root))
    report = await kit.sync()
    assert len(report.failures) == 2
    assert all("rename it" in reason for reason in report.failures.values())
    assert await kit.texts() == {"a.md": "zebrafinch a"}


async def test_a_file_over_the_bound_is_told(root, kit) -> None:
    write(root, a="x" * 2000)
    source = FolderSource(root, ("*",), 0, 1000)
    with kit.made.blobs.writer() as writer, pytest.raises(SourceError, match="over 1000 bytes"):
        await source.fetch("a.md", "", writer)


async def test_a_disk_that_does_not_answer_holds_up_nothing_but_its_source(root, kit, monkeypatch) -> None:
    write(root, a="zebrafinch")
    asked, answers = threading.Event(), threading.Event()
    opener = folder_module._opener

    def hangs(path: str, flags: int) -> int:
        asked.set()
        assert answers.wait(20)
        return opener(path, flags)

    monkeypatch.setattr(folder_module, "_opener", hangs)
    with kit.made.blobs.writer() as writer:
        fetching = asyncio.create_task(FolderSource(root, ("*",), 0, 1000).fetch("a.md", "", writer))
        assert await asyncio.to_thread(asked.wait, 20)
        answers.set()  # by this loop, which is free
        assert (await fetching).filename == "a.md"


@pytest.mark.slow
async def test_ten_thousand_files_that_are_known_cost_neither_reading_nor_writing(root, monkeypatch) -> None:
    for number in range(100):
        (root / f"{number}").mkdir()
        for other in range(100):
            (root / f"{number}" / f"{other}.md").touch()
    source = FolderSource(root, ("**/*",), 0, 1000)
    monkeypatch.setattr(os, "open", None)
    began = time.process_time()
    listing = await source.list()
    assert len(listing.entries) == 10_000
    assert time.process_time() - began < 5


async def test_patterns_choose_and_hidden_files_are_not_among_them(root) -> None:
    write(root, a="", sub__b="", sub__deep__c="")
    (root / ".git").mkdir()
    (root / ".git" / "x.md").touch()
    (root / ".hidden.md").touch()
    (root / "d.txt").touch()

    async def chosen(*patterns: str) -> set[str]:
        return set((await FolderSource(root, patterns, 0, 1000).list()).entries)

    assert await chosen("**/*") == {"a.md", "sub/b.md", "sub/deep/c.md", "d.txt"}
    assert await chosen("**") == await chosen("**/*")
    assert await chosen("**/*.md") == {"a.md", "sub/b.md", "sub/deep/c.md"}
    assert await chosen("*.md", "d.*") == {"a.md", "d.txt"}
    assert await chosen("sub/*.md") == {"sub/b.md"}
    assert await chosen("sub/**/c.md", "./a.md", f"{root}/d.txt") == {"sub/deep/c.md", "a.md", "d.txt"}
    assert await chosen(".hidden.md", "../*", "**.md", "", "/") == {".hidden.md"}
