"""``plugin.login``: what could not work, or would be unsafe, stops the start with the setting's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import loopback
import pytest
from login_kit import settings

from appliance.plugin import ConfigError
from appliance.testing import make_app

ISSUER = {"issuer": "https://id.example", "audience": "https://appliance.example"}
GOOD = {"public_url": "https://appliance.example", "loopback_http": False}


def config(**login: Any) -> dict[str, Any]:
    return settings(ISSUER, ("web", "secret"), **GOOD | login)


@pytest.mark.parametrize(
    "login",
    [
        {},
        {"issuer": "https://id.example"},
        {"public_url": "http://127.0.0.1:8000", "loopback_http": True},
        {"public_url": "http://[::1]:8000", "loopback_http": True},
        {"client_secret": None},
        {"cli_client_id": None},
        {"client_id": "", "public_url": ""},
    ],
    ids=str,
)
def test_good_settings_start(login: dict[str, Any], tmp_path: Path) -> None:
    assert make_app(config(**login), folder=tmp_path)


@pytest.mark.parametrize(
    ("login", "told"),
    [
        ({"client_id": "", "cli_client_id": None}, "plugin.login: give client_id"),
        ({"issuer": "https://id.example/"}, r"plugin.login.issuer: .*\(https://id.example\)"),
        ({"public_url": ""}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "https://appliance.example/"}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "https://appliance.example/ui"}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "https://Appliance.example"}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "https://appliance.example:443"}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "appliance.example"}, "plugin.login.public_url: must be scheme and host"),
        ({"public_url": "http://127.0.0.1:8000"}, "plugin.login.public_url: must be https"),
        ({"public_url": "http://appliance.example", "loopback_http": True}, "plugin.login.public_url: must be https"),
        ({"scope": "profile"}, "plugin.login.scope: must hold openid"),
        ({"idle": 0}, "plugin.login.idle"),
        ({"nonsense": 1}, "plugin.login: .*nonsense"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_named(login: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        make_app(config(**login), folder=tmp_path)


def test_without_the_plugin_oauth_nobody_can_sign_in(tmp_path: Path) -> None:
    alone = config()
    alone["plugins"].remove("oauth")
    del alone["plugin"]["oauth"]
    with pytest.raises(ConfigError, match="list oauth too"):
        make_app(alone, folder=tmp_path)


def test_with_several_issuers_one_is_named(tmp_path: Path) -> None:
    several = config()
    several["plugin"]["oauth"]["issuers"].append(ISSUER | {"issuer": "https://other.example"})
    with pytest.raises(ConfigError, match=r"plugin.login.issuer: name one of"):
        make_app(several, folder=tmp_path)


@pytest.mark.parametrize(
    ("login", "resource"),
    [
        ({"cli_resource": None}, "https://appliance.example"),
        ({"cli_resource": ""}, ""),
        ({"cli_resource": "x:y"}, "x:y"),
    ],
)
async def test_the_server_tells_command_lines_where_to_sign_in(
    login: dict[str, Any], resource: str, tmp_path: Path
) -> None:
    told = config(**login) | {"auth": {"resource": "https://appliance.example"}}
    async with loopback.box(tmp_path, config=told) as box:
        assert (await box.client.get("/auth/cli")).json() == {
            "issuer": "https://id.example",
            "client_id": "cli",
            "scope": "openid profile offline_access inference",
            "resource": resource,
        }


async def test_only_what_is_set_up_has_routes(tmp_path: Path) -> None:
    async with loopback.box(tmp_path, config=config(client_id="", cli_client_id="cli")) as box:
        statuses = [(await box.client.get(path)).status_code for path in ("/auth/login", "/auth/cli", "/auth/session")]
    assert statuses == [404, 200, 401]
