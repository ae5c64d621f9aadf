"""A22: the device flow keeps to the pace that the server sets, and ends when it must. The clock is the test's."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from appliance.plugin import ApplianceError
from appliance_auth.login.device_flow import DeviceCode
from appliance_auth.login.issuer import Issuer
from appliance_auth.login.token_files import TokenFiles, Tokens

TOKENS = {"access_token": "at", "token_type": "Bearer", "expires_in": 600}
PENDING = (400, {"error": "authorization_pending"})
SLOW_DOWN = (400, {"error": "slow_down"})


@dataclass
class FakeAuthorizationServer:
    """Answers polls by a script, and counts them."""

    polls: list[tuple[int, Any]]
    start: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    issuer: str = ""
    polled: int = 0
    forms: list[dict[str, str]] = field(default_factory=list)

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        self.forms.append(form)
        if path == "/device":
            code = {
                "device_code": "dc",
                "user_code": "ABCD",
                "verification_uri": "https://id.example/d",
                "expires_in": 600,
            }
            return 200, code | self.start
        self.polled += 1
        return self.polls[min(self.polled, len(self.polls)) - 1]


@pytest.fixture
def server() -> Iterator[FakeAuthorizationServer]:
    fake = FakeAuthorizationServer([(200, TOKENS)])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {
                "issuer": fake.issuer,
                "token_endpoint": f"{fake.issuer}/token",
                "device_authorization_endpoint": f"{fake.issuer}/device",
            }
            self.reply(200 if self.path.endswith("/openid-configuration") else 404, found | fake.metadata)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.reply(*fake.answer(self.path, {name: values[0] for name, values in parse_qs(body).items()}))

        def reply(self, status: int, body: Any) -> None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        fake.issuer = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        http.shutdown()
        thread.join(10)


@dataclass
class Clock:
    """Time passes only by sleeping."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def read(self) -> float:
        return self.now


def sign_in(server: FakeAuthorizationServer, clock: Clock) -> tuple[dict[str, Any], DeviceCode]:
    shown: list[DeviceCode] = []
    with Issuer(server.issuer, "cli") as issuer:
        answer = issuer.sign_in(
            shown.append, scope="openid", resource="https://api.example/", sleep=clock.sleep, clock=clock.read
        )
    return answer, shown[0]


def test_A22_polls_come_every_five_seconds_where_the_server_says_nothing(server: FakeAuthorizationServer) -> None:
    server.polls, clock = [PENDING, PENDING, (200, TOKENS)], Clock()
    answer, code = sign_in(server, clock)
    assert (answer["access_token"], code.user_code) == ("at", "ABCD")
    assert (clock.slept, server.polled) == ([5, 5, 5], 3)
    assert server.forms[0] == {"client_id": "cli", "scope": "openid", "resource": "https://api.example/"}
    assert server.forms[1] == {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": "dc",
        "client_id": "cli",
        "resource": "https://api.example/",
    }


def test_A22_the_servers_interval_counts_and_slow_down_adds_five_seconds_for_good(
    server: FakeAuthorizationServer,
) -> None:
    server.start = {"interval": 2}
    server.polls, clock = [PENDING, SLOW_DOWN, PENDING, SLOW_DOWN, (200, TOKENS)], Clock()
    sign_in(server, clock)
    assert clock.slept == [2, 2, 7, 7, 12]


def test_A22_an_interval_of_nothing_does_not_flood_the_server(server: FakeAuthorizationServer) -> None:
    server.start, server.polls, clock = {"interval": 0}, [PENDING, (200, TOKENS)], Clock()
    sign_in(server, clock)
    assert clock.slept == [1, 1]


def test_A22_polling_stops_when_the_code_has_expired(server: FakeAuthorizationServer) -> None:
    server.start, server.polls, clock = {"expires_in": 21}, [PENDING], Clock()
    with pytest.raises(ApplianceError, match="expired; run appliance login again"):
        sign_in(server, clock)
    assert (server.polled, clock.now) == (4, 20)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("access_denied", "was refused"),
        ("expired_token", "has expired"),
        ("invalid_grant", "not valid any more"),
        ("invalid_client", "does not know this client"),
        ("unauthorized_client", "may not use the device flow"),
        ("something_\x1b[2Jnew", r"something_\[2Jnew"),
    ],
)
def test_A22_every_other_error_ends_it_at_once(server: FakeAuthorizationServer, error: str, told: str) -> None:
    server.polls, clock = [PENDING, (400, {"error": error})], Clock()
    with pytest.raises(ApplianceError, match=told):
        sign_in(server, clock)
    assert server.polled == 2


