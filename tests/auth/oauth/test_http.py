"""Access tokens in a served app: challenges, metadata, what becomes of tokens (A1 to A3, A8, A14, A23, A24, R20)."""

import asyncio
import base64
import datetime
import hashlib
import json
import re
import ssl
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote, urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from engine_upstream import UpstreamServer, hello
from eventually import eventually
from loopback import http_client
from oauth_kit import bearer, issuing, key, signed

from appliance.plugin import KeyStore
from appliance.testing import Emit, ScriptedPlugin, make_app, serving

RESOURCE = "https://ai.example.org/v1"
METADATA = "https://ai.example.org/.well-known/oauth-protected-resource/v1"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BARE = f'Bearer realm="appliance", resource_metadata="{METADATA}"'


@pytest.fixture
async def issuer():
    async with issuing() as made:
        yield made


def config(*issuers, plugins=("api_keys", "oauth", "rbac"), server=None, models=None, **auth):
    return {
        "plugins": list(plugins),
        "server": server or {},
        "models": models or [{"name": "m", "engine": "scripted"}],
        "auth": {"resource": RESOURCE, **auth},
        "plugin": {
            "oauth": {"issuers": list(issuers)},
            **({"api_keys": {"refresh": 0}} if "api_keys" in plugins else {}),
        },
    }


@asynccontextmanager
async def client_of(settings, folder, script=None):
    """A client of a served app; ``client.app`` is the app."""
    app = make_app(settings, {"scripted": ScriptedPlugin(script or [Emit("fine")])}, folder=folder)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        client.app = app
        yield client


@pytest.fixture
async def client(issuer, tmp_path):
    async with client_of(config(issuer.settings()), tmp_path) as made:
        yield made


async def first_key(client) -> dict[str, str]:
    """Headers with an API key that the app knows of."""
    _, text = await KeyStore(client.app.state.runtime.database).create(name="key", roles=["user"])

    async def known() -> bool:
        return (await ask(client, bearer(text))).status_code == 200

    await eventually(known)
    return bearer(text)


async def ask(client, headers=None, **fields):
    return await client.post("/v1/chat/completions", json=BODY | fields, headers=headers or {})


