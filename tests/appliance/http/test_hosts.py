"""Who may call while nobody is asked for a key: no page from elsewhere on the web (G7)."""

import json
from contextlib import asynccontextmanager

import pytest
from inline import Everything, provides
from loopback import assert_openai_error, box, raw_answer

from appliance.plugin import Principal

FOREIGN = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost"]
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
OURS = ["localhost", "LOCALHOST:8000", "localhost.", "app.localhost", "127.0.0.1:1", "[::1]:8000", "10.1.2.3", "box"]


class OneKey:
    enabled = True

    async def authenticate(self, headers):
        return Principal(id="alice")


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("DELETE", "/v1/files/f")]
)
async def test_g7_a_rebound_host_name_is_refused_while_there_is_no_key(tmp_path, host, method, path):
    async with box(tmp_path) as served:
        response = await served.client.request(method, path, headers={"host": host})
    error = assert_openai_error(response, 403)
    assert error["code"] == "host_not_allowed"
    assert "server.allowed_hosts" in error["message"]
    assert "www-authenticate" not in response.headers  # no credential would help


@pytest.mark.parametrize("host", OURS)
async def test_localhost_addresses_and_allowed_hosts_are_served(tmp_path, host):
    async with box(tmp_path, config={"server": {"allowed_hosts": ["Box"]}}) as served:
        assert (await served.client.get("/v1/models", headers={"host": host})).status_code == 200


FOREIGN_PAGES = [
    "http://evil.example", "null", "http://evil.example:8000", "http://localhost@evil.example",
    "http://203.0.113.9", "http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]", "file://",
]  # fmt: skip
"""Also those of addresses and of other programs on this machine: who serves them is not known."""


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize("origin", FOREIGN_PAGES)
async def test_g7_a_foreign_page_cannot_change_anything_while_there_is_no_key(tmp_path, method, origin):
    async with box(tmp_path, config={"server": {"allowed_hosts": ["*"]}}) as served:
        response = await served.client.request(method, "/v1/chat/completions", headers={"origin": origin})
    assert assert_openai_error(response, 403)["code"] == "origin_not_allowed"
    assert "www-authenticate" not in response.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_g7_a_browser_that_says_the_page_is_foreign_is_believed(tmp_path, site):
    async with box(tmp_path) as served:
        own = {"origin": served.url, "sec-fetch-site": site}
        for headers in (own, {"sec-fetch-site": site}):
            response = await served.client.post("/v1/chat/completions", headers=headers)
            assert assert_openai_error(response, 403)["code"] == "origin_not_allowed"


async def test_own_pages_and_configured_origins_may_call(tmp_path):
    async with box(tmp_path, config={"server": {"cors_origins": ["https://chat.example.org"]}}) as served:
        behind_a_proxy = {"origin": "http://localhost:3000", "sec-fetch-site": "same-origin"}
        chat = {"origin": "https://chat.example.org", "sec-fetch-site": "cross-site"}
        for headers in ({"origin": served.url}, behind_a_proxy, {"sec-fetch-site": "none"}, chat):
            response = await served.post("/v1/chat/completions", BODY, headers)
            assert response.status_code == 200, headers


async def test_with_a_key_any_host_name_is_served_unless_hosts_are_enforced(tmp_path):
    async with box(tmp_path, keys=provides(authenticators=[OneKey()], authorizers=[Everything()])) as served:
        headers = {"host": "evil.example", "origin": "http://evil.example"}
        assert (await served.client.get("/v1/models", headers=headers)).status_code == 200


NOT_LITERALLY = [
    "exampleXcom", "example.com.evil.net", "evil-example.com", "sub.example.com", "example.co", "xample.com",
    "example.com@evil.net", "example.com evil.net", "example.com/evil.net", "example.com#", "example.com\\evil.net",
    "[example.com]", "example%2ecom", "", ":443", "example.com:evil",
]  # fmt: skip
REFUSED = [(403, "host_not_allowed"), (400, "invalid_request")]
"""The second by the parser, which knows characters that no host has."""
ROUTES = [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/livez"), ("GET", "/openapi.json")]
ENFORCED = {"server": {"allowed_hosts": ["Example.com"], "enforce_allowed_hosts": True}}
FORWARDED = "x-forwarded-host: example.com\r\nforwarded: host=example.com\r\n"


@asynccontextmanager
async def enforcing(folder):
    """With keys, and behind a proxy that is trusted."""
    config = {"server": ENFORCED["server"] | {"trusted_proxies": ["127.0.0.1"]}}
    plugins = {"keys": provides(authenticators=[OneKey()], authorizers=[Everything()])}
    async with box(folder, config=config, **plugins) as served:
        yield served


async def told(served, method, path, head):
    """Status and code of a request with this head, written as it is."""
    request = f"{method} {path} HTTP/1.1\r\n{head}content-length: 0\r\n\r\n"
    status, _, body = await raw_answer(served.url, request.encode())
    return status, json.loads(body).get("error", {}).get("code")


async def test_A18_enforced_hosts_are_compared_letter_by_letter_also_with_a_key(tmp_path):
    async with enforcing(tmp_path) as served:
        for method, path in ROUTES:
            for host in ("example.com", "EXAMPLE.com:8443", "example.com.", "localhost", "127.0.0.1:1"):
                assert (await told(served, method, path, f"host: {host}\r\n"))[1] != "host_not_allowed", (path, host)
            for host in NOT_LITERALLY:
                assert await told(served, method, path, f"host: {host}\r\n") in REFUSED, (path, host)


async def test_A18_only_host_says_which_host_is_meant(tmp_path):
    async with enforcing(tmp_path) as served:
        for method, path in ROUTES:
            assert await told(served, method, path, FORWARDED) == (400, "missing_host")
            foreign = await told(served, method, path, f"host: evil.net\r\n{FORWARDED}")
            assert foreign == (403, "host_not_allowed")
            for twice in ("host: example.com\r\nhost: evil.net\r\n", "host: evil.net\r\nHost: example.com\r\n"):
                assert await told(served, method, path, twice) == (400, "repeated_header")


async def test_A18_a_host_that_is_refused_never_gets_to_the_question_who_calls(tmp_path):
    asked = []

    class Asked(OneKey):
        async def authenticate(self, headers):
            asked.append(headers["host"])
            return await super().authenticate(headers)

    plugins = {"keys": provides(authenticators=[Asked()], authorizers=[Everything()])}
    async with box(tmp_path, config=ENFORCED, **plugins) as served:
        for host in ("evil.net", "example.com"):
            await served.client.get("/v1/models", headers={"host": host})
    assert asked == ["example.com"]
