"""``WWW-Authenticate`` for each error (RFC 6750, RFC 9728)."""

import pytest

from appliance.config import AuthConfig
from appliance.errors import (
    BadRequest,
    Forbidden,
    InvalidCredentials,
    NotFound,
    RateLimited,
    RequestError,
    Unauthenticated,
    Unavailable,
)
from appliance.http.challenges import challenge, metadata_url

PLAIN = AuthConfig()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unauthenticated("who?"), 'Bearer realm="appliance"'),
        (Unauthenticated("bad", challenge="invalid_token"), 'Bearer realm="appliance", error="invalid_token"'),
        (InvalidCredentials("two"), 'Bearer realm="appliance", error="invalid_request"'),
        (Forbidden("no role"), 'Bearer realm="appliance", error="insufficient_scope"'),
        (Forbidden("no page of ours", code="origin_not_allowed"), None),
        (Forbidden("scope", scope="files"), 'Bearer realm="appliance", error="insufficient_scope", scope="files"'),
        (BadRequest("bad"), None),
        (NotFound("gone"), None),
        (RateLimited("slow"), None),
        (Unavailable("down"), None),
        (RequestError("oops"), None),
    ],
    ids=range(11),
)
def test_A1_A2_A3_each_error_has_its_challenge_or_none(error, told):
    assert challenge(error, PLAIN) == told


@pytest.mark.parametrize(
    ("resource", "url"),
    [
        ("https://a.example", "https://a.example/.well-known/oauth-protected-resource"),
        ("https://a.example/", "https://a.example/.well-known/oauth-protected-resource"),
        ("https://a.example:8443/v1", "https://a.example:8443/.well-known/oauth-protected-resource/v1"),
        ("https://a.example/x/v1/", "https://a.example/.well-known/oauth-protected-resource/x/v1"),
    ],
)
def test_A14_the_metadata_is_between_host_and_path(resource, url):
    assert metadata_url(resource) == url
    told = challenge(Unauthenticated("who?"), AuthConfig(resource=resource))
    assert told == f'Bearer realm="appliance", resource_metadata="{url}"'


def test_a_realm_cannot_break_out_of_its_quotes():
    told = challenge(Unauthenticated("who?"), AuthConfig(realm='x", error="\r\ninvalid_token\\'))
    assert told.startswith('Bearer realm="x\\", error=\\"')
    assert "\n" not in told
