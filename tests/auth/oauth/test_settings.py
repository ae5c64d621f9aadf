"""What ``plugin.oauth`` refuses at the start (O-12, O-14)."""

import pytest

from appliance.plugin import ConfigError
from appliance.testing import ScriptedPlugin, make_runtime
from appliance_auth.oauth.plugin import Plugin

GOOD = {"issuer": "https://idp.example.org", "audience": "rag-api"}


def started(*issuers, **auth):
    config = {
        "plugins": ["oauth", "rbac"],
        "models": [{"name": "m", "engine": "scripted"}],
        "auth": auth,
        "plugin": {"oauth": {"issuers": list(issuers)}},
    }
    return make_runtime(config, {"scripted": ScriptedPlugin()})


def test_a_good_configuration_starts_and_asks_nobody():
    assert [name for name, _ in started(GOOD).pipeline.authenticators] == ["oauth"]


REFUSED = {
    "no audience": ({"issuer": GOOD["issuer"]}, "audience"),
    "an empty audience": (GOOD | {"audience": ""}, "audience"),
    "an empty list of audiences": (GOOD | {"audience": []}, "audience"),
    "an empty audience in a list": (GOOD | {"audience": ["a", ""]}, "audience"),
    "an audience that is true": (GOOD | {"audience": True}, "audience"),
    "HS256": (GOOD | {"algorithms": ["RS256", "HS256"]}, "HS256"),
    "HS256 with a key set": (GOOD | {"algorithms": ["HS256"], "jwks_uri": "https://idp.example.org/jwks"}, "HS256"),
    "none": (GOOD | {"algorithms": ["none"]}, "none"),
    "an unknown algorithm": (GOOD | {"algorithms": ["RS1"]}, "RS1"),
    "no algorithm": (GOOD | {"algorithms": []}, "algorithms"),
    "a leeway over a minute": (GOOD | {"leeway": 61}, "leeway"),
    "plain http": (GOOD | {"issuer": "http://idp.example.org"}, "https"),
    "a key set by plain http": (GOOD | {"jwks_uri": "http://idp.example.org/jwks"}, "jwks_uri"),
    "no URL": (GOOD | {"issuer": "idp.example.org"}, "issuer"),
    "half a URL": (GOOD | {"issuer": "https://["}, "issuer"),
    "a URL in other letters": (GOOD | {"issuer": "https://idp.ex\u00e4mple.org"}, "issuer"),
    "a URL without a host": (GOOD | {"jwks_uri": "https:///jwks"}, "jwks_uri"),
    "a fragment": (GOOD | {"issuer": "https://idp.example.org/#x"}, "issuer"),
    "an unknown profile": (GOOD | {"profile": "ping"}, "profile"),
    "an unknown role by default": (GOOD | {"default_roles": ["boss"]}, "boss"),
    "an unknown role in the map": (GOOD | {"role_map": {"x": "boss"}}, "boss"),
    "an unknown scope in the map": (GOOD | {"scope_map": {"x": "chat"}}, "chat"),
    "a tenant that is no name": (GOOD | {"tenant": "Team A"}, "Team A"),
    "a tenant in the map that is no name": (GOOD | {"tenant_map": {"x": "../y"}}, "tenant_map"),
    "a misspelt key": (GOOD | {"audiense": "x"}, "audiense"),
    "an answer remembered for over a minute": (
        GOOD | {"introspection": {"client_id": "a", "client_secret": "b", "cache_seconds": 61}},
        "cache_seconds",
    ),
    "introspection by plain http": (
        GOOD | {"introspection": {"client_id": "a", "client_secret": "b", "endpoint": "http://idp.example.org/i"}},
        "introspection.endpoint",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_O_12_O_14_what_would_be_unsafe_is_refused_by_its_name(case):
    issuer, named = REFUSED[case]
    with pytest.raises(ConfigError, match=named) as caught:
        started(issuer)
    assert "\n" not in str(caught.value)
    assert "plugin.oauth.issuers[0]" in str(caught.value)


def test_no_issuer_at_all_is_refused():
    with pytest.raises(ConfigError, match=r"plugin\.oauth\.issuers"):
        started()


def test_one_issuer_twice_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        started(GOOD, GOOD | {"audience": "other"})


def test_roles_of_the_configuration_are_known():
    started(GOOD | {"default_roles": ["reader"]}, roles={"reader": ["files.read"]})


@pytest.mark.parametrize(
    "resource",
    [
        "http://ai.example.org",
        "ai.example.org",
        "https://ai.example.org/#x",
        "https://a?b",
        'https://a"b',
        "https://[",
        "",
    ],
)
def test_a_resource_that_is_no_plain_https_url_is_refused(resource):
    with pytest.raises(ConfigError, match=r"auth\.resource"):
        started(GOOD, resource=resource)


def test_plugins_of_two_apps_share_nothing():
    assert Plugin()._issuers is not Plugin()._issuers


async def test_a_file_of_authorities_that_is_none_stops_the_start(tmp_path):
    runtime = started(GOOD | {"ca_file": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=r"none\.pem"):
        await runtime.start()