async def test_a_token_opens_the_door_plain_and_streamed(client, issuer):
    assert (await ask(client, bearer(issuer.token()))).status_code == 200
    streamed = await ask(client, bearer(issuer.token()), stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/files", "/v1/vector_stores"])
async def test_A1_no_credential_is_401_with_a_challenge_that_names_no_error(client, path):
    reply = await client.request("POST" if "chat" in path else "GET", path)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == BARE


MALFORMED = {
    "a bare scheme": {"authorization": "Bearer"},
    "a token and a key": {"authorization": "Bearer a.b.c", "x-api-key": "sk-app-x"},
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_A2_a_malformed_credential_is_400_invalid_request(client, case):
    reply = await client.get("/v1/models", headers=MALFORMED[case])
    assert reply.status_code == 400
    assert reply.headers["www-authenticate"] == BARE.replace(", res", ', error="invalid_request", res')


async def test_A2_a_token_in_the_query_is_not_taken(client, issuer):
    token = issuer.token()
    for headers in ({}, bearer(token)):
        reply = await client.get("/v1/models", params={"access_token": token}, headers=headers)
        assert reply.status_code == 400
        assert token not in reply.text


def refused(issuer) -> dict[str, str]:
    return {
        "expired": issuer.token(exp=1),
        "forged": signed(key("stranger"), issuer.claims(), kid="one"),
        "for another audience": issuer.token(aud="canary-audience"),
        "of another issuer": issuer.token(iss="https://canary.example"),
        "no access token": issuer.token(header={"typ": "JWT"}),
        "unsigned": issuer.token().rpartition(".")[0] + ".",
        "nonsense": "canary-nonsense",
        "a key that nobody made": "sk-app-" + "a" * 12 + "-" + "b" * 32,
    }


async def test_A3_O_12_whatever_is_wrong_with_a_token_the_answer_is_401_invalid_token_and_shows_no_claim(
    client, issuer
):
    await first_key(client)
    for name, token in refused(issuer).items():
        for reply in (await client.get("/v1/models", headers=bearer(token)), await ask(client, bearer(token))):
            assert reply.status_code == 401, name
            assert reply.headers["www-authenticate"] == BARE.replace(", res", ', error="invalid_token", res')
            assert not re.search(r"canary|alice|rag-api|app\b", reply.text + str(reply.headers)), reply.text


async def test_A3_a_missing_scope_is_403_insufficient_scope_and_named(client, issuer):
    reply = await client.get("/v1/files", headers=bearer(issuer.token(scope="inference")))
    assert reply.status_code == 403
    assert reply.headers["www-authenticate"] == BARE.replace(
        ", res", ', error="insufficient_scope", scope="files", res'
    )
    chat = await ask(client, bearer(issuer.token(scope="files")))
    assert (chat.status_code, 'scope="inference"' in chat.headers["www-authenticate"]) == (403, True)


async def test_A3_a_missing_role_is_403_with_a_challenge_too(issuer, tmp_path):
    settings = issuer.settings(default_roles=[], role_map={"chat": "user"})
    async with client_of(config(settings), tmp_path) as client:
        reply = await ask(client, bearer(issuer.token()))
        assert reply.status_code == 403
        assert 'error="insufficient_scope"' in reply.headers["www-authenticate"]
        assert "scope=" not in reply.headers["www-authenticate"]
        assert (await ask(client, bearer(issuer.token(roles=["chat"])))).status_code == 200


async def test_the_realm_and_its_quotes_are_told_correctly(issuer, tmp_path):
    async with client_of(config(issuer.settings(), realm='The "A\\B" é'), tmp_path) as client:
        reply = await client.get("/v1/models")
        assert reply.headers["www-authenticate"].startswith('Bearer realm="The \\"A\\\\B\\" ?", resource_metadata=')


async def test_A14_the_metadata_is_public_and_complete(client, issuer):
    for path in ("/.well-known/oauth-protected-resource/v1", "/.well-known/oauth-protected-resource"):
        reply = await client.get(path, headers={"authorization": "Bearer nonsense"})
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/json"
        assert reply.json() == {
            "resource": RESOURCE,
            "resource_name": "appliance",
            "authorization_servers": [issuer.url],
            "scopes_supported": ["admin", "files", "inference", "metrics"],
            "bearer_methods_supported": ["header"],
        }
    assert (await client.get("/.well-known/oauth-protected-resource/v2")).status_code == 404


async def test_A14_without_a_resource_there_is_no_metadata_and_no_word_of_it(issuer, tmp_path):
    async with client_of(config(issuer.settings(), resource=None), tmp_path) as client:
        assert (await client.get("/.well-known/oauth-protected-resource")).status_code == 404
        assert (await client.get("/v1/models")).headers["www-authenticate"] == 'Bearer realm="appliance"'


class PublicName(httpx.AsyncBaseTransport):
    """What DNS, TLS and a reverse proxy do: a public URL leads to the app, ``prefix`` is taken off, others go out."""

    def __init__(self, url: str, host: str, prefix: str) -> None:
        self._app, self._host, self._prefix = httpx.URL(url), host, prefix
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == self._host:
            path = request.url.raw_path.decode().removeprefix(self._prefix)
            request.url = self._app.copy_with(raw_path=path.encode())
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def challenge_of(reply: httpx.Response) -> dict[str, str]:
    scheme, _, rest = reply.headers["www-authenticate"].partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', rest))


async def follow(client: httpx.AsyncClient, resource: str, api: str, credentials: tuple[str, str]) -> httpx.Response:
    """All that a client needs is the URL and its credentials: the rest it is told (RFC 9728 section 5)."""
    first = await client.get(f"{api}/models")
    assert first.status_code == 401
    challenge = challenge_of(first)
    assert "error" not in challenge
    where = urlsplit(challenge["resource_metadata"])
    assert where.netloc == urlsplit(resource).netloc
    assert where.path == "/.well-known/oauth-protected-resource" + urlsplit(resource).path
    ours = (await client.get(challenge["resource_metadata"])).json()
    assert ours["resource"] == resource, "RFC 9728 section 3.3: else it must not be used"
    server = ours["authorization_servers"][0]
    theirs = (await client.get(f"{server}/.well-known/openid-configuration")).json()
    assert theirs["issuer"] == server
    form = {"grant_type": "client_credentials", "resource": ours["resource"], "scope": "inference"}
    assert form["scope"] in ours["scopes_supported"]
    token = (await client.post(theirs["token_endpoint"], data=form, auth=credentials)).json()["access_token"]
    return await client.get(f"{api}/models", headers=bearer(token))


PLACES = {
    "at the root": ("https://ai.example.org", "https://ai.example.org/v1", ""),
    "by the base URL of the API": ("https://ai.example.org/v1", "https://ai.example.org/v1", ""),
    "under a path prefix": ("https://ai.example.org/llm/v1", "https://ai.example.org/llm/v1", "/llm"),
}


@pytest.mark.parametrize("place", PLACES)
async def test_A14_a_strict_client_finds_its_way_by_itself(oidc, tmp_path, place):
    resource, api, prefix = PLACES[place]
    settings = {"issuer": oidc.issuer, "audience": resource, "loopback_http": True}
    app = make_app(config(settings, resource=resource), {"scripted": ScriptedPlugin([])}, folder=tmp_path)
    async with serving(app) as url:
        transport = PublicName(url, "ai.example.org", prefix)
        async with httpx.AsyncClient(transport=transport, timeout=20) as client:
            assert (await follow(client, resource, api, oidc.service)).status_code == 200


async def test_A8_a_huge_token_is_refused(client):
    assert (await client.get("/v1/models", headers=bearer("a" * 60_000))).status_code == 401
    assert (await client.get("/v1/models", headers=bearer("a" * 1_000_000))).status_code in (400, 431)


async def test_R20_while_the_issuer_is_down_keys_work_and_the_server_is_alive(issuer, tmp_path):
    issuer.answers.clear()
    async with client_of(config(issuer.settings()), tmp_path) as client:
        key_headers = await first_key(client)
        await eventually(lambda: issuer.requests["/.well-known/openid-configuration"])
        reply = await ask(client, bearer(issuer.token()))
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        assert "www-authenticate" not in reply.headers
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await ask(client, key_headers)).status_code == 200
        issuer.metadata()
        issuer.publish(issuer.key)

        async def answered() -> bool:
            return (await ask(client, bearer(issuer.token()))).status_code == 200

        await eventually(answered, 10)


ASKED = ("/.well-known/openid-configuration", "/jwks")
"""What is fetched of an issuer, in this order."""
MOMENTS = ("at the start", "mid-run", "across a rotation")


class Trouble:
    """An issuer that answers with 500, never, or late: until ``over``, and then as it should."""

    def __init__(self, issuer, kind: str) -> None:
        self._issuer, self._kind, self._over = issuer, kind, asyncio.Event()
        self.begin()

    def begin(self) -> None:
        self._good = {path: self._issuer.answers[path] for path in ASKED}
        self._asked = self.count()
        for path in ASKED:
            self._issuer.answers[path] = partial(self._answer, path)

    async def _answer(self, path, _):
        if self._kind != "500":
            await self._over.wait()
        return self._good[path] if self._kind == "late" else (500, b"oops")

    def count(self) -> int:
        return sum(self._issuer.requests[path] for path in ASKED)

    def noticed(self) -> bool:
        """Whether it was asked since."""
        return self.count() > self._asked

    def over(self) -> None:
        self._issuer.answers.update(self._good)
        self._over.set()


@asynccontextmanager
async def troubled(issuer, folder, when: str, kind: str):
    """A client of an app whose issuer is in trouble, the trouble, and tokens: of a key known by then, and a new one."""
    known, new = issuer.token(), issuer.token()
    trouble = Trouble(issuer, kind) if when == "at the start" else None
    async with client_of(config(issuer.settings()), folder) as client:
        if when != "at the start":
            await eventually(lambda: works(client, bearer(known)))
            new = signed(key("two"), issuer.claims(), kid="two")
            if when == "across a rotation":
                issuer.publish(key("two"))
            trouble = Trouble(issuer, kind)
        yield client, trouble, known, new
        trouble.over()


async def works(client, headers) -> bool:
    return (await ask(client, headers)).status_code == 200


async def what_needs_no_issuer(client, when: str, known: str) -> set[int]:
    replies = [await ask(client, await first_key(client)), await client.get("/livez"), await client.get("/readyz")]
    if when != "at the start":
        replies.append(await ask(client, bearer(known)))
    return {reply.status_code for reply in replies}


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("kind", ["500", pytest.param("black hole", marks=pytest.mark.slow)])
async def test_R20_while_the_issuer_fails_new_keys_are_503_and_all_else_goes_on(
    issuer, tmp_path, monkeypatch, kind, when
):
    monkeypatch.setattr("appliance_auth.oauth.issuer._CALL_SECONDS", 1.5)
    monkeypatch.setattr("appliance_auth.oauth.keys.PAUSE_SECONDS", 1.0)
    async with troubled(issuer, tmp_path, when, kind) as (client, trouble, known, new):
        for _ in range(3):
            reply = await ask(client, bearer(new))
            assert (reply.status_code, "www-authenticate" in reply.headers) == (503, False)
            assert int(reply.headers["retry-after"]) > 0
            assert await what_needs_no_issuer(client, when, known) == {200}
        assert trouble.noticed()
        trouble.over()
        wanted = {"at the start": 200, "mid-run": 401, "across a rotation": 200}[when]

        async def judged() -> bool:
            return (await ask(client, bearer(new))).status_code == wanted

        await eventually(judged, 20)
        assert (await ask(client, bearer(known))).status_code == (401 if when == "across a rotation" else 200)


@pytest.mark.parametrize("when", MOMENTS)
async def test_R20_a_slow_issuer_delays_whom_it_must_and_nobody_else(issuer, tmp_path, monkeypatch, when):
    monkeypatch.setattr("appliance_auth.oauth.issuer._CALL_SECONDS", 60.0)
    async with troubled(issuer, tmp_path, when, "late") as (client, trouble, known, new):
        waiting = asyncio.create_task(ask(client, bearer(new)))
        await eventually(trouble.noticed)
        assert await what_needs_no_issuer(client, when, known) == {200}
        assert not waiting.done()
        trouble.over()
        assert (await waiting).status_code == (401 if when == "mid-run" else 200)


async def test_keys_and_tokens_work_side_by_side_in_either_order(issuer, tmp_path):
    for i, plugins in enumerate([("api_keys", "oauth", "rbac"), ("oauth", "api_keys", "rbac")]):
        async with client_of(config(issuer.settings(), plugins=plugins), tmp_path / str(i)) as client:
            assert (await ask(client, await first_key(client))).status_code == 200
            assert (await ask(client, bearer(issuer.token()))).status_code == 200


WAYS_TO_A_MODEL = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": BODY | {"max_tokens": 5},
}