def test_A22_trouble_at_the_server_doubles_the_interval(server: FakeAuthorizationServer) -> None:
    server.polls, clock = [(503, b"busy"), (429, b"slow"), (200, TOKENS)], Clock()
    sign_in(server, clock)
    assert clock.slept == [5, 10, 20]


@pytest.mark.parametrize(
    "poll",
    [
        (200, b"<html>"),
        (200, [1]),
        (404, b"no"),
        (200, {"token_type": "Bearer"}),
        (200, TOKENS | {"access_token": 1}),
        (200, TOKENS | {"token_type": "DPoP"}),
        (200, TOKENS | {"expires_in": "soon"}),
        (200, TOKENS | {"expires_in": [1]}),
        (200, b'{"access_token": "at", "token_type": "Bearer", "expires_in": 1e999}'),
        (200, b'{"a":' * 5000),
    ],
    ids=lambda poll: str(poll)[:60],
)
def test_A22_an_unusable_answer_is_one_line(server: FakeAuthorizationServer, poll: tuple[int, Any]) -> None:
    server.polls = [poll]
    with pytest.raises(ApplianceError, match=r"unusable|no bearer token"):
        sign_in(server, Clock())


@pytest.mark.parametrize(
    "start",
    [
        {"user_code": "\x1b[2J"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": "https://x/\x07"},
        {"expires_in": "soon"},
        {"device_code": ""},
        {"device_code": None},
        {"interval": "5"},
    ],
    ids=str,
)
def test_A22_a_code_that_cannot_be_shown_is_refused(server: FakeAuthorizationServer, start: dict[str, Any]) -> None:
    server.start = start
    with pytest.raises(ApplianceError, match="cannot be read"):
        sign_in(server, Clock())
    assert server.polled == 0


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"issuer": "https://another.example"}, "another issuer"),
        ({"device_authorization_endpoint": None}, "no device flow"),
        ({"token_endpoint": "http://id.example/token"}, "must begin with https"),
        ({"token_endpoint": 1}, "cannot be read"),
    ],
)
def test_metadata_that_do_not_fit_end_the_sign_in(
    server: FakeAuthorizationServer, metadata: dict[str, Any], told: str
) -> None:
    server.metadata = metadata
    with pytest.raises(ApplianceError, match=told):
        sign_in(server, Clock())
    assert server.forms == []


@pytest.mark.parametrize("issuer", ["http://id.example", "id.example", "ftp://127.0.0.1", "https://", ""])
def test_tokens_go_by_https_only(issuer: str) -> None:
    with pytest.raises(ApplianceError, match="https"):
        Issuer(issuer, "cli")


def a_token(server: str = "https://box.example") -> Tokens:
    return Tokens(server=server, issuer="https://id.example", client_id="cli", access_token="at")


def test_A22_only_this_user_can_read_the_token_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = TokenFiles().save(a_token())
    assert path.is_relative_to(tmp_path / "appliance")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert TokenFiles().load("https://box.example") == a_token()
    path.chmod(0o644)
    with pytest.raises(ApplianceError, match="chmod 600"):
        TokenFiles().load("https://box.example")


def test_tokens_of_several_servers_lie_side_by_side(tmp_path) -> None:
    files = TokenFiles(tmp_path / "tokens")
    assert files.servers() == []
    for server in ("https://a.example", "https://b.example/base"):
        files.save(a_token(server))
    assert sorted(files.servers()) == ["https://a.example", "https://b.example/base"]
    files.remove("https://a.example")
    assert files.load("https://a.example") is None
    files.path("https://a.example").write_text("{")
    files.path("https://a.example").chmod(0o600)
    with pytest.raises(ApplianceError, match="damaged; remove it"):
        files.load("https://a.example")


def test_a_token_file_that_cannot_be_used_is_named_whatever_is_done_with_it(tmp_path) -> None:
    files = TokenFiles(tmp_path)
    path = files.path("https://box.example")
    path.mkdir()
    for use in (files.load, files.remove, lambda server: files.save(a_token(server))):
        with pytest.raises(ApplianceError, match="cannot be used: Is a directory; mend it") as refused:
            use("https://box.example")
        assert str(path) in str(refused.value)
