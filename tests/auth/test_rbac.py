"""The plugin ``rbac``: roles grant, scopes limit, everything else is refused."""

from __future__ import annotations

import itertools
import time

import pytest

from appliance.permissions import PERMISSIONS, ROLES, SCOPES, expand
from appliance.plugin import ANONYMOUS, ConfigError, Forbidden, Principal
from appliance.testing import make_app
from appliance.testing.contracts.authorizer import AuthorizerContract
from appliance_auth.rbac import Rbac


def caller(*roles: str, scopes: set[str] | None = None, **fields) -> Principal:
    return Principal(id="key:abc", roles=roles, scopes=None if scopes is None else frozenset(scopes), **fields)


async def _allows(rbac: Rbac, principal: Principal, action: str, resource: str) -> bool:
    try:
        await rbac.authorize(principal, action, resource)
    except Forbidden:
        return False
    return True


async def allowed(principal: Principal, action: str, resource: str = "", roles=None) -> bool:
    return await _allows(Rbac(roles or {}), principal, action, resource)


class TestRbacKeepsTheContract(AuthorizerContract):
    @pytest.fixture
    def authorizer(self):
        return Rbac({"support": ("models.use", "stores.search")})

    @pytest.fixture
    def permitted(self):
        return [
            (caller("user"), "models.use", "m"),
            (caller("nobody", "support"), "models.use", "m"),
            (caller("admin", scopes={"files"}), "files.write", "/v1/files"),
            (caller("user", models=frozenset({"m"})), "models.use", "m"),
        ]

    @pytest.fixture
    def refused(self):
        return [
            (caller(), "models.read", "/v1/models"),
            (caller("support"), "files.read", "/v1/files"),
            (caller("nobody"), "models.use", "m"),
            (caller("admin", scopes={"inference"}), "files.write", "/v1/files"),
            (caller("user", scopes={"*"}), "files.write", "/v1/files"),
            (caller("user", models=frozenset({"m"})), "models.use", "other"),
        ]


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_grants_exactly_its_permissions(role):
    granted = {action for action in PERMISSIONS if await allowed(caller(role), action)}
    assert granted == expand(ROLES[role])


@pytest.mark.parametrize(("role", "scope"), list(itertools.product(ROLES, SCOPES)))
async def test_with_a_scope_only_what_role_and_scope_share_is_left(role, scope):
    granted = {action for action in PERMISSIONS if await allowed(caller(role, scopes={scope}), action)}
    assert granted == expand(ROLES[role]) & expand(SCOPES[scope])


async def test_roles_and_scopes_add_up_among_themselves():
    both = caller("user", "auditor", scopes={"files", "admin"})
    granted = {action for action in PERMISSIONS if await allowed(both, action)}
    roles = expand(ROLES["user"]) | expand(ROLES["auditor"])
    assert granted == roles & (expand(SCOPES["files"]) | expand(SCOPES["admin"]))


async def test_foreign_scopes_cover_nothing_and_take_nothing():
    assert not await allowed(caller("admin", scopes={"openid", "profile"}), "models.use", "m")
    assert await allowed(caller("admin", scopes={"openid", "inference"}), "models.use", "m")
    assert not await allowed(caller("admin", scopes=set()), "models.read")


async def test_a_role_of_the_configuration_grants_its_families():
    roles = {"curator": ("files.*", "stores.write")}
    assert await allowed(caller("curator"), "files.read", roles=roles)
    assert not await allowed(caller("curator"), "stores.read", roles=roles)


async def test_even_admins_may_do_nothing_that_has_no_name():
    assert not await allowed(caller("admin", scopes={"*"}), "anything.new")


async def test_only_the_server_s_own_nobody_is_let_in_unasked():
    assert await allowed(ANONYMOUS, "files.write")
    assert not await allowed(Principal(id="anonymous"), "files.write")


async def test_a_refusal_names_the_scope_only_where_one_would_do():
    with pytest.raises(Forbidden, match=r"none of your roles grants files.write") as caught:
        await Rbac({}).authorize(caller("user", scopes={"inference"}), "files.write", "")
    assert caught.value.scope is None
    for action in PERMISSIONS:
        with pytest.raises(Forbidden, match="scope") as caught:
            await Rbac({}).authorize(caller("admin", scopes=set()), action, "")
        assert caught.value.scope in SCOPES
        assert action in expand(SCOPES[caught.value.scope])
        assert caught.value.scope != "*"


async def test_a_decision_is_cheap():
    rbac, principal = Rbac({}), caller("user", scopes={"inference", "files"})
    await rbac.authorize(principal, "models.use", "m")
    begun = time.process_time()
    for _ in range(20_000):
        await rbac.authorize(principal, "models.use", "m")
    assert (time.process_time() - begun) / 20_000 < 20e-6  # many times what it takes: others use this machine too


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"a": ["files.raed"]}, r"auth.roles.a\[0\]: no permission is named files.raed; did you mean files.read"),
        ({"a": ["models.use", "strs.*"]}, r"auth.roles.a\[1\]: .*did you mean stores.\*"),
        ({"a": ["nonsense"]}, r"auth.roles.a\[0\]: .*docs/access.md"),
        ({"a": [""]}, r"auth.roles.a\[0\]"),
        ({"admin": []}, "auth.roles.admin: is a built-in role"),
        ({"": ["models.use"]}, "auth.roles: '' is no name"),
        ({"a\nb": ["models.use"]}, "auth.roles: 'a.*b' is no name"),
        ({"a": "models.use"}, "auth.roles"),
    ],
)
def test_mistakes_in_the_policy_are_named_with_their_place(tmp_path, roles, said):
    with pytest.raises(ConfigError, match=said):
        make_app({"plugins": ["rbac"], "auth": {"roles": roles}}, folder=tmp_path)


async def test_explanations_agree_with_decisions_and_name_every_role_and_scope():
    rbac = Rbac({"support": ("models.use",)})
    principals = [
        caller(*roles, scopes=scopes, models=models)
        for roles in ((), ("user",), ("support", "nobody"), ("auditor", "admin"))
        for scopes in (None, set(), {"inference"}, {"files", "foreign"})
        for models in (None, frozenset({"m"}))
    ]
    for principal, action in itertools.product(principals, PERMISSIONS):
        for resource in ("m", "other"):
            reasons = rbac.explain(principal, action, resource)
            roles_ok = any(r.ok for r in reasons if "role" in r.text)
            scopes_ok = any(r.ok for r in reasons if "scope" in r.text)
            models_ok = all(r.ok for r in reasons if "models are" in r.text)
            verdict = await _allows(rbac, principal, action, resource)
            assert (roles_ok and scopes_ok and models_ok) == verdict, (principal, action, reasons)
            for name in (*principal.roles, *(principal.scopes or ())):
                assert any(name in r.text for r in reasons)
