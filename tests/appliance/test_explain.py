"""``appliance check --explain SUBJECT ACTION OBJECT``: the answer of the authorizers and the database, and why."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import yaml
from loopback import http_client

from appliance.cli import main as cli
from appliance.config import load
from appliance.plugin import KeyStore
from appliance.storage import files, store_files, stores
from appliance.storage.database import Database
from appliance.testing import make_app
from appliance.testing.scripted import ScriptedPlugin
from appliance.types import Access

CONFIG = {
    "plugins": ["scripted", "api_keys", "rbac"],
    "models": [{"name": name, "engine": "scripted"} for name in ("small", "large")],
    "auth": {"roles": {"support": ["models.use", "stores.search"]}, "tenants": {"team-a": {"models": ["small"]}}},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "appliance.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture
def ask(config, monkeypatch, capsys):
    """``ask(subject, action, object, *options)``: exit code, standard output and standard error."""

    def run(*question: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["appliance", "check", "--config", str(config), "--explain", *question])
        with pytest.raises(SystemExit) as done:
            cli.main()
        out, err = capsys.readouterr()
        return done.value.code, out, err

    return run


@pytest.fixture
def in_database(config):
    """Runs an async function on the configuration's database."""

    def run(work):
        async def inside():
            async with Database(load(config).database_url) as database:
                return await work(database)

        return asyncio.run(inside())

    return run


@pytest.fixture
def store_id(in_database):
    """The store ``handbook`` of team-a."""

    async def work(database):
        async with database.tenant("team-a") as session:
            row = stores.new("handbook", embedder=None)
            session.add(row)
            return row.id

    return in_database(work)


def make_key(in_database, **fields):
    return in_database(lambda database: KeyStore(database).create(name="k", **fields))[0]


@pytest.mark.parametrize(
    ("question", "allowed", "said"),
    [
        (("role:user", "models.use", "small"), True, "+ the role user grants models.use"),
        (("role:user", "files.write", "-"), False, "- the role user does not grant files.write"),
        (("role:user,scope:files", "models.use", "small"), False, "- the scope files does not cover models.use"),
        (("role:user,scope:files,scope:inference", "models.use", "small"), True, "+ the scope inference covers"),
        (("role:support", "stores.search", "-"), True, "+ the role support grants stores.search"),
        (("role:boss", "models.use", "small"), False, "- the role boss is not defined"),
        (("role:user,scope:openid", "models.use", "small"), False, "- the scope openid is not one of"),
        (("tenant:team-a", "models.read", "-"), False, "- the caller has no role"),
        (("role:user,model:large", "models.use", "small"), False, "- the caller's models are large"),
        (("role:user", "models.use", "nosuch"), False, "- 'nosuch' is not there for the tenant default"),
        (("role:user,tenant:team-a", "models.use", "large"), False, "- 'large' is not there for the tenant team-a"),
        (("role:user,tenant:team-a", "models.use", "small"), True, "+ 'small' is there for the tenant team-a"),
        (("role:admin", "files.read", "file-x"), False, "- 'file-x' is not there for the tenant default"),
        (
            ("role:admin", "stores.search", "file-x"),
            False,
            "tenant default, for it is no vector store; ask for files.read",
        ),
    ],
)
def test_it_says_yes_or_no_and_why(ask, question, allowed, said):
    code, out, err = ask(*question)
    assert (code, err) == (0 if allowed else 1, "")
    assert out.startswith("yes: " if allowed else "no: ")
    assert said in out


def test_a_vector_store_is_there_for_its_tenant_and_for_those_who_may_reach_it(ask, store_id):
    for name in ("handbook", store_id):
        assert ask("role:user,tenant:team-a", "stores.search", name)[0] == 0
        assert ask("role:user", "stores.search", name)[0] == 1
        assert ask("role:user,tenant:team-a,store:handbook", "stores.search", name)[0] == 0
        code, out, _ = ask("role:admin,tenant:team-a,store:other", "stores.search", name)
        assert code == 1
        assert "is not there for the tenant team-a and the stores other" in out


def test_what_a_tenant_may_not_reach_its_callers_may_not_either(ask, config, in_database, store_id):
    config.write_text(yaml.safe_dump({**CONFIG, "auth": {"tenants": {"team-a": {"stores": ["other"]}}}}))
    key = make_key(in_database, tenant="team-a", roles=["admin"])
    for subject in ("role:admin,tenant:team-a", f"key:{key.id}"):
        code, out, _ = ask(subject, "stores.search", "handbook")
        assert code == 1
        assert "is not there for the tenant team-a and the stores other" in out


def test_a_document_is_there_for_its_readers_and_for_who_manages_access(ask, in_database, store_id):
    async def work(database):
        async with database.tenant("team-a") as session:
            session.add(files.new("file-1", "a.txt", "assistants", size=1, sha256="0" * 64))
            await session.flush()
            access = Access(groups=("hr",))
            await store_files.attach(
                session, store_id, "file-1", attributes={}, chunk_size=800, chunk_overlap=400, access=access
            )

    in_database(work)
    for who, allowed in (("group:hr", True), ("group:it", False), ("role:knowledge-manager", True)):
        code, out, _ = ask(f"tenant:team-a,role:user,{who}", "files.read", "file-1")
        assert (code == 0) is allowed, out
        assert allowed or "is not there for the tenant team-a, or not for this caller" in out


