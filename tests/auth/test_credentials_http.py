"""How credentials may come, and what an answer gives away of them: on a served app, down to its sockets."""

from __future__ import annotations

import logging
import urllib.parse

import httpx
import pytest
from bad_credentials import SQL
from guarded import BODY, guarded_app, make_keys
from loopback import assert_openai_error, raw_answer, served_in_thread

HEADERS = ("authorization", "api-key", "x-api-key")
TARGETS = ("/v1/models", "/v1/chat/completions", "/v1/files", "/metrics", "/openapi.json")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return guarded_app(tmp_path_factory.mktemp("credentials"))


@pytest.fixture(scope="module")
def keys(app):
    return make_keys(app)


@pytest.fixture(scope="module")
def url(app, keys):
    with served_in_thread(app) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=20) as client:
        yield client


def sent(header: str, text: str) -> dict[str, str]:
    return {header: f"Bearer {text}" if header == "authorization" else text}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer"},
        {"authorization": "bearer"},
        {"authorization": "Bearer", "x-api-key": "{key}"},
        {"authorization": "Bearer {key}", "x-api-key": "another"},
        {"authorization": "Bearer another", "api-key": "{key}"},
        {"api-key": "{key}", "x-api-key": "another"},
        [("authorization", "Bearer {key}"), ("authorization", "Bearer {key}")],
        [("authorization", "Bearer {key}"), ("authorization", "Basic eDp5")],
        [("x-api-key", "{key}"), ("x-api-key", "{key}")],
        [("api-key", "one"), ("api-key", "two")],
    ],
)
def test_A2_a_credential_that_is_empty_twice_or_one_of_two_is_400_invalid_request(client, keys, headers):
    pairs = [(name, value.replace("{key}", keys["admin"])) for name, value in dict(headers).items()]
    if isinstance(headers, list):
        pairs = [(name, value.replace("{key}", keys["admin"])) for name, value in headers]
    reply = client.get("/v1/files", headers=pairs)
    assert assert_openai_error(reply, 400)["code"] == "invalid_request"
    assert keys["admin"] not in reply.text


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("beside", [{}, {"authorization": "Bearer {key}"}, {"x-api-key": "{key}"}])
def test_A2_a_token_in_the_address_is_never_accepted(client, keys, method, beside):
    headers = {name: value.replace("{key}", keys["admin"]) for name, value in beside.items()}
    for query in (f"access_token={keys['admin']}", f"x=1&access_token={keys['admin']}", "access_token="):
        body = {"json": BODY} if method == "POST" else {}
        path = "/v1/chat/completions" if method == "POST" else "/v1/files"
        reply = client.request(method, f"{path}?{query}", headers=headers, **body)
        assert assert_openai_error(reply, 400)["code"] == "invalid_request"
    for name in ("api_key", "api-key", "key", "token", "access%5Ftoken", "Authorization", "x_access_token"):
        assert_openai_error(client.get(f"/v1/files?{name}={keys['admin']}"), 401)


