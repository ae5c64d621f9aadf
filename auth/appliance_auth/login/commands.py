"""``appliance login``, ``logout``, ``whoami`` and ``token``: a person at a terminal, by OAuth's device flow."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import click
import msgspec

from appliance.plugin import ApplianceError, examples, json_option, print_json
from appliance_auth.login.device_flow import DeviceCode
from appliance_auth.login.issuer import Issuer, checked_url, decoded
from appliance_auth.login.token_files import TokenFiles, Tokens

_DEFAULT_SERVER = "http://127.0.0.1:8000"
_SCOPE = "openid profile offline_access"
_EARLY = 60
"""Seconds before its end from which on a token is renewed."""

_T = TypeVar("_T")

server_option = click.option("--server", envvar="APPLIANCE_SERVER", help="Address of the appliance.")


class CliClient(msgspec.Struct, frozen=True):
    """What ``GET /auth/cli`` answers: where and as which client command lines sign in."""

    issuer: str
    client_id: str
    scope: str = _SCOPE
    resource: str | None = None


@click.command(
    epilog=examples(
        "appliance login --server https://appliance.example",
        "appliance login --server https://appliance.example --issuer https://id.example --client-id appliance-cli",
    )
)
@server_option
@click.option("--issuer", help="Identity provider.  [default: what the server says]")
@click.option("--client-id", help="Client there, one that may use the device flow.  [default: what the server says]")
@click.option("--scope", help="Scopes to ask for, separated by spaces.  [default: what the server says]")
@click.option(
    "--resource", help="Identifier of the server at the provider (RFC 8707).  [default: what the server says]"
)
def login(
    server: str | None, issuer: str | None, client_id: str | None, scope: str | None, resource: str | None
) -> None:
    """Sign in with a browser anywhere; this terminal needs none.

    Prints an address and a code, waits until somebody has signed in there, and keeps the tokens in a file that only
    you can read. Without --server it is this machine's appliance.
    """
    server = _address(server or _DEFAULT_SERVER)
    client = _client(server, issuer, client_id)
    scope, resource = scope or client.scope, resource or client.resource
    with Issuer(client.issuer, client.client_id) as provider:
        answer = provider.sign_in(_show, scope=scope, resource=resource)
    tokens = Tokens(
        server=server,
        issuer=client.issuer,
        client_id=client.client_id,
        resource=resource,
        access_token=answer["access_token"],
    )
    path = TokenFiles().save(_renewed(tokens, answer))
    click.echo(f"Signed in at {server}. The tokens are in {path}.", err=True)


@click.command(epilog=examples("appliance logout", "appliance logout --server https://appliance.example"))
@server_option
def logout(server: str | None) -> None:
    """Forget the tokens, and ask the identity provider to end them."""
    files = TokenFiles()
    server = _chosen(files, server)
    with files.locked(server):
        tokens = _signed_in(files, server)
        try:
            ended = _revoked(tokens)
        except ApplianceError as error:
            click.echo(f"warning: {error}", err=True)
            ended = False
        files.remove(server)
    rest = "" if ended else " The identity provider did not end them: they run out by themselves."
    click.echo(f"Signed out of {server}.{rest}", err=True)


@click.command(epilog=examples("appliance whoami", "appliance whoami --json"))
@server_option
@json_option
def whoami(server: str | None, as_json: bool) -> None:
    """Show who the server takes you for, and what you may do there."""
    server = _chosen(TokenFiles(), server)
    caller = _ask(server, "/auth/session", dict[str, Any], token=valid_token(TokenFiles(), server))
    if as_json:
        print_json(caller)
        return
    for name, value in caller.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{name:<9} {'-' if shown in (None, '') else shown}")


@click.command(epilog=examples("appliance token", "OPENAI_API_KEY=$(appliance token) python ask.py"))
@server_option
def token(server: str | None) -> None:
    """Print a valid access token, for programs; renews it first where that is needed."""
    files = TokenFiles()
    click.echo(valid_token(files, _chosen(files, server)))


def valid_token(files: TokenFiles, server: str) -> str:
    """The access token for a server, renewed if it is about to expire. Raises ApplianceError."""
    with files.locked(server):
        tokens = _signed_in(files, server)
        ends = tokens.expires_at
        if ends is None or time.time() < ends - _EARLY:
            return tokens.access_token
        if tokens.refresh_token is None:
            raise ApplianceError(f"the sign-in at {server} has expired; run appliance login --server {server}")
        try:
            with Issuer(tokens.issuer, tokens.client_id) as provider:
                tokens = _renewed(tokens, provider.refresh(tokens.refresh_token, resource=tokens.resource))
        except ApplianceError:
            if time.time() < ends:
                return tokens.access_token  # the provider is down, but this one holds for some seconds more
            raise
        files.save(tokens)
        return tokens.access_token


def _renewed(tokens: Tokens, answer: dict[str, Any]) -> Tokens:
    """Tokens with what the token endpoint answered; a refresh token that it does not replace stays good."""
    expires_at = answer.get("expires_at")
    return msgspec.structs.replace(
        tokens,
        access_token=answer["access_token"],
        refresh_token=answer.get("refresh_token") or tokens.refresh_token,
        expires_at=expires_at if isinstance(expires_at, int) else None,
        scope=answer.get("scope") or tokens.scope,
    )


def _revoked(tokens: Tokens) -> bool:
    with Issuer(tokens.issuer, tokens.client_id) as provider:
        if tokens.refresh_token:
            return provider.revoke(tokens.refresh_token, "refresh_token")
        return provider.revoke(tokens.access_token, "access_token")


def _client(server: str, issuer: str | None, client_id: str | None) -> CliClient:
    if issuer and client_id:
        return CliClient(issuer=issuer, client_id=client_id)
    found = _ask(server, "/auth/cli", CliClient)
    return msgspec.structs.replace(found, issuer=issuer or found.issuer, client_id=client_id or found.client_id)


def _ask(server: str, path: str, type_: type[_T], token: str | None = None) -> _T:
    """What the appliance answers to a GET."""
    import httpx2

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx2.get(f"{server}{path}", headers=headers, timeout=10)
    except httpx2.HTTPError as error:
        raise ApplianceError(f"{server} cannot be reached ({type(error).__name__}); check --server") from None
    if response.status_code == 404:
        raise ApplianceError(
            f"{server} names no identity provider; give --issuer and --client-id, or list the plugin login there"
        )
    if response.status_code == 401:
        raise ApplianceError(f"{server} does not take the token; run appliance login --server {server}")
    if response.status_code == 403:
        raise ApplianceError(
            f"{server} takes the token, but shows nobody without the permission self.read who they are; "
            "ask its operator for a role that grants it"
        )
    if response.status_code != 200:
        raise ApplianceError(f"{server} answered {response.status_code} to {path}; check --server")
    return decoded(response, type_, f"the answer of {server} to {path}")


def _show(code: DeviceCode) -> None:
    minutes = max(1, round(code.expires_in / 60))
    click.echo(f"To sign in, open  {code.verification_uri}\nand enter the code  {code.user_code}", err=True)
    if code.verification_uri_complete:
        click.echo(f"or open  {code.verification_uri_complete}", err=True)
    click.echo(f"Waiting; the code is good for {minutes} minutes.", err=True)


def _address(server: str) -> str:
    """A server's address as files are named by it: without a path's last slash or the API's ``/v1``."""
    return checked_url(server.rstrip("/").removesuffix("/v1"), "--server")


def _chosen(files: TokenFiles, server: str | None) -> str:
    """The server that is named, or the only one there is."""
    if server:
        return _address(server)
    known = files.servers()
    if not known:
        raise ApplianceError("you are not signed in anywhere; run appliance login --server URL")
    if len(known) > 1:
        raise ApplianceError(f"you are signed in at {', '.join(known)}; name one with --server or APPLIANCE_SERVER")
    return known[0]


def _signed_in(files: TokenFiles, server: str) -> Tokens:
    tokens = files.load(server)
    if tokens is None:
        raise ApplianceError(f"you are not signed in at {server}; run appliance login --server {server}")
    return tokens
