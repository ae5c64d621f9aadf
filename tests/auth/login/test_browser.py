"""Sign-in with a browser, against a real provider: what is accepted, and above all what is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import loopback
import pytest
from eventually import eventually
from login_kit import PUBLIC, Console, console, issuer, settings
from oidc import Browser, OidcProvider, started

from appliance.storage import audit
from appliance.storage.audit import AuditQuery


@pytest.fixture
async def web(tmp_path: Path, oidc: OidcProvider) -> AsyncIterator[Console]:
    async with console(tmp_path, oidc) as found:
        yield found


def changed(url: str, **parameters: str | None) -> str:
    """The same address with other parameters; ``None`` removes one."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()} | parameters
    return f"{url.partition('?')[0]}?{urlencode({k: v for k, v in query.items() if v is not None})}"


async def test_A21_somebody_signs_in_and_is_known_by_the_session(web: Console, oidc: OidcProvider) -> None:
    assert (await web.session()).status_code == 401
    answer = await web.sign_in("/ui/?tab=chat")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/?tab=chat")
    found = (await web.session()).json()
    assert found["id"] == f"user:{oidc.issuer}|alice"
    assert (found["tenant"], found["groups"], found["roles"]) == ("acme", ["engineering"], ["user"])
    assert (await web.client.get(f"{web.url}/v1/models")).status_code == 200


async def test_A21_the_provider_is_asked_with_pkce_state_nonce_and_the_exact_redirect_uri(web: Console) -> None:
    asked = []
    for _ in range(2):
        begun = await web.client.get(f"{web.url}/auth/login")
        asked.append({k: v[0] for k, v in parse_qs(urlsplit(begun.headers["location"]).query).items()})
    for query in asked:
        assert query["response_type"] == "code"
        assert query["redirect_uri"] == f"{PUBLIC}/auth/callback"
        assert query["code_challenge_method"] == "S256"
        assert {len(query[name]) for name in ("state", "nonce", "code_challenge")} == {43}
    assert all(asked[0][name] != asked[1][name] for name in ("state", "nonce", "code_challenge"))


async def test_A21_no_token_reaches_the_browser(web: Console) -> None:
    seen, statuses = [], []
    for url in (await web.answer(), f"{web.url}/auth/session", f"{web.url}/auth/login"):
        answer = await web.client.get(url)
        statuses.append(answer.status_code)
        seen.append(answer.text + str(answer.headers.multi_items()))
    assert statuses == [303, 200, 303]
    assert all("eyJ" not in text and "token" not in text.lower() for text in seen)


async def test_A21_cookies_belong_to_this_host_alone_and_no_script_reads_them(
    tmp_path: Path, oidc: OidcProvider
) -> None:
    public = "https://appliance.example"
    async with console(tmp_path, oidc, public_url=public, loopback_http=False) as web:
        begun = await web.client.get(f"{web.url}/auth/login?next=/x")
        attempt = begun.headers["set-cookie"]
        came_to = await web.browser.sign_in(begun.headers["location"], stop_at=public)
        ended = await web.client.get(came_to.replace(public, web.url), headers={"cookie": attempt.partition(";")[0]})
        assert ended.status_code == 303
        gone, session = ended.headers.get_list("set-cookie")
        for cookie, name in ((attempt, "__Host-appliance_login"), (session, "__Host-appliance_session")):
            first, *flags = (part.strip().lower() for part in cookie.split(";"))
            assert first.startswith(f"{name.lower()}=")
            assert {"path=/", "httponly", "secure", "samesite=lax"} < set(flags)
            assert not any(flag.startswith("domain") for flag in flags)
        assert "max-age=0" in gone.lower()
        assert ended.headers["cache-control"] == "no-store"
        known = await web.client.get(f"{web.url}/auth/session", headers={"cookie": session.partition(";")[0]})
        assert known.json()["roles"] == ["user"]


