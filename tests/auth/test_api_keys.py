import asyncio
import contextlib
import hashlib
import hmac
import itertools
import json
import math
import time

import pytest
from click.testing import CliRunner
from eventually import eventually
from statements import noted

from appliance.plugin import Allowance, ConfigError, Conflict, KeyStore, Unauthenticated, Unavailable, convert
from appliance.storage.database import Database
from appliance.testing.contracts.authenticator import AuthenticatorContract
from appliance_auth import api_keys
from appliance_auth.api_keys import ApiKeys, ApiKeysSettings, Plugin


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


async def test_the_caller_has_what_the_key_was_made_with(authenticator, store):
    allowance = Allowance(requests_per_minute=60, spend_per_day=1.5)
    made, text = await store.create(
        name="bot", tenant="team-a", user="alice", roles=["knowledge-manager", "ours"], scopes=["inference", "files"],
        models=["m"], stores=["handbook"], allowance=allowance,
    )  # fmt: skip
    caller = await authenticator.authenticate(bearer(text))
    assert (caller.id, caller.key, caller.user, caller.tenant) == (f"key:{made.id}", made.id, "alice", "team-a")
    assert (caller.roles, caller.scopes) == (("knowledge-manager", "ours"), frozenset({"inference", "files"}))
    assert (caller.models, caller.stores) == (frozenset({"m"}), frozenset({"handbook"}))
    assert caller.allowance == allowance


async def test_a_key_that_says_nothing_has_the_role_user_and_no_other_limit(authenticator, store):
    caller = await authenticator.authenticate(bearer((await store.create(name="plain"))[1]))
    assert (caller.roles, caller.scopes) == (("user",), frozenset({"*"}))
    assert (caller.models, caller.stores, caller.allowance, caller.user) == (None, None, None, None)


async def test_after_a_rotation_both_secrets_are_the_same_caller_until_the_overlap_ends(store, monkeypatch):
    keys = ApiKeys(store, refresh=0)
    made, old = await store.create(name="alice")
    before = await keys.authenticate(bearer(old))
    _, new = await store.rotate(made.id, overlap=60)
    assert await keys.authenticate(bearer(old)) == await keys.authenticate(bearer(new)) == before
    later = time.time() + 61
    monkeypatch.setattr(api_keys.time, "time", lambda: later)
    with pytest.raises(Unauthenticated):
        await keys.authenticate(bearer(old))
    assert await keys.authenticate(bearer(new)) == before


async def test_a_rotation_without_overlap_ends_the_old_secret_at_once(store):
    keys = ApiKeys(store, refresh=0)
    made, old = await store.create(name="alice")
    assert await keys.authenticate(bearer(old))
    await store.rotate(made.id, overlap=0)
    with pytest.raises(Unauthenticated):
        await keys.authenticate(bearer(old))


async def test_revoking_ends_both_secrets(store):
    keys = ApiKeys(store, refresh=0)
    made, old = await store.create(name="alice")
    _, new = await store.rotate(made.id)
    await store.revoke(made.id)
    for text in (old, new):
        with pytest.raises(Unauthenticated):
            await keys.authenticate(bearer(text))


async def test_A15_no_call_that_begins_after_the_revocation_gets_through(store):
    """Many callers at once, so that looks at the database are shared and overtake each other."""
    keys = ApiKeys(store, refresh=0)
    made, text = await store.create(name="alice")
    revoked_at = math.inf

    async def call() -> tuple[float, bool]:
        began = time.monotonic()
        try:
            return began, await keys.authenticate(bearer(text)) is not None
        except Unauthenticated:
            return began, False

    async def many() -> list[tuple[float, bool]]:
        found = [await call()]
        while revoked_at == math.inf:
            found.append(await call())
        return [*found, await call()]

    async def revoke() -> None:
        nonlocal revoked_at
        assert (await call())[1]
        await store.revoke(made.id)
        revoked_at = time.monotonic()

    results = await asyncio.gather(revoke(), *(many() for _ in range(20)))
    calls = [each for found in results[1:] for each in found]
    assert any(passed for _, passed in calls)
    late = [passed for began, passed in calls if began > revoked_at]
    assert len(late) >= 20  # one of each at least
    assert not any(late)


