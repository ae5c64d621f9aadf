"""From claims to a caller: users, tenants, groups, roles and scopes."""

import pytest

from appliance.plugin import Forbidden, convert
from appliance_auth.oauth.claims import CallerMapping, TokenRefused, value_at
from appliance_auth.oauth.settings import IssuerSettings

ISSUER = "https://idp.example.org"


def caller(token, /, **settings):
    made = convert({"issuer": ISSUER, "audience": "rag-api", **settings}, IssuerSettings, "")
    return CallerMapping(made).principal({"sub": "alice", **token})


PATHS = [
    ("groups", {"groups": 1}, 1),
    ("realm_access.roles", {"realm_access": {"roles": 1}}, 1),
    ("https://example.org/roles", {"https://example.org/roles": 1}, 1),
    ("a.b", {"a.b": 1, "a": {"b": 2}}, 1),
    (("a", "b"), {"a.b": 1, "a": {"b": 2}}, 2),
    (("https://example.org/app", "roles"), {"https://example.org/app": {"roles": 1}}, 1),
    ("a.b.c", {"a": {"b": {"c": 0}}}, 0),
    ("a.b", {"a": "b"}, None),
    ("a.b", {"a": ["b"]}, None),
    ("a.b", {"a": None}, None),
    ("", {"": 1}, 1),
    ((), {"a": 1}, None),
]


@pytest.mark.parametrize(("path", "claims", "found"), PATHS, ids=range(len(PATHS)))
def test_a_path_leads_to_a_claim(path, claims, found):
    assert value_at(claims, path) == found


def test_O_14_A9_nobody_is_told_apart_by_email_or_name():
    first = caller({"email": "a@example.org", "name": "A", "preferred_username": "a"})
    second = caller({"sub": "bob", "email": "a@example.org", "name": "A", "preferred_username": "a"})
    assert first.id != second.id
    assert caller({"email": "new@example.org"}) == caller({})


def test_the_user_may_be_another_claim():
    assert caller({"oid": "42"}, claims={"user": "oid"}).id == f"user:{ISSUER}|42"


def test_who_lacks_the_claim_for_the_user_does_not_become_the_client():
    with pytest.raises(TokenRefused):
        caller({"client_id": "app"}, claims={"user": "oid"})


@pytest.mark.parametrize("value", [5, "", [], {"a": 1}, True, "x" * 256, "a\nb", "a\x00", "\x1b[31m", "a\u2028b"])
def test_a_user_that_could_not_stand_in_a_log_line_is_refused(value):
    with pytest.raises(TokenRefused):
        caller({"sub": value})


GROUPS = [
    (None, ()),
    ("one", ("one",)),
    (["b", "a", "b"], ("b", "a")),
    ([], ()),
]


@pytest.mark.parametrize(("value", "groups"), GROUPS, ids=range(len(GROUPS)))
def test_groups_are_a_text_or_a_list_of_them(value, groups):
    assert caller({"groups": value}).groups == groups


@pytest.mark.parametrize("name", ["groups", "roles", "scope"])
@pytest.mark.parametrize("value", [5, True, {"a": "b"}, [1], ["a", None], [["a"]], 1.5])
def test_A7_a_list_of_anything_else_refuses_the_token(name, value):
    with pytest.raises(TokenRefused):
        caller({name: value})


def test_roles_come_only_by_the_map_and_by_default():
    assert caller({"roles": ["admin", "user"]}, default_roles=[]).roles == ()
    mapped = caller({"roles": ["Ops", "admin", "Ops"]}, role_map={"Ops": "operator"}, default_roles=["user"])
    assert mapped.roles == ("user", "operator")


def test_scopes_are_those_we_know_by_our_name_or_by_the_map():
    assert caller({"scope": "openid inference profile"}).scopes == {"inference"}
    mapped = caller({"scope": "rag:chat files"}, scope_map={"rag:chat": "inference"})
    assert mapped.scopes == {"inference", "files"}


def test_everything_is_no_scope_that_an_issuer_can_give_by_that_name():
    assert caller({"scope": "* inference"}).scopes == {"inference"}
    assert caller({"scope": "all"}, scope_map={"all": "*"}).scopes == {"*"}


def test_a_token_without_scopes_may_do_nothing_unless_scopes_are_not_used_at_all():
    assert caller({}).scopes == frozenset()
    assert caller({"scope": "inference"}, claims={"scopes": ""}).scopes is None


TENANT = {"claims": {"tenant": "org"}}


def test_a_tenant_is_a_claim_or_the_one_of_the_issuer():
    assert caller({"org": "acme"}).tenant == "default"
    assert caller({"org": "acme"}, tenant="team-a").tenant == "team-a"
    assert caller({"org": "acme"}, **TENANT).tenant == "acme"
    assert caller({}, **TENANT).tenant == "default"


def test_with_a_tenant_map_only_its_tenants_are_served():
    settings = TENANT | {"tenant_map": {"72f988bf": "acme"}}
    assert caller({"org": "72f988bf"}, **settings).tenant == "acme"
    for other in ("acme", "default", "x"):
        with pytest.raises(Forbidden):
            caller({"org": other}, **settings)


@pytest.mark.parametrize("value", ["../x", "a b", "-", ".", "ä", "x" * 65, "a/b", "A'"])
def test_a_tenant_that_is_no_name_is_not_served(value):
    with pytest.raises(Forbidden):
        caller({"org": value}, **TENANT)


@pytest.mark.parametrize("value", [5, [], ["acme"], {}, True, ""])
def test_A7_a_tenant_of_another_type_refuses_the_token(value):
    with pytest.raises(TokenRefused):
        caller({"org": value}, **TENANT)