async def test_A24_the_callers_token_never_reaches_the_engine_or_its_server(issuer, tmp_path):
    """Nor does a key, or anything else that says who the caller is, whichever route leads there."""
    upstream = UpstreamServer(hello)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    async with server:
        models = [{"name": "m", "engine": "openai", "options": {"base_url": upstream.base_url, "api_key": "theirs"}}]
        settings = config(issuer.settings(), plugins=("openai", "api_keys", "oauth", "rbac"), models=models)
        canaries = {"cookie": "appliance_session=canary-a", "x-user-id": "canary-b", "proxy-authorization": "canary-c"}
        async with client_of(settings, tmp_path) as client:
            api_key = (await first_key(client))["authorization"].partition(" ")[2]
            token = issuer.token()
            upstream.exchanges.clear()
            for credential in (bearer(token), bearer(api_key), {"x-api-key": api_key}, {"api-key": api_key}):
                for path, body in WAYS_TO_A_MODEL.items():
                    for stream in (False, True):
                        headers = {**credential, **canaries}
                        reply = await client.post(path, json={**body, "stream": stream}, headers=headers)
                        assert reply.status_code == 200, reply.text
        asked = [exchange for exchange in upstream.exchanges if exchange.path.endswith("completions")]
        assert len(asked) == 4 * 2 * len(WAYS_TO_A_MODEL)
        for exchange in upstream.exchanges:
            sent = json.dumps([exchange.headers, exchange.body])
            assert not [secret for secret in (token, api_key, "canary", "alice") if secret in sent]
            assert exchange.headers["authorization"] == "Bearer theirs"


