"""Discovery: whose metadata is believed, and what of it is called (A12)."""

import pytest
from oauth_kit import bearer, issuing, trusting

from appliance.plugin import Unavailable


@pytest.fixture
async def issuer():
    async with issuing() as made:
        yield made


async def served(issuer, **settings) -> bool:
    async with trusting(issuer.settings(**settings)) as tokens:
        try:
            return bool(await tokens.authenticate(bearer(issuer.token())))
        except Unavailable:
            return False


async def test_openid_metadata_leads_to_the_keys(issuer):
    assert await served(issuer)
    assert issuer.requests["/.well-known/openid-configuration"] == 1


async def test_oauth_metadata_will_do(issuer):
    document = issuer.answers.pop("/.well-known/openid-configuration")
    issuer.answers["/.well-known/oauth-authorization-server"] = document
    assert await served(issuer)


@pytest.mark.parametrize("tenant", ["/realms/x", "/tenant/v2.0"])
async def test_an_issuer_with_a_path_has_its_metadata_where_the_standards_say(issuer, tenant):
    origin, issuer.url = issuer.url, issuer.url + tenant
    issuer.answers.clear()
    issuer.publish(issuer.key)
    issuer.metadata(jwks_uri=f"{origin}/jwks")
    document = issuer.answers.pop("/.well-known/openid-configuration")
    for path in (f"{tenant}/.well-known/openid-configuration", f"/.well-known/oauth-authorization-server{tenant}"):
        issuer.answers[path] = document
        assert await served(issuer)
        del issuer.answers[path]


async def test_keys_can_be_named_without_any_metadata(issuer):
    del issuer.answers["/.well-known/openid-configuration"]
    assert await served(issuer, jwks_uri=f"{issuer.url}/jwks")


@pytest.mark.parametrize("change", ["{}/", "{}/x", "https://evil.example", "", "{}#"])
async def test_A12_metadata_that_names_another_issuer_is_not_used(issuer, change):
    issuer.metadata(issuer=change.format(issuer.url))
    assert not await served(issuer)
    assert issuer.requests["/jwks"] == 0


async def test_A12_metadata_without_an_issuer_or_with_odd_types_is_not_used(issuer):
    for name, value in [("issuer", None), ("issuer", [issuer.url]), ("jwks_uri", 5), ("jwks_uri", None)]:
        issuer.metadata(**{name: value})
        assert not await served(issuer)
    assert issuer.requests["/jwks"] == 0


EVIL = [
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/jwks",
    "http://localhost:{port}/jwks",
    "http://user@127.0.0.1:{port}/jwks",
    "http://127.0.0.1:{port}\\@evil.example/jwks",
    "http://[::1]:{port}/jwks",
    "http://[::ffff:127.0.0.1]:{port}/jwks",
    "http://2130706433:{port}/jwks",
    "http://0x7f.1:{port}/jwks",
    "http://127.1:{port}/jwks",
    "http://017700000001:{port}/jwks",
    "https://evil.example/jwks",
    "https://10.0.0.1/jwks",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/jwks",
    "//127.0.0.1/jwks",
    "/jwks",
    "",
]


@pytest.mark.parametrize("address", EVIL)
async def test_A12_metadata_that_points_elsewhere_is_not_followed(issuer, address):
    issuer.metadata(jwks_uri=address.format(port=issuer.url.rpartition(":")[2]))
    assert not await served(issuer)
    assert issuer.requests["/jwks"] == issuer.requests["/latest/meta-data/"] == 0


async def test_A12_a_redirect_is_not_followed(issuer):
    issuer.answers["/elsewhere"] = issuer.answers["/jwks"]
    issuer.answers["/jwks"] = (302, f"{issuer.url}/elsewhere".encode())
    assert not await served(issuer)
    assert issuer.requests["/elsewhere"] == 0


async def test_A12_a_further_host_is_called_once_the_configuration_names_it(issuer):
    issuer.metadata(jwks_uri=issuer.url.replace("127.0.0.1", "localhost") + "/jwks")
    assert not await served(issuer)
    assert await served(issuer, allowed_hosts=["localhost"])


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff", b"{" * 30_000, b"{" + b" " * 70_000 + b"}"])
async def test_A12_metadata_that_cannot_be_read_is_an_outage_not_an_error(issuer, body):
    issuer.answers["/.well-known/openid-configuration"] = body
    assert not await served(issuer)


async def test_the_environments_proxy_is_not_used(issuer, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert await served(issuer)
