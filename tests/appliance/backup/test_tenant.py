"""One tenant's backup: nothing of others in it, and nothing of others touched by it."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from backup_kit import (
    backed_up,
    config_at,
    opened,
    restored,
    rows_of,
    written_by_hand,
)
from backup_rows import fill_every_table
from eventually import until
from knowledge_kit import all_indexed, stack

from appliance.backup import BackupError
from appliance.storage.audit_check import verify
from appliance.storage.database import Database


async def two_tenants(folder: Path) -> tuple[bytes, str, str]:
    """A backup of tenant ``a`` where ``b`` is too, and the stores of both."""
    async with stack(folder) as made:
        stores = {}
        for tenant in ("a", "b"):
            stores[tenant] = await made.make_store(tenant)
            file_id = await made.upload(f"the zebrafinch of {tenant}", f"{tenant}.txt", tenant)
            await made.attach(stores[tenant], file_id, tenant)
            await made.settled(stores[tenant], file_id)
        data, _ = await backed_up(made.config, tenant="a")
    return data, stores["a"], stores["b"]


async def test_a_tenants_backup_holds_nothing_of_others(tmp_path) -> None:
    data, of_a, of_b = await two_tenants(tmp_path / "x")
    plain = opened(data)
    assert of_a.encode() in plain
    assert b"zebrafinch of a" in plain
    assert of_b.encode() not in plain
    assert b"zebrafinch of b" not in plain
    assert b"audit_log" not in plain
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert "secret" not in tar.getnames()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_tenant_is_restored_beside_others(new_config, tmp_path, kind) -> None:
    data, of_a, _ = await two_tenants(tmp_path / "x")
    target = new_config(kind)
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    found = await restored(target, data)
    after = await rows_of(target.database_url)
    assert (found.tenant, found.files, found.indexing) == ("a", 1, 1)
    assert [store["id"] for store in after["vector_stores"] if store["tenant"] == "a"] == [of_a]
    for name in ("vector_stores", "vector_store_files", "files", "jobs", "reindexes", "api_keys"):
        assert [row for row in after[name] if row["tenant"] != "a"] == before[name], name
    async with Database(target.database_url) as database, database.session(write=False) as session:
        assert (await verify(session)).broken_at is None
    with pytest.raises(BackupError, match=r"tenant a has rows in .* already"):
        await restored(target, data)
    assert await rows_of(target.database_url) == after
    assert len(list(target.data_path.glob("files/??/*"))) == 3


async def test_a_tenant_is_restored_alone(new_config, tmp_path) -> None:
    data, of_a, _ = await two_tenants(tmp_path / "x")
    await restored(config_at(tmp_path / "y"), data)
    async with stack(tmp_path / "y") as again:
        await until(lambda: all_indexed(again), 20)
        found = await again.knowledge.search(_query(of_a), _scope("a"))
    assert [passage.text for passage in found.passages] == ["the zebrafinch of a"]


def _query(store_id: str):
    from appliance.types import Search

    return Search(store_ids=(store_id,), queries=("zebrafinch",))


def _scope(tenant: str):
    from appliance.types import Scope

    return Scope(tenant)


async def test_a_tenant_that_has_nothing_has_no_backup(new_config) -> None:
    source = new_config()
    await fill_every_table(source)
    with pytest.raises(BackupError, match="--tenant: acme has nothing to back up"):
        await backed_up(source, tenant="acme")


async def test_rows_of_another_tenant_in_a_tenants_backup_are_refused(new_config) -> None:
    target, out = new_config(), io.BytesIO()
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    row = {"id": "kx", "tenant": "b", "name": "a", "digest": "x", "roles": ["admin"], "scopes": [], "created_at": 1,
           "rotations": 0}  # fmt: skip
    with written_by_hand(out, tenant="a") as archive:
        archive.add_rows("api_keys", [json.dumps(row).encode() + b"\n"])
        archive.end([])
    with pytest.raises(BackupError, match="not its tenant's"):
        await restored(target, out.getvalue())
    assert await rows_of(target.database_url) == before


@pytest.mark.parametrize(
    ("table", "made_up", "why"),
    [
        ("audit_log", {"seq": 1_000}, "no tenant has a part of audit_log"),
        ("jobs", {"id": 42}, "no tenant has a part of jobs"),
        ("file_batches", {"id": "vsfb_2"}, "belong to another tenant's vector_stores"),
        ("file_readers", {"reader": "user:mallory"}, "belong to another tenant's vector_store_files"),
        ("upload_parts", {"id": "file-1"}, "the bytes of file-1 are there already"),
    ],
)
async def test_B3_a_tenants_backup_that_somebody_made_up_reaches_nothing_of_others(
    new_config, tmp_path, table, made_up, why
) -> None:
    """Whoever knows the public key can make one, with rows of their own tenant that name what others have."""
    target, out = new_config(), io.BytesIO()
    await fill_every_table(target)
    before = await rows_of(target.database_url)
    row = before[table][0] | {"tenant": "a"} | made_up
    with written_by_hand(out, tenant="a") as archive:
        archive.add_rows(table, [json.dumps(row).encode() + b"\n"])
        if table == "upload_parts":
            (tmp_path / "x").write_bytes(b"not theirs")
            with (tmp_path / "x").open("rb") as file:
                archive.add_file("file-1", file)
        archive.end([])
    with pytest.raises(BackupError, match=why):
        await restored(target, out.getvalue())
    assert await rows_of(target.database_url) == before
    assert {path.name: path.read_bytes() for path in target.data_path.glob("files/??/*")} == {
        "file-1": b"abc",
        "part_1": b"abc",
    }
