"""Backups that were altered, cut off, or made up by somebody are refused and leave nothing."""

import io
import json
import tarfile

import pytest
from backup_kit import assert_nothing_is_left, backed_up, restored, written_by_hand
from backup_rows import every_column, fill_every_table, put_bytes

from appliance.backup import BackupError
from appliance.backup.archive import FORMAT
from appliance.errors import BadRequest
from appliance.storage.database import Database
from appliance.storage.tables import (
    File,
)


async def test_a_backup_that_is_cut_off_anywhere_leaves_nothing(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    await put_bytes(source, "file-1", bytes(range(256)) * 1500)
    data, _ = await backed_up(source)
    ends = [0, 1, 30, 200, 250, *range(10_000, len(data), len(data) // 7), len(data) - 1]
    for end in ends:
        with pytest.raises(BackupError, match=r"damaged|cut off"):
            await restored(target, data[:end])
        await assert_nothing_is_left(target)
    await restored(target, data)


async def test_a_backup_that_was_altered_anywhere_leaves_nothing(new_config) -> None:
    source, target = new_config(), new_config()
    await fill_every_table(source)
    await put_bytes(source, "file-1", bytes(range(256)) * 1500)
    data, _ = await backed_up(source)
    for place in (3, 60, 180, *range(20_000, len(data), len(data) // 5)):
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(BackupError, match=r"damaged|locked for other keys"):
            await restored(target, bytes(altered))
        await assert_nothing_is_left(target)


AN_ENTRY = json.dumps(
    {"seq": 1, "time_us": 1, "details": "{}"}
    | dict.fromkeys(
        ("tenant", "principal", "user", "action", "outcome", "object", "request_id", "address", "previous", "hash"), "a"
    )
).encode()


def a_file(**values: object) -> bytes:
    """A line with a row of ``files`` as it should be, but for these."""
    row = {"id": "file-1", "tenant": "a", "filename": "a", "purpose": "a", "bytes": 0, "sha256": "", "created_us": 1}
    return json.dumps({**row, "restricted": False, **values}).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("../../etc/cron.d/a", b"", "unknown name"),
        ("files/../a", b"", "unknown name"),
        ("files/file-other", b"abc", "bytes of no file"),
        ("rows/users.1.jsonl", b"{}\n", "no table"),
        ("rows/files.2.jsonl", b"[]\n", "none of files"),
        ("rows/files.2.jsonl", b'{"nothing": 1}\n', "none of files"),
        ("rows/files.2.jsonl", b"{\n", "none of files"),
        ("rows/audit_head.2.jsonl", b"", "none of audit_head"),
        ("rows/files.2.jsonl", a_file(id={"a": 1}), "none of files"),
        ("rows/files.2.jsonl", a_file(created_us=2**70), "none of files"),
        ("rows/files.2.jsonl", a_file(created_us=None), "do not fit together"),
        ("rows/files.2.jsonl", a_file() * 2, "do not fit together"),
        ("rows/files.2.jsonl", a_file(), "does not hold what it should"),
        ("rows/files.2.jsonl", b"[" * 100_000, "none of files"),
        ("rows/responses.2.jsonl", b'{"id": "a", "events": "not base64"}', "none of responses"),
        ("end.json", b"{}", "not of its form"),
        ("end.json", b'{"tables":{},"files":{"number":0,"size":0,"sha256":""},"lost":[]}', "what it should"),
    ],
)
async def test_a_backup_that_somebody_made_up_is_refused(new_config, name, content, why) -> None:
    """Whoever knows the public key can make one; nothing in it is used as a path or believed."""
    await refused(new_config(), name, content, why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (a_file(id={"a": 1}), "none of files"),
        (a_file(created_us=2**70), "none of files"),
        (a_file() * 2, "do not fit together"),
    ],
)
async def test_rows_that_somebody_made_up_are_refused_on_postgresql_too(new_config, content, why) -> None:
    await refused(new_config("postgresql"), "rows/files.1.jsonl", content, why)


@pytest.mark.parametrize(("filename", "why"), [("a" * 300, "longer than the database keeps"), ("a\0b", "NUL")])
async def test_a_text_that_postgresql_does_not_keep_is_told(new_config, filename, why) -> None:
    """SQLite keeps them."""
    source, target = new_config(), new_config("postgresql")
    async with Database(source.database_url) as database, database.session() as session:
        session.add(every_column(File, id="file-1", filename=filename))
    data, _ = await backed_up(source)
    with pytest.raises(BadRequest, match=why):
        await restored(target, data)
    await assert_nothing_is_left(target)


async def assert_refused(target, backup: bytes, why: str) -> None:
    """It is, and leaves nothing."""
    with pytest.raises(BackupError, match=why):
        await restored(target, backup)
    await assert_nothing_is_left(target)


async def refused(target, name: str, content: bytes, why: str) -> None:
    """A backup with this member in it is, and leaves nothing."""
    out = io.BytesIO()
    with written_by_hand(out) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive._tar.addfile(member, io.BytesIO(content))
        archive.end([])
    await assert_refused(target, out.getvalue(), why)


@pytest.mark.parametrize(
    ("table", "line", "why"),
    [("files", a_file(), "files are missing in it"), ("audit_log", AN_ENTRY, "do not fit together")],
)
async def test_a_backup_that_is_not_whole_in_itself_is_refused(new_config, table, line, why) -> None:
    target, out = new_config(), io.BytesIO()
    with written_by_hand(out) as archive:
        archive.add_rows(table, [line])
        archive.end([])
    await assert_refused(target, out.getvalue(), why)


async def test_a_backup_that_was_ended_too_early_by_whoever_made_it_is_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    with written_by_hand(out) as archive:
        archive.add_rows("usage_batches", [b'{"id": "a", "booked_at": 1}\n'])
    await assert_refused(target, out.getvalue(), "its end is missing")


async def test_a_link_in_a_backup_is_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    with written_by_hand(out) as archive:
        member = tarfile.TarInfo("files/file-1")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive._tar.addfile(member)
        archive.end([])
    await assert_refused(target, out.getvalue(), "something else than files")


@pytest.mark.parametrize("change", [{"revision": "9999"}, {"format": FORMAT + 1}, {"revision": "base"}])
async def test_a_backup_of_a_newer_version_is_refused(new_config, change) -> None:
    out = io.BytesIO()
    with written_by_hand(out, version="9.9", **change) as archive:
        archive.end([])
    with pytest.raises(BackupError, match=r"^the backup is of version 9\.9 .*install that version"):
        await restored(new_config(), out.getvalue())
