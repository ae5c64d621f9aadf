"""Who gets through which route: every operation of the router, asked over HTTP with a key of each role and scope.

tests/auth/golden/routes.json is the answer that was agreed on. A change of it is a change of policy; write it anew with

    REWRITE_GOLDEN=1 python -m pytest tests/auth/test_route_matrix.py
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import httpx
import pytest
from guarded import guarded_app, make_keys, operations
from loopback import served_in_thread

from appliance.http.routes import TABLE
from appliance.permissions import PERMISSIONS, ROLES, SCOPES, expand

GOLDEN = Path(__file__).parent / "golden" / "routes.json"
CORE = list((Path(__file__).resolve().parents[2] / "appliance").rglob("*.py"))
HEADERS = ("authorization", "api-key", "x-api-key")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return guarded_app(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def keys(app):
    return make_keys(app)


@pytest.fixture(scope="module")
def client(app, keys):
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def gets_through(client, operation, key: str | None, header: str = "authorization") -> bool:
    sent = {} if key is None else {header: f"Bearer {key}" if header == "authorization" else key}
    reply = client.request(**operation.request, headers={"origin": "http://localhost", **sent})
    assert reply.status_code < 500 or reply.status_code in (501, 503), (operation, reply.text)
    return reply.status_code not in (401, 403)


def matrix(client, app, keys, header: str = "authorization") -> dict[str, dict[str, object]]:
    def row(operation) -> dict[str, object]:
        through = [who for who in keys if gets_through(client, operation, keys[who], header)]
        return {
            "permission": operation.permission,
            "without a key": gets_through(client, operation, None),
            "roles": [role for role in ROLES if role in through],
            "scopes": [scope for scope in SCOPES if f"scope {scope}" in through],
        }

    return {operation.name: row(operation) for operation in operations(app)}


def golden() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS)
def test_B1_A16_routes_by_roles_and_scopes_are_the_agreed_ones_whichever_header_carries_the_key(
    app, client, keys, header
):
    found = matrix(client, app, keys, header)
    if os.environ.get("REWRITE_GOLDEN"):
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == golden()


def test_B1_the_agreed_matrix_is_what_roles_and_scopes_say_of_each_permission():
    for name, row in golden().items():
        needed = row["permission"]
        assert row["without a key"] == (needed == "public"), name
        # Who is let in by another permission gets no further than its objects, and here there are none.
        known = ({needed}, {needed, ALSO[name]}) if name in ALSO else ({needed},)
        assert row["roles"] in [granted(ROLES, any_of) for any_of in known], name
        assert row["scopes"] in [granted(SCOPES, any_of) for any_of in known], name


ALSO = {f"{entry.method} {entry.path}": entry.also for entry in TABLE if entry.also}


def granted(bundles, any_of: set[str]) -> list[str]:
    """The roles or scopes that grant one of these permissions; for what is public all of them."""
    return [name for name, patterns in bundles.items() if "public" in any_of or expand(patterns) & any_of]


def test_B1_every_operation_of_the_router_is_in_the_matrix_with_a_known_permission(app):
    assert {operation.name for operation in operations(app)} == set(golden())
    assert len(golden()) > 50
    assert any(row["permission"] == "metrics.read" for row in golden().values())  # a plugin's route
    assert {row["permission"] for row in golden().values()} <= {*PERMISSIONS, "public"}


def test_B1_every_permission_is_asked_for_by_a_route_or_on_its_way():
    on_the_way = {"logprobs.read", "scores.read", "access.manage", "stores.search"}
    asked = {row["permission"] for row in golden().values()} | on_the_way
    assert PERMISSIONS.keys() - asked == {"admin"}  # for routes of plugins
    for permission in on_the_way:
        assert any(f'"{permission}"' in path.read_text() for path in CORE if path.name != "permissions.py"), permission


def test_O15_nothing_is_public_but_the_probes_and_what_leads_to_a_sign_in():
    public = {name.partition(" ")[2] for name, row in golden().items() if row["permission"] == "public"}
    assert public == {
        "/livez", "/readyz", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/v1",
        "/auth/login", "/auth/callback", "/auth/logout", "/auth/backchannel-logout", "/auth/cli",
    }  # fmt: skip


METADATA = "http://localhost/.well-known/oauth-protected-resource/v1"


def challenge_of(reply: httpx.Response) -> dict[str, str]:
    """The parameters of the one challenge, and nothing but them (RFC 9110 section 11.6.1)."""
    (header,) = reply.headers.get_list("www-authenticate")
    scheme, _, rest = header.partition(" ")
    parameters = re.findall(r'(\w+)="([^"\\]*)"', rest)
    assert ", ".join(f'{name}="{value}"' for name, value in parameters) == rest
    assert scheme == "Bearer"
    return dict(parameters)


def test_A1_every_route_without_a_credential_is_401_with_a_challenge_that_names_no_error(app, client):
    for operation in operations(app):
        if operation.public:
            continue
        reply = client.request(**operation.request)
        assert reply.status_code == 401, operation
        assert challenge_of(reply) == {"realm": "appliance", "resource_metadata": METADATA}, operation
        if operation.method != "HEAD":
            assert reply.json()["error"]["code"] == "invalid_api_key"


def test_A3_a_refused_key_is_403_with_a_challenge_and_the_scope_that_is_missing(app, client, keys):
    for operation in operations(app):
        if operation.public or operation.permission in expand(SCOPES["metrics"]):
            continue
        reply = client.request(**operation.request, headers={"x-api-key": keys["scope metrics"]})
        assert reply.status_code == 403, operation
        told = challenge_of(reply)
        assert (told["error"], told["resource_metadata"]) == ("insufficient_scope", METADATA)
        assert operation.permission in expand(SCOPES[told["scope"]])


def test_head_is_answered_like_get_and_without_a_body(app, client, keys):
    for operation in operations(app):
        if operation.method == "HEAD":
            headers = {"x-api-key": keys["admin"]}
            head, get = (client.request(method, operation.path, headers=headers) for method in ("HEAD", "GET"))
            assert head.status_code == get.status_code, operation
            assert head.content == b""
    assert client.head("/livez").status_code == 200
