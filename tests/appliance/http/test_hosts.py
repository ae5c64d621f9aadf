"""Who may call while nobody is asked for a key: no page from elsewhere on the web (G7)."""

import pytest
from inline import Everything, provides
from loopback import assert_openai_error, box

from appliance.plugin import Principal

FOREIGN = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost"]
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


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://evil.example:8000", "http://localhost@evil.example"]
)
async def test_g7_a_foreign_page_cannot_change_anything_while_there_is_no_key(tmp_path, method, origin):
    async with box(tmp_path) as served:
        response = await served.client.request(method, "/v1/chat/completions", headers={"origin": origin})
    assert assert_openai_error(response, 403)["code"] == "origin_not_allowed"
    assert "www-authenticate" not in response.headers


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8000", "https://chat.example.org"])
async def test_local_pages_and_configured_origins_may_call(tmp_path, origin):
    async with box(tmp_path, config={"server": {"cors_origins": ["https://chat.example.org"]}}) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        response = await served.client.post("/v1/chat/completions", json=body, headers={"origin": origin})
    assert response.status_code == 200


async def test_with_a_key_any_host_name_is_served(tmp_path):
    async with box(tmp_path, keys=provides(authenticators=[OneKey()], authorizers=[Everything()])) as served:
        headers = {"host": "evil.example", "origin": "http://evil.example"}
        assert (await served.client.get("/v1/models", headers=headers)).status_code == 200
