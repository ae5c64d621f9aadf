"""``appliance login``, ``token``, ``whoami`` and ``logout``, against a real provider and a served appliance."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from login_kit import Console, console
from oidc import API, Browser, OidcProvider, started

from appliance.plugin import ApplianceError
from appliance_auth.login import commands
from appliance_auth.login.device_flow import DeviceCode
from appliance_auth.login.issuer import Issuer
from appliance_auth.login.token_files import TokenFiles


class Hasty(Issuer):
    """Somebody signs in as soon as the code is shown, and no time passes between polls."""

    account = "alice"

    def sign_in(self, show: Callable[[DeviceCode], None], **options: Any) -> dict[str, Any]:
        def shown(code: DeviceCode) -> None:
            show(code)
            asyncio.run(enter(code.verification_uri, code.user_code, self.account))

        return super().sign_in(shown, **options, sleep=lambda _: None)


async def enter(address: str, code: str, account: str) -> None:
    async with Browser(account) as browser:
        await browser.sign_in(address, user_code=code)


@pytest.fixture
async def web(tmp_path: Path, oidc: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Console]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "Issuer", Hasty)
    async with console(tmp_path, oidc) as found:
        yield found


async def run(*arguments: str) -> Result:
    """A command, beside the server that it asks."""
    command = {each.name: each for each in (commands.login, commands.logout, commands.token, commands.whoami)}
    return await asyncio.to_thread(CliRunner().invoke, command[arguments[0]], arguments[1:])


def expire(server: str, seconds: int = 0) -> None:
    """As if the access token's time were over, or soon would be."""
    tokens = TokenFiles().load(server)
    assert tokens
    tokens.expires_at = int(time.time()) + seconds
    TokenFiles().save(tokens)


async def models(server: str, token: str) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{server}/v1/models", headers={"authorization": f"Bearer {token}"})).status_code


async def test_A22_somebody_signs_in_at_a_terminal_and_out_again(web: Console, oidc: OidcProvider) -> None:
    signed_in = await run("login", "--server", f"{web.url}/v1")
    assert signed_in.exit_code == 0, signed_in.output
    assert f"{oidc.issuer}/device" in signed_in.stderr
    assert re.search(r"the code  \w{4}-\w{4}", signed_in.stderr)
    assert signed_in.stdout == ""

    token = (await run("token")).stdout.strip()
    assert await models(web.url, token) == 200
    caller = json.loads((await run("whoami", "--json")).stdout)
    assert (caller["id"], caller["scopes"]) == (f"user:{oidc.issuer}|alice", ["inference"])
    assert "engineering" in (await run("whoami")).stdout

    kept = TokenFiles().load(web.url)
    assert kept
    assert (await run("logout")).exit_code == 0
    assert isinstance((await run("token")).exception, ApplianceError)
    with Issuer(oidc.issuer, oidc.cli) as issuer, pytest.raises(ApplianceError, match="the sign-in has ended"):
        await asyncio.to_thread(issuer.refresh, kept.refresh_token or "", resource=API)


async def test_A22_an_expired_token_is_renewed_once_whoever_asks(web: Console) -> None:
    await run("login", "--server", web.url)
    first = TokenFiles().load(web.url)
    expire(web.url)
    # The provider rotates refresh tokens and ends the sign-in when an old one comes again.
    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        asked = [loop.run_in_executor(pool, commands.valid_token, TokenFiles(), web.url) for _ in range(4)]
        tokens = set(await asyncio.gather(*asked))
    assert len(tokens) == 1
    assert first
    assert tokens != {first.access_token}
    assert await models(web.url, tokens.pop()) == 200
    expire(web.url)
    assert (await run("token")).exit_code == 0


async def test_a_sign_in_that_has_ended_at_the_provider_says_what_to_do(web: Console, oidc: OidcProvider) -> None:
    await run("login", "--server", web.url)
    tokens = TokenFiles().load(web.url)
    assert tokens
    async with oidc.client() as client:
        form = {"token": tokens.refresh_token, "client_id": oidc.cli}
        assert (await client.post("/token/revocation", data=form)).is_success
    expire(web.url)
    told = str((await run("token")).exception)
    assert told == "the sign-in has ended; run appliance login again"


async def test_issuer_and_client_may_be_named_where_the_server_says_nothing(
    web: Console, oidc: OidcProvider, tmp_path: Path
) -> None:
    elsewhere = "https://appliance.example"
    options = ("--issuer", oidc.issuer, "--client-id", oidc.cli, "--scope", "openid", "--resource", API)
    assert (await run("login", "--server", elsewhere, *options)).exit_code == 0
    assert TokenFiles().servers() == [elsewhere]
    await run("login", "--server", web.url)
    told = str((await run("whoami")).exception)
    assert "name one with --server" in told
    assert (await run("whoami", "--server", web.url)).exit_code == 0


async def test_whoami_names_the_permission_that_is_missing(web: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "account", "bob")  # whose role means nothing here
    await run("login", "--server", web.url)
    assert "self.read" in str((await run("whoami")).exception)


async def test_every_failure_is_one_line_that_says_what_to_do(
    web: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {
        ("whoami",): "not signed in anywhere",
        ("token", "--server", web.url): "run appliance login",
        ("logout", "--server", "http://appliance.example"): "must begin with https",
        ("login", "--server", "http://127.0.0.1:1"): "cannot be reached",
        ("login", "--server", f"{web.url}/nowhere"): "give --issuer and --client-id",
    }
    for arguments, words in wrong.items():
        error = (await run(*arguments)).exception
        assert isinstance(error, ApplianceError), arguments
        assert words in str(error)
        assert "\n" not in str(error)


async def test_while_the_provider_is_down_a_token_is_good_to_its_end_and_a_logout_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "Issuer", Hasty)
    with started(tmp_path / "provider") as provider:
        async with console(tmp_path / "app", provider) as web:
            await run("login", "--server", web.url)
            provider.stop()
            expire(web.url, seconds=30)
            assert (await run("token")).exit_code == 0
            expire(web.url)
            assert "cannot be reached" in str((await run("token")).exception)
            ended = await run("logout")
    assert ended.exit_code == 0
    assert "cannot be reached" in ended.stderr
    assert TokenFiles().servers() == []


@pytest.mark.slow
async def test_A22_the_real_command_needs_no_configuration(web: Console, tmp_path: Path) -> None:
    """In real time: the first poll comes after five seconds."""
    (tmp_path / "laptop").mkdir()
    command = [sys.executable, "-m", "appliance", "login", "--server", web.url]
    begun = time.monotonic()
    child = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path / "laptop", env={**os.environ}, stderr=asyncio.subprocess.PIPE
    )
    assert child.stderr
    async with asyncio.timeout(60):
        lines = [(await child.stderr.readline()).decode() for _ in range(2)]
        await enter(lines[0].split()[-1], lines[1].split()[-1], "alice")
        rest = (await child.stderr.read()).decode()
        assert await child.wait() == 0, rest
    assert time.monotonic() - begun > 5
    assert "Signed in at" in rest
    assert await models(web.url, (await run("token")).stdout.strip()) == 200
