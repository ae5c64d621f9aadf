import json
import time

import pytest
from click.testing import CliRunner
from eventually import eventually

from appliance.plugin import ConfigError, Forbidden, KeyStore, Principal, Unauthenticated, convert
from appliance.storage.database import Database
from appliance.testing.contracts.authenticator import AuthenticatorContract
from appliance_auth import api_keys
from appliance_auth.api_keys import ApiKeys, ApiKeysSettings, KeyScopes, Plugin


@pytest.fixture
async def store(tmp_path):
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}")
    await database.start()
    yield KeyStore(database)
    await database.stop()


@pytest.fixture
async def key(store):
    return (await store.create(name="alice", tenant="team-a", scopes=["inference"], models=["m"]))[1]


@pytest.fixture
async def authenticator(store, key):
    keys = ApiKeys(store, refresh=0)
    await keys.refresh()
    return keys


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


class TestApiKeysKeepTheContract(AuthenticatorContract):
    @pytest.fixture
    def good_headers(self, key):
        return bearer(key)

    @pytest.fixture
    async def bad_headers(self, store, key):
        revoked, revoked_text = await store.create(name="revoked")
        await store.revoke(revoked.id)
        _, expired = await store.create(name="expired", expires_in=-1)
        unknown = "sk-app-" + "a" * 12 + "-" + "b" * 32
        almost = key[:-1] + ("a" if key[-1] != "a" else "b")
        texts = [revoked_text, expired, unknown, almost, "sk-app-", "sk-app-x", key + "x", key.upper()[:0] + key + " x"]
        return [*map(bearer, texts), {"api-key": revoked_text}, {"x-api-key": almost}, bearer("sk-app-" + "x" * 10_000)]


async def test_a_key_means_the_same_in_every_header(authenticator, key):
    headers = [bearer(key), {"authorization": f"bearer  {key} "}, {"api-key": key}, {"x-api-key": key}]
    callers = {(await authenticator.authenticate(each)).id for each in headers}
    assert len(callers) == 1


async def test_a_foreign_bearer_token_beside_a_key_of_ours_does_not_hide_it(authenticator, key):
    caller = await authenticator.authenticate({**bearer("e30.e30.e30"), "x-api-key": key})
    assert caller.tenant == "team-a"


async def test_the_caller_has_the_keys_tenant_scopes_and_models(authenticator, key):
    caller = await authenticator.authenticate(bearer(key))
    assert caller.id == f"key:{KeyStore.key_id_of(key)}"
    assert (caller.tenant, caller.scopes, caller.models) == ("team-a", frozenset({"inference"}), frozenset({"m"}))


async def test_it_guards_nothing_until_the_first_key_and_then_for_ever(store):
    keys = ApiKeys(store, refresh=0)
    await keys.refresh()
    assert not keys.enabled
    made, _ = await store.create(name="first")
    await keys.refresh()
    assert keys.enabled
    await store.revoke(made.id)
    await keys.refresh()
    assert keys.enabled


async def test_a_running_server_notices_the_first_key(store, tmp_path):
    plugin = Plugin()
    settings = ApiKeysSettings(refresh=0.0)
    context = type("Context", (), {"database": store._database})()
    (keys,) = plugin.appliance_authenticators(settings, context)
    async with plugin.appliance_lifespan(settings, context):
        assert not keys.enabled
        await store.create(name="first")
        await eventually(lambda: keys.enabled)


async def test_a_revoked_key_is_refused_at_once_with_refresh_zero(authenticator, store, key):
    await authenticator.authenticate(bearer(key))
    await store.revoke(KeyStore.key_id_of(key))
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(bearer(key))


async def test_a_revoked_key_is_refused_within_the_refresh_time(store, key):
    keys = ApiKeys(store, refresh=0.3)
    await keys.authenticate(bearer(key))
    await store.revoke(KeyStore.key_id_of(key))
    revoked = time.monotonic()

    async def refused() -> bool:
        try:
            return not await keys.authenticate(bearer(key))
        except Unauthenticated:
            return True

    await eventually(refused)
    assert time.monotonic() - revoked < 2


def test_the_refresh_time_is_five_seconds_at_most():
    assert convert({"refresh": 5}, ApiKeysSettings, "").refresh == 5
    with pytest.raises(Exception, match="refresh"):
        convert({"refresh": 5.5}, ApiKeysSettings, "plugin.api_keys")


async def test_a_remembered_key_still_expires(store, monkeypatch):
    _, text = await store.create(name="short", expires_in=60)
    keys = ApiKeys(store)
    assert await keys.authenticate(bearer(text))
    later = time.time() + 61
    monkeypatch.setattr(api_keys.time, "time", lambda: later)
    with pytest.raises(Unauthenticated):
        await keys.authenticate(bearer(text))