def certificate(name: str) -> bytes:
    """A client certificate as DER."""
    signer = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(signer.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def thumbprint(der: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode()


def as_rfc_9440(der: bytes) -> str:
    return f":{base64.b64encode(der).decode()}:"


def as_nginx(der: bytes) -> str:
    return quote(ssl.DER_cert_to_PEM_cert(der))


MINE, THEIRS = certificate("mine"), certificate("theirs")
CERTIFICATES = {
    "RFC 9440": (as_rfc_9440(MINE), 200),
    "nginx": (as_nginx(MINE), 200),
    "another": (as_rfc_9440(THEIRS), 401),
    "another by nginx": (as_nginx(THEIRS), 401),
    "none": (None, 401),
    "empty": ("", 401),
    "the thumbprint itself": (thumbprint(MINE), 401),
    "nonsense": (":%%%:", 401),
    "an empty one": ("::", 401),
    "two": (f"{as_rfc_9440(THEIRS)}, {as_rfc_9440(MINE)}", 401),
}


@pytest.fixture
async def behind_proxy(issuer, tmp_path):
    server = {"trusted_proxies": ["127.0.0.1"], "client_certificate_header": "Client-Cert"}
    async with client_of(config(issuer.settings(), server=server), tmp_path) as made:
        yield made


@pytest.mark.parametrize("case", CERTIFICATES)
async def test_A23_a_bound_token_needs_its_certificate(behind_proxy, issuer, case):
    value, status = CERTIFICATES[case]
    headers = bearer(issuer.token(cnf={"x5t#S256": thumbprint(MINE)}))
    good = headers | {"client-cert": as_rfc_9440(MINE)}
    assert (await ask(behind_proxy, good)).status_code == 200
    headers |= {} if value is None else {"client-cert": value}
    assert (await ask(behind_proxy, headers)).status_code == status, "also when the token is remembered"


async def test_A23_two_certificates_are_none(behind_proxy, issuer):
    """As when a client sends one, and the proxy adds its own instead of putting it in the other's place."""
    token = ("authorization", f"Bearer {issuer.token(cnf={'x5t#S256': thumbprint(MINE)})}")
    for lines in ((THEIRS, MINE), (MINE, THEIRS), (MINE, MINE)):
        headers = [token, *(("client-cert", as_rfc_9440(each)) for each in lines)]
        reply = await behind_proxy.post("/v1/chat/completions", json=BODY, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "repeated_header")


async def test_A23_the_header_counts_from_a_trusted_proxy_only(issuer, tmp_path):
    headers = bearer(issuer.token(cnf={"x5t#S256": thumbprint(MINE)})) | {"client-cert": as_rfc_9440(MINE)}
    for i, server in enumerate(
        [
            {"client_certificate_header": "client-cert"},
            {"client_certificate_header": "client-cert", "trusted_proxies": ["10.0.0.0/8"]},
            {"trusted_proxies": ["127.0.0.1"]},
        ]
    ):
        async with client_of(config(issuer.settings(), server=server), tmp_path / str(i)) as client:
            assert (await ask(client, headers)).status_code == 401


@pytest.mark.parametrize(
    "cnf",
    [{"jkt": "x"}, {"jwk": {}}, {}, "x", 5, [], {"x5t#S256": 5}, {"x5t#S256": "é"}, {"x5t#S256": "x", "jkt": "y"}],
    ids=range(9),
)
async def test_A23_a_token_bound_to_what_cannot_be_proven_here_is_refused(behind_proxy, issuer, cnf):
    headers = bearer(issuer.token(cnf=cnf)) | {"client-cert": as_rfc_9440(MINE)}
    assert (await ask(behind_proxy, headers)).status_code == 401


async def test_requests_while_keys_are_fetched_wait_for_them_and_all_get_in(issuer, tmp_path):
    gate = asyncio.Event()
    keys = issuer.answers["/jwks"]

    async def slow(_):
        await gate.wait()
        return keys

    issuer.answers["/jwks"] = slow
    async with client_of(config(issuer.settings()), tmp_path) as client:
        waiting = [asyncio.create_task(ask(client, bearer(issuer.token(sub=f"u{i}")))) for i in range(10)]
        await eventually(lambda: issuer.requests["/jwks"])
        gate.set()
        assert {(await task).status_code for task in waiting} == {200}
        assert issuer.requests["/jwks"] == 1
