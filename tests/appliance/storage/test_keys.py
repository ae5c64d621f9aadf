import math

import pytest
import sqlalchemy as sa
from sqlalchemy import text as statement

from appliance.errors import Conflict, NotFound
from appliance.storage.keys import KeyStore


@pytest.fixture
def store(database):
    return KeyStore(database)


async def test_a_key_is_found_by_its_id_and_kept_as_a_digest_only(store, database, tmp_path):
    made, text = await store.create(name="alice", tenant="team-a", scopes=["files"], models=["m"], expires_in=60)
    assert await store.find(made.id) == made
    assert (made.tenant, made.scopes, made.models) == ("team-a", ("files",), ("m",))
    assert made.expires_at == made.created_at + 60
    assert made.digest == store.digest_of(text)
    secret = text.rpartition("-")[2]
    async with database.session(write=False) as session:
        kept = (await session.execute(statement("SELECT * FROM api_keys"))).all()
    assert made.digest in str(kept)
    assert secret not in str(kept)
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_keys_are_unlike_each_other_and_carry_190_bits(store):
    texts = [(await store.create(name="k"))[1] for _ in range(20)]
    assert len(set(texts)) == 20
    for text in texts:
        assert text.startswith("sk-app-")
        assert len(text.rpartition("-")[2]) == 32
        assert store.key_id_of(text) == text.split("-")[2]


@pytest.mark.parametrize(
    "text", ["", "sk-app-", "sk-app-a-b", "sk-" + "a" * 40, "sk-app-abcdefghijkl-" + "a" * 31 + "ü", "x\n"]
)
def test_other_texts_have_no_key_id(text):
    assert KeyStore.key_id_of(text) is None


def test_a_key_with_a_line_end_is_no_key():
    assert KeyStore.key_id_of("sk-app-abcdefghijkl-" + "a" * 32) == "abcdefghijkl"
    assert KeyStore.key_id_of("sk-app-abcdefghijkl-" + "a" * 32 + "\n") is None


async def test_revoking_is_for_good_and_may_be_repeated(store):
    made, _ = await store.create(name="alice")
    first = await store.revoke(made.id)
    assert first.revoked_at is not None
    assert (await store.revoke(made.id)) == first
    assert not first.valid_at(0)
    with pytest.raises(NotFound, match="keys list"):
        await store.revoke("nobody")


async def test_the_list_holds_all_keys_and_the_version_tells_changes(store):
    assert await store.list() == []
    versions = [await store.version()]
    made, _ = await store.create(name="one")
    versions.append(await store.version())
    await store.create(name="two")
    versions.append(await store.version())
    await store.revoke(made.id)
    versions.append(await store.version())
    other, _ = await store.create(name="three")
    for _ in range(2):
        await store.rotate(other.id)
        versions.append(await store.version())
    assert len(set(versions)) == 6
    assert {key.name for key in await store.list()} == {"one", "two", "three"}


async def test_ids_that_look_like_sql_find_nothing(store):
    made, _ = await store.create(name="one")
    for odd in ("' OR 1=1 --", f"{made.id}' --", "%", "_" * 12):
        assert await store.find(odd) is None


async def test_a_rotation_keeps_the_key_and_changes_its_secret(store):
    made, old = await store.create(name="alice", user="alice", roles=["admin"], expires_in=1000)
    rotated, new = await store.rotate(made.id, overlap=60)
    assert await store.find(made.id) == rotated
    assert (rotated.id, rotated.user, rotated.roles, rotated.expires_at) == (
        made.id,
        "alice",
        ("admin",),
        made.expires_at,
    )
    assert store.key_id_of(new) == made.id
    assert new != old
    assert rotated.good_until(store.digest_of(new)) == made.expires_at
    assert rotated.good_until(store.digest_of(old)) == rotated.previous_until == rotated.rotated_at + 60
    kept = repr(rotated)
    assert not any(text.rpartition("-")[2] in kept for text in (old, new))


async def test_the_old_secret_never_outlives_the_end_that_it_had(store):
    made, old = await store.create(name="alice", expires_in=60)
    rotated, new = await store.rotate(made.id, overlap=86_400, expires_in=1000)
    assert rotated.good_until(store.digest_of(old)) == made.expires_at
    assert rotated.good_until(store.digest_of(new)) == rotated.expires_at == rotated.rotated_at + 1000


async def test_at_most_two_secrets_work(store):
    made, first = await store.create(name="alice")
    _, second = await store.rotate(made.id)
    rotated, third = await store.rotate(made.id)
    ends = [rotated.good_until(store.digest_of(text)) for text in (first, second, third)]
    assert ends == [0, rotated.previous_until, math.inf]


async def test_only_a_valid_key_can_be_rotated(store):
    revoked, _ = await store.create(name="revoked")
    await store.revoke(revoked.id)
    expired, _ = await store.create(name="expired", expires_in=-1)
    for key in (revoked, expired):
        with pytest.raises(Conflict, match="keys create"):
            await store.rotate(key.id)
    with pytest.raises(NotFound, match="keys list"):
        await store.rotate("nobody")


async def test_no_other_digest_is_good_for_a_key(store):
    made, text = await store.create(name="alice")
    assert made.good_until(store.digest_of(text)) == math.inf
    for digest in ("", store.digest_of(text + "x"), store.digest_of(text)[:-1], "0" * 64):
        assert made.good_until(digest) == 0  # "" is not the previous secret that there is none of


def test_keys_of_the_first_schema_keep_what_their_scopes_allowed(tmp_path):
    from alembic import command

    from appliance.storage.migrations.run import settings, upgrade

    engine = sa.create_engine(f"sqlite:///{tmp_path / 'appliance.db'}")
    old = {
        "all": ["*"], "ops": ["admin"], "scraper": ["metrics"], "both": ["inference", "files"], "chat": ["inference"],
        "many": ["inference", "files", "metrics"], "none": [],
    }  # fmt: skip
    with engine.begin() as connection:
        command.upgrade(settings(connection), "0001")
        table = sa.Table("api_keys", sa.MetaData(), autoload_with=connection)
        for name, scopes in old.items():
            row = {"id": name, "name": name, "tenant": "default", "digest": name, "scopes": scopes, "created_at": 1}
            connection.execute(table.insert().values(**row))
        upgrade(connection)
        table = sa.Table("api_keys", sa.MetaData(), autoload_with=connection)
        found = {row.id: (row.roles, row.scopes, row.rotations) for row in connection.execute(table.select())}
        command.downgrade(settings(connection), "0001")
        table = sa.Table("api_keys", sa.MetaData(), autoload_with=connection)
        kept = {row.id: row.scopes for row in connection.execute(table.select())}
    engine.dispose()
    assert kept == old
    assert {name: roles for name, (roles, _, _) in found.items()} == {
        "all": ["admin"], "ops": ["operator"], "scraper": ["operator"], "both": ["knowledge-manager", "user"],
        "chat": ["user"], "many": ["knowledge-manager", "operator", "user"], "none": ["user"],
    }  # fmt: skip
    assert all((scopes, rotations) == (old[name], 0) for name, (_, scopes, rotations) in found.items())