def test_a_key_is_judged_by_what_it_was_made_with(ask, in_database, store_id):
    key = make_key(in_database, tenant="team-a", scopes=["inference"], models=["small"], stores=["handbook"])
    assert ask(f"key:{key.id}", "models.use", "small")[0] == 0
    assert ask(f"key:{key.id}", "models.use", "large")[0] == 1
    assert ask(f"key:{key.id}", "stores.search", store_id)[0] == 0
    assert ask(f"key:{key.id}", "stores.write", store_id)[0] == 1


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_key_that_is_no_longer_valid_may_do_nothing(ask, in_database, end):
    key = make_key(in_database, roles=["admin"], expires_in=-1 if end == "expired" else None)
    if end == "revoked":
        in_database(lambda database: KeyStore(database).revoke(key.id))
    code, out, _ = ask(f"key:{key.id}", "models.use", "small")
    assert code == 1
    assert end in out.splitlines()[0]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (("key:nosuch", "models.use", "small"), "keys list"),
        (("role:user", "models.uss", "small"), "did you mean models.use?"),
        (("role:user", "nonsense", "-"), "docs/access.md"),
        (("user", "models.use", "small"), "'user' is no part"),
        (("role:", "models.use", "small"), "'role:' is no part"),
        (("role:user,", "models.use", "small"), "'' is no part"),
        (("tenant:a,tenant:b", "models.use", "small"), "'tenant:b' is no part"),
        (("key:a,role:user", "models.use", "small"), "no key has the id"),
        (("role:user", "models.use"), "3 arguments"),
    ],
)
def test_a_question_that_cannot_be_understood_ends_with_2_and_the_fix(ask, question, said):
    code, out, err = ask(*question)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_programs_get_the_same_as_json(ask):
    code, out, _ = ask("role:user,scope:files", "stores.write", "-", "--json")
    answer = json.loads(out)
    assert (code, answer["allowed"], answer["action"], answer["object"]) == (1, False, "stores.write", "-")
    assert answer["why"].startswith("none of your roles grants stores.write")
    assert [reason["ok"] for reason in answer["reasons"]] == [False, True]
    assert answer["principal"]["scopes"] == ["files"]


def test_asking_leaves_no_denial_in_the_audit_log(ask, in_database):
    ask("role:user", "files.write", "-")

    async def count(database):
        from sqlalchemy import func, select

        from appliance.storage.tables.audit import AuditRow

        async with database.session(write=False) as session:
            return await session.scalar(select(func.count()).select_from(AuditRow))

    assert in_database(count) == 0


async def test_the_answers_are_those_that_requests_get(tmp_path):
    """The same questions to a running app, over HTTP: allowed is what is neither 401, 403 nor 404."""

    from appliance.explain import explain
    from appliance.runtime import build
    from appliance.testing import serving

    app = make_app({**CONFIG, "plugins": ["api_keys", "rbac"], "plugin": {"api_keys": {"refresh": 0}}},
                   {"scripted": ScriptedPlugin()}, folder=tmp_path)  # fmt: skip
    async with serving(app) as url, http_client(base_url=url) as client:
        keys = KeyStore(app.state.runtime.database)
        made = [
            await keys.create(name="k", roles=roles, scopes=scopes, tenant=tenant, models=models)
            for roles in (["user"], ["auditor"], ["support"], ["knowledge-manager"])
            for scopes in (["*"], ["files"], ["inference"])
            for tenant in ("default", "team-a")
            for models in (None, ["large"])
        ]
        ((_, authenticator),) = app.state.runtime.pipeline.authenticators
        await authenticator.refresh()  # until the first key is noticed everybody may do everything
        asked = []
        for stored, text in made:
            headers = {"authorization": f"Bearer {text}"}
            body = {"messages": [{"role": "user", "content": "hi"}]}
            for model in ("small", "large"):
                reply = await client.post("/v1/chat/completions", json={"model": model, **body}, headers=headers)
                asked.append(((f"key:{stored.id}", "models.use", model), reply))
            reply = await client.get("/v1/files", headers=headers)
            asked.append(((f"key:{stored.id}", "files.read", "-"), reply))
            reply = await client.post("/v1/vector_stores", json={}, headers=headers)
            asked.append(((f"key:{stored.id}", "stores.write", "-"), reply))
    assert {reply.status_code for _, reply in asked} >= {200, 403}
    runtime = build(app.state.runtime.config, extra_plugins={"scripted": ScriptedPlugin()}, in_process=True)
    for question, reply in asked:
        answer = await explain(runtime, *question)
        assert answer.allowed == (reply.status_code not in (401, 403, 404)), (question, reply.text, answer)