def test_A2_header_form_and_query_together_are_400_and_a_form_alone_is_401(client, keys):
    form = urllib.parse.urlencode({"access_token": keys["admin"]}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    both = {**headers, "authorization": f"Bearer {keys['admin']}"}
    query = f"/v1/chat/completions?access_token={keys['admin']}"
    assert assert_openai_error(client.post(query, content=form, headers=both), 400)["code"] == "invalid_request"
    assert_openai_error(client.post("/v1/chat/completions", content=form, headers=both), 400)
    for path in ("/v1/chat/completions", "/v1/vector_stores", "/v1/files"):
        assert_openai_error(client.post(path, content=form, headers=headers), 401)


def test_A2_no_credential_in_whatever_form_gets_into_a_log(client, keys, caplog):
    caplog.set_level(logging.DEBUG)
    canary = "sk-app-canarycanary-" + "c" * 32
    for header in HEADERS:
        client.get("/v1/files", headers=sent(header, canary))
    client.get(f"/v1/files?access_token={canary}")
    client.post(f"/v1/chat/completions?access_token={canary}", json=BODY, headers=sent("api-key", keys["admin"]))
    client.post("/v1/chat/completions", json=BODY, headers=sent("api-key", keys["admin"]))
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert ours  # something was logged at all
    assert [line for line in ours if canary in line or keys["admin"] in line] == []


def test_the_same_credential_in_two_headers_is_one(client, keys):
    headers = {**sent("authorization", keys["user"]), **sent("x-api-key", keys["user"])}
    assert client.get("/v1/models", headers=headers).status_code == 200


def test_a_proxy_s_own_basic_password_beside_a_key_is_not_ours_to_judge(client, keys):
    headers = {"authorization": "Basic cHJveHk6cGFzcw==", "x-api-key": keys["user"]}
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/audit/events", "/metrics"])
@pytest.mark.parametrize("header", HEADERS)
def test_A15_sql_in_a_credential_is_a_wrong_credential(client, keys, header, path):
    answers = set()
    for text in SQL:
        reply = client.get(path, headers=sent(header, text))
        assert_openai_error(reply, 401)
        assert 'error="invalid_token"' in reply.headers["www-authenticate"]
        answers.add(reply.content)
    assert answers == {client.get("/v1/models").content}
    assert client.get("/v1/models", headers=sent(header, keys["user"])).status_code == 200  # the table is still there


def test_A15_sql_in_the_cookie_of_a_session_is_no_session(client, keys):
    answers = set()
    for text in SQL:
        reply = client.get("/v1/models", headers={"cookie": f"appliance_session={text}"})
        assert_openai_error(reply, 401)
        answers.add(reply.content)
    assert len(answers) == 1
    assert client.get("/v1/models", headers=sent("api-key", keys["user"])).status_code == 200


def variants(path: str) -> list[str]:
    """Ways to write a path that a proxy, a prefix check or a careless router may read as another."""
    first, rest = path[1], path[2:]
    return [
        path, f"/{path}", f"//{path}", path.replace("/", "//"), f"/.{path}", f"/x/..{path}", f"/livez/..{path}",
        f"/livez/%2e%2e{path}", f"/livez%2f..{path}", f"/livez;{path}", f"/livez?{path}", f"/livez%00{path}",
        f"{path}/", f"{path}//", f"{path}/.", f"{path}/..", f"{path};x", f"{path};/livez", f"{path}%00", f"{path}%2f",
        f"{path}%20", f"{path}?", f"{path}?x=/livez", f"{path}#/livez", f"/%2f{path[1:]}", f"/%{ord(first):02x}{rest}",
        f"/%25{ord(first):02x}{rest}", path.upper(), path.title(), f"{path}/%2e%2e/%2e%2e/livez", f"{path}/../../livez",
        f"http://localhost{path}", f"http://localhost/livez{path}", f"http://livez{path}", f"http://x@localhost{path}",
        f"\\{path[1:]}", path.replace("/", "\\"), f"{path}.json", f"/livez/../..{path}", f"*{path}",
    ]  # fmt: skip


HOSTS = (
    "localhost", "a/?#", "localhost/livez", "localhost/livez?", "localhost#/livez", "/livez", "", "livez",
    "localhost:80/livez", "127.0.0.1", "example.com", "localhost\tlivez",
)  # fmt: skip


def request(method: str, target: str, host: str = "localhost") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n".encode("latin-1")


async def refused(url: str, raw: bytes) -> bool:
    """Whether there is neither a 2xx nor a 5xx, nor anything of what the routes behind give away."""
    status, _, body = await raw_answer(url, raw)
    assert b"appliance_requests" not in body
    assert b'"data"' not in body
    assert b"openapi" not in body.replace(b"GET /openapi.json", b"")
    return 400 <= status < 500


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_A17_O15_no_way_to_write_a_path_gets_around_the_key(url, method):
    public = {f"/livez?{target}" for target in TARGETS}  # the probe itself, with a query
    for path in TARGETS:
        for target in variants(path):
            if target not in public:
                assert await refused(url, request(method, target)), target


@pytest.mark.parametrize("host", HOSTS)
async def test_A17_no_host_gets_around_the_key(url, host):
    for path in TARGETS:
        assert await refused(url, request("GET", path, host)), path
        assert await refused(url, request("HEAD", path, host)), path


async def test_A17_neither_does_no_host_nor_two_nor_a_forwarded_one(url):
    for headers in (
        "", "host: localhost\r\nhost: localhost/livez\r\n", "x-forwarded-host: localhost/livez\r\n",
        "host: localhost\r\nx-original-url: /livez\r\nx-rewrite-url: /livez\r\n",
        "host: localhost\r\nx-forwarded-prefix: /livez\r\nx-http-method-override: OPTIONS\r\n",
    ):  # fmt: skip
        for path in TARGETS:
            assert await refused(url, f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode()), (path, headers)
    assert await refused(url, b"GET /v1/models HTTP/1.0\r\n\r\n")


async def test_A17_the_probe_answers_head_as_well_as_get(url):
    for method in ("GET", "HEAD"):
        status, headers, body = await raw_answer(url, request(method, "/livez"))
        assert (status, headers["content-type"]) == (200, "application/json")
        assert (body == b"") == (method == "HEAD")