async def test_A15_looking_up_compares_digests_in_constant_time(store, monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    keys = ApiKeys(store, refresh=0)
    made, text = await store.create(name="alice")
    _, new = await store.rotate(made.id)
    for each in (text, new, text[:-1] + ("a" if text[-1] != "a" else "b")):
        compared.clear()
        with contextlib.suppress(Unauthenticated):
            await keys.authenticate(bearer(each))
        assert len(compared) == 2  # with both secrets, whichever fits


async def test_A15_what_is_refused_takes_the_same_steps_whatever_is_wrong_with_it(store, monkeypatch):
    """A known id, a secret that begins well, a revoked key: nothing of it shows in what is looked up and compared."""
    steps: list[str] = []
    compare, hashed = hmac.compare_digest, hashlib.sha256
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: steps.append("compare") or compare(a, b))
    monkeypatch.setattr(hashlib, "sha256", lambda data: steps.append(f"hash {len(data)}") or hashed(data))
    _, text = await store.create(name="alice")
    revoked, revoked_text = await store.create(name="bob")
    await store.revoke(revoked.id)
    front, secret = text.rpartition("-")[::2]
    wrong = {f"{same} letters right": f"{front}-{secret[:same]}{other_letters(secret[same:])}" for same in (0, 1, 31)}
    wrong |= {"unknown id": f"sk-app-{'0' * 12}-{secret}", "revoked": revoked_text}
    keys = ApiKeys(store)
    await keys.refresh()
    taken = {}
    with noted(store._database, steps.append, when=lambda: True):  # here is nothing but what the test calls
        for name, sent in wrong.items():
            steps.clear()
            with pytest.raises(Unauthenticated):
                await keys.authenticate(bearer(sent))
            taken[name] = list(steps)
        assert len(set(map(tuple, taken.values()))) == 1, taken
        assert [step for step in taken["unknown id"] if step == "compare"] == ["compare"] * 2
        steps.clear()
        assert await keys.authenticate(bearer(text))
        assert steps == taken["unknown id"], "and a good one no others"


def other_letters(text: str) -> str:
    """As long, and different in each place."""
    return "".join("a" if letter != "a" else "b" for letter in text)