async def test_A21_login_csrf_an_answer_to_somebody_elses_sign_in_is_refused(web: Console, oidc: OidcProvider) -> None:
    async with Browser("bob") as attacker:
        theirs = await Console(web.box, attacker).answer()
    bare = await web.client.get(theirs)
    await web.answer()
    with_own_attempt = await web.client.get(theirs)
    for answer in (bare, with_own_attempt):
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "login_failed")
    assert (await web.session()).status_code == 401


async def test_A21_a_code_of_another_sign_in_does_not_pass_under_a_state_of_ours(web: Console) -> None:
    async with Browser("bob") as attacker:
        theirs = await Console(web.box, attacker).answer()
    stolen = parse_qs(urlsplit(theirs).query)["code"][0]
    answer = await web.client.get(changed(await web.answer(), code=stolen))
    assert answer.status_code == 400  # the provider finds that the code verifier does not fit
    assert (await web.session()).status_code == 401


CHANGES: list[dict[str, str | None]] = [
    {"iss": "https://attacker.example"},
    {"iss": None},
    {"iss": ""},
    {"state": None},
    {"state": "x"},
    {"state": "\xfc"},
    {"code": None},
    {"code": "x"},
    {"code": ""},
]


async def test_A21_mix_up_and_other_changed_answers_are_refused(web: Console) -> None:
    for change in CHANGES:
        answer = await web.client.get(changed(await web.answer(), **change))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "login_failed"), change
        assert (await web.session()).status_code == 401


async def test_A21_a_parameter_that_is_there_twice_is_refused(web: Console) -> None:
    url = await web.answer()
    state = parse_qs(urlsplit(url).query)["state"][0]
    assert (await web.client.get(f"{url}&state={state}")).status_code == 400


async def test_A21_a_code_is_good_once(web: Console) -> None:
    url = await web.answer()
    attempt = web.client.cookies["appliance_login"]
    assert (await web.client.get(url)).status_code == 303
    again = await web.client.get(url)
    web.client.cookies.set("appliance_login", attempt, domain="127.0.0.1")
    with_the_cookie = await web.client.get(url)
    assert [answer.json()["error"]["code"] for answer in (again, with_the_cookie)] == ["login_failed"] * 2


ELSEWHERE = (
    "https://attacker.example/",
    "//attacker.example/",
    "/\\attacker.example/",
    "/\t/attacker.example",
    "ui",
    "",
)


async def test_A21_the_way_back_never_leads_to_another_server(web: Console) -> None:
    for address in ELSEWHERE:
        begun = await web.client.get(f"{web.url}/auth/login", params={"next": address})
        came_to = await web.browser.sign_in(begun.headers["location"], stop_at=PUBLIC)
        answer = await web.client.get(came_to.replace(PUBLIC, web.url))
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), address


async def test_A21_a_refused_sign_in_is_told_as_such(web: Console) -> None:
    begun = await web.client.get(f"{web.url}/auth/login")
    page = await web.client.get(begun.headers["location"], follow_redirects=True)
    refused = await web.browser.sign_in(f"{page.url}/abort", stop_at=PUBLIC)
    answer = await web.client.get(refused.replace(PUBLIC, web.url))
    assert answer.status_code == 403
    assert "refused" in answer.json()["error"]["message"]


async def test_A21_while_the_provider_is_down_sign_ins_get_a_503_and_sessions_go_on(
    tmp_path: Path,
) -> None:
    with started(tmp_path / "provider") as provider:
        async with console(tmp_path / "app", provider) as app:
            await app.sign_in()
            provider.stop()
            assert (await app.session()).status_code == 200
            pending = await app.client.get(f"{app.url}/auth/login")  # its metadata are known
            assert pending.status_code == 303
            state = parse_qs(urlsplit(pending.headers["location"]).query)["state"][0]
            query = urlencode({"code": "x", "state": state, "iss": provider.issuer})
            failed = await app.client.get(f"{app.url}/auth/callback?{query}")
            assert failed.status_code == 503
            assert failed.headers["retry-after"]


