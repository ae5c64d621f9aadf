import pytest
from sqlalchemy import text as statement

from appliance.errors import NotFound
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
    assert len(set(versions)) == 4
    assert {key.name for key in await store.list()} == {"one", "two"}


async def test_ids_that_look_like_sql_find_nothing(store):
    made, _ = await store.create(name="one")
    for odd in ("' OR 1=1 --", f"{made.id}' --", "%", "_" * 12):
        assert await store.find(odd) is None