async def test_a_database_out_of_reach_is_503_for_everybody_and_heals(store):
    keys = ApiKeys(store, refresh=0)
    _, text = await store.create(name="alice")
    assert await keys.authenticate(bearer(text))
    await store._database.stop()
    answers = await asyncio.gather(*(keys.authenticate(bearer(text)) for _ in range(10)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}
    await store._database.start()
    assert await keys.authenticate(bearer(text))


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

    async def refused() -> bool:
        try:
            return not await keys.authenticate(bearer(key))
        except Unauthenticated:
            return True

    await eventually(refused, 2)


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


MODELS = """
models: [{name: m, engine: scripted}, {name: docs, engine: scripted}, {name: alias, alias_of: m}]
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "appliance.yaml"
    path.write_text(f"{MODELS}plugins: [api_keys]\nauth: {{tenants: {{small: {{models: [m]}}}}}}\n")
    return path


def run(config, *arguments: str, code: int = 0):
    result = CliRunner().invoke(api_keys.keys, [*arguments, "--config", str(config)])
    assert result.exit_code == code, result.output
    return result


def test_keys_are_made_listed_and_revoked_on_the_command_line(config):
    made = json.loads(run(config, "create", "--name", "alice", "--model", "m", "--expires", "30d", "--json").stdout)
    assert (made["roles"], made["scopes"]) == (["user"], ["*"])
    assert made["models"] == ["m"]
    assert made["expires_at"] - made["created_at"] == 30 * 86_400
    assert KeyStore.key_id_of(made["key"]) == made["id"]
    admin = run(config, "create", "--tenant", "team-a", "--admin")
    assert KeyStore.key_id_of(admin.stdout.strip())
    assert "not shown again" in admin.stderr
    run(config, "revoke", made["id"])
    listed = {key["name"]: key for key in json.loads(run(config, "list", "--json").stdout)}
    assert (listed["unnamed"]["roles"], listed["unnamed"]["tenant"]) == (["admin"], "team-a")
    assert listed["alice"]["revoked_at"] is not None
    table = run(config, "list").stdout
    assert "revoked" in table
    assert made["key"] not in table
    assert "digest" not in json.dumps(listed)


def test_everything_that_a_key_can_have_can_be_said_on_the_command_line(config):
    config.write_text(f"{MODELS}plugins: [api_keys, rbac]\nauth: {{roles: {{support: [models.use]}}}}\n")
    made = json.loads(
        run(
            config, "create", "--name", "crm", "--user", "alice", "--tenant", "team-a", "--role", "support", "--role",
            "auditor", "--scope", "inference", "--model", "docs", "--store", "handbook", "--expires", "90d",
            "--max-concurrent", "2", "--requests-per-minute", "60", "--requests-per-day", "1000", "--tokens-per-minute",
            "5000", "--tokens-per-day", "100000", "--spend-per-day", "1.5", "--spend-per-month", "20", "--json",
        ).stdout
    )  # fmt: skip
    assert made["allowance"] == {
        "max_concurrent": 2, "requests_per_minute": 60, "requests_per_day": 1000, "tokens_per_minute": 5000,
        "tokens_per_day": 100_000, "spend_per_day": 1.5, "spend_per_month": 20.0,
    }  # fmt: skip
    wanted = {"user": "alice", "tenant": "team-a", "roles": ["support", "auditor"], "scopes": ["inference"],
              "models": ["docs"], "stores": ["handbook"]}  # fmt: skip
    assert {name: made[name] for name in wanted} == wanted
    (listed,) = json.loads(run(config, "list", "--json").stdout)
    assert listed == {name: value for name, value in made.items() if name != "key"}


def test_the_list_shows_whose_a_key_is_and_what_it_is_narrowed_to_in_a_terminal_of_100(config):
    run(config, "create", "--admin")
    run(
        config, "create", "--name", "crm", "--user", "alice@example.org", "--scope", "inference", "--model", "docs",
        "--store", "handbook", "--requests-per-minute", "60", "--max-concurrent", "2", "--tokens-per-day", "5000000",
        "--spend-per-month", "12.5", "--expires", "90d",
    )  # fmt: skip
    run(config, "create", "--name", "n" * 255, "--user", "u" * 255)
    lines = run(config, "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "NAME", "HOLDER", "TENANT", "ROLES", "STATE"]
    assert max(map(len, lines)) <= 100
    admin = next(line.split() for line in lines if " admin " in line)
    assert admin[1:] == ["unnamed", "-", "default", "admin", "valid"]
    (at,) = [i for i, line in enumerate(lines) if " crm " in line]
    assert lines[at].split()[1:6] == ["crm", "alice@example.org", "default", "user", "until"]
    below = itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :])
    assert " ".join(" ".join(below).split()) == (
        "scopes: inference; models: docs; stores: handbook; limits: 2 requests at once, 60 requests a minute, "
        "5000000 tokens a day, 12.5 of spending a month"
    )


def test_a_key_is_rotated_on_the_command_line(config):
    made = json.loads(run(config, "create", "--expires", "1h", "--json").stdout)
    rotated = run(config, "rotate", made["id"], "--overlap", "24h", "--expires", "30d")
    assert KeyStore.key_id_of(rotated.stdout.strip()) == made["id"]
    assert rotated.stdout.strip() != made["key"]
    assert "The secret until now works until" in rotated.stderr
    (listed,) = json.loads(run(config, "list", "--json").stdout)
    assert listed["previous_until"] == made["expires_at"]  # not longer than it would have
    assert listed["expires_at"] > made["expires_at"] + 28 * 86_400
    assert "digest" not in json.dumps(listed)
    assert json.loads(run(config, "rotate", made["id"], "--overlap", "0s", "--json").stdout)["previous_until"] is None
    run(config, "revoke", made["id"])
    refused = CliRunner().invoke(api_keys.keys, ["rotate", made["id"], "--config", str(config)])
    assert isinstance(refused.exception, Conflict)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rotate", "nobody"], "keys list"),
        (["rotate", "x", "--overlap", "soon"], "30d"),
        (["create", "--role", "usr"], "did you mean user?"),
        (["create", "--role", "boss"], "auth.roles"),
        (["create", "--model", "nope"], "no model nope for tenant default; add it under models"),
        (["create", "--model", "m", "--model", "doc"], "did you mean docs? (configured: m, docs, alias)"),
        (["create", "--model", "docs", "--tenant", "small"], "(configured: m)"),
        (["create", "--requests-per-minute", "0"], "--requests-per-minute"),
        (["create", "--expires", "0s"], "30d"),
        (["create", "--name", "a\nb"], "printable"),
        (["create", "--name", "a" * 256], "255"),
        (["create", "--user", ""], "printable"),
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


@pytest.mark.parametrize("command", [[], ["create"], ["list"], ["rotate"], ["revoke"]])
def test_every_help_has_examples(command):
    assert "appliance keys" in CliRunner().invoke(api_keys.keys, [*command, "--help"]).output