OWN, SAME_ORIGIN = {"origin": PUBLIC}, {"sec-fetch-site": "same-origin"}
FOREIGN = [
    {},
    {"origin": "https://attacker.example"},
    {"origin": "null"},
    {"origin": PUBLIC + ".attacker.example"},
    {"origin": PUBLIC.replace(":1", ":2")},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"origin": "https://attacker.example", "sec-fetch-site": "same-origin"},
]


async def test_csrf_with_a_session_only_pages_of_this_server_change_anything(web: Console) -> None:
    await web.sign_in()
    assert [(await web.chat(headers)).status_code for headers in (OWN, SAME_ORIGIN)] == [200, 200]
    for headers in FOREIGN:
        assert (await web.chat(headers)).status_code == 403, headers
        assert (await web.post("/auth/logout", headers)).status_code == 403, headers
    assert (await web.session()).status_code == 200


async def test_a_credential_in_a_header_goes_before_the_session(web: Console) -> None:
    await web.sign_in()
    for headers in ({"authorization": "Bearer wrong"}, {"x-api-key": "sk-app-wrong"}):
        assert (await web.client.get(f"{web.url}/auth/session", headers=headers)).status_code == 401


async def test_A25_logout_ends_the_session_on_every_replica(web: Console, tmp_path: Path, oidc: OidcProvider) -> None:
    await web.sign_in()
    cookie = web.client.cookies["appliance_session"]
    ended = await web.post("/auth/logout")
    assert ended.status_code == 200
    assert ended.json()["provider_logout_url"].startswith("http://127.0.0.1")
    assert "appliance_session" not in web.client.cookies
    web.client.cookies.set("appliance_session", cookie, domain="127.0.0.1")
    async with loopback.box(tmp_path, config=settings(issuer(oidc), ("another", "replica"))) as replica:
        for url in (web.url, replica.url):
            assert (await web.client.get(f"{url}/auth/session")).status_code == 401
    assert (await web.post("/auth/logout")).status_code == 200


async def test_A25_the_provider_ends_sessions_by_a_logout_token(tmp_path: Path, oidc: OidcProvider) -> None:
    """The provider calls a listener of the test, which carries the call to where the app really is."""
    calls: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
        calls.put_nowait(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    metadata = {"backchannel_logout_uri": uri, "backchannel_logout_session_required": True}
    async with server, console(tmp_path, oidc, metadata=metadata) as web:
        await web.sign_in()
        async with Browser("alice") as elsewhere:
            other = Console(web.box, elsewhere)
            await other.sign_in()
            await web.browser.sign_in((await oidc.metadata())["end_session_endpoint"], logout="yes")
            async with asyncio.timeout(20):
                form = await calls.get()
            target = f"{web.url}/auth/backchannel-logout"
            as_form = {"content-type": "application/x-www-form-urlencoded"}
            assert (
                await other.client.post(target, content=b"logout_token=e30.e30.e30", headers=as_form)
            ).status_code == 400
            assert (await web.session()).status_code == 200
            assert (await other.client.post(target, content=form, headers=as_form)).status_code == 200
            assert [(await each.session()).status_code for each in (web, other)] == [401, 200]


async def test_sign_ins_and_logouts_are_in_the_audit_log(web: Console, oidc: OidcProvider) -> None:
    await web.client.get(f"{web.url}/auth/callback?code=x&state=x")
    await web.sign_in()
    await web.post("/auth/logout")

    async def told() -> list[tuple[str, str, str, str]] | None:
        async with web.box.runtime.database.session(write=False) as session:
            found = [each async for each in audit.records(session, AuditQuery())]
        mine = [(e.action, e.outcome, e.principal, e.tenant) for e in found if e.action.startswith("session.")]
        return sorted(mine) if len(mine) == 3 else None

    alice = f"user:{oidc.issuer}|alice"
    assert await eventually(told) == [
        ("session.login", "failure", "unknown", ""),
        ("session.login", "success", alice, "acme"),
        ("session.logout", "success", alice, "acme"),
    ]