async def test_a_remembered_key_needs_no_database(store, key):
    keys = ApiKeys(store, refresh=5)
    caller = await keys.authenticate(bearer(key))
    await store._database.stop()
    assert await keys.authenticate(bearer(key)) is caller


async def test_memory_of_keys_is_bounded(store, monkeypatch):
    monkeypatch.setattr(api_keys, "_REMEMBERED", 3)
    keys = ApiKeys(store, refresh=5)
    texts = [(await store.create(name="k"))[1] for _ in range(8)]
    for text in texts:
        assert await keys.authenticate(bearer(text))
        assert len(keys._known) <= 3


async def test_a_remembered_key_is_cheap(store, key):
    keys = ApiKeys(store, refresh=5)
    headers = bearer(key)
    await keys.authenticate(headers)
    begun = time.process_time()
    for _ in range(10_000):
        await keys.authenticate(headers)
    assert (time.process_time() - begun) / 10_000 < 50e-6


@pytest.mark.parametrize(
    ("scopes", "action", "allowed"),
    [
        ({"inference"}, "models.use", True),
        ({"inference"}, "models.read", True),
        ({"files"}, "models.read", True),
        ({"files"}, "models.use", False),
        ({"files"}, "files.write", True),
        ({"files"}, "vector_stores.read", True),
        ({"inference"}, "files.read", False),
        ({"metrics"}, "metrics.read", True),
        ({"inference", "files"}, "admin", False),
        ({"inference", "files"}, "anything.new", False),
        ({"admin"}, "anything.new", True),
        (set(), "docs.read", True),
        (set(), "models.use", False),
        ({"*"}, "anything.new", True),
    ],
)
async def test_scopes_decide_what_a_key_may_do(scopes, action, allowed):
    caller = Principal(id="key:abc", scopes=frozenset(scopes))
    if allowed:
        await KeyScopes().authorize(caller, action, "m")
    else:
        with pytest.raises(Forbidden, match="scope"):
            await KeyScopes().authorize(caller, action, "m")


async def test_models_decide_what_a_caller_may_ask():
    caller = Principal(id="key:abc", scopes=frozenset({"*"}), models=frozenset({"small"}))
    await KeyScopes().authorize(caller, "models.use", "small")
    with pytest.raises(Forbidden, match="large"):
        await KeyScopes().authorize(caller, "models.use", "large")


async def test_callers_of_other_authenticators_need_no_key_scopes():
    await KeyScopes().authorize(Principal(id="user:alice"), "files.write", "")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "appliance.yaml"
    path.write_text("plugins: [api_keys]\n")
    return path


def run(config, *arguments: str, code: int = 0):
    result = CliRunner().invoke(api_keys.keys, [*arguments, "--config", str(config)])
    assert result.exit_code == code, result.output
    return result


def test_keys_are_made_listed_and_revoked_on_the_command_line(config):
    made = json.loads(run(config, "create", "--name", "alice", "--model", "m", "--expires", "30d", "--json").stdout)
    assert made["scopes"] == ["inference", "files"]
    assert made["models"] == ["m"]
    assert made["expires_at"] - made["created_at"] == 30 * 86_400
    assert KeyStore.key_id_of(made["key"]) == made["id"]
    admin = run(config, "create", "--tenant", "team-a", "--admin")
    assert KeyStore.key_id_of(admin.stdout.strip())
    assert "not shown again" in admin.stderr
    run(config, "revoke", made["id"])
    listed = {key["name"]: key for key in json.loads(run(config, "list", "--json").stdout)}
    assert listed["unnamed"]["scopes"] == ["*"]
    assert listed["alice"]["revoked_at"] is not None
    table = run(config, "list").stdout
    assert "revoked" in table
    assert made["key"] not in table
    assert "digest" not in json.dumps(listed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "nobody"], "keys list"),
        (["create", "--name", "a", "--expires", "soon"], "30d"),
        (["create", "--name", "a", "--scope", "everything"], "inference"),
        (["revoke"], "ID"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_with_the_fix(config, arguments, said):
    result = CliRunner().invoke(api_keys.keys, [*arguments, "--config", str(config)])
    assert result.exit_code != 0
    assert said in f"{result.output}{result.exception}"  # `appliance` prints our own errors
    assert "Traceback" not in result.output


def test_a_missing_configuration_is_named(tmp_path):
    result = CliRunner().invoke(api_keys.keys, ["list", "--config", str(tmp_path / "none.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "none.yaml does not exist" in str(result.exception)


@pytest.mark.parametrize("command", [[], ["create"], ["list"], ["revoke"]])
def test_every_help_has_examples(command):
    assert "appliance keys" in CliRunner().invoke(api_keys.keys, [*command, "--help"]).output
