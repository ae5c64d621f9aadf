"""Outgoing calls: to whom, at which address, and how much comes back (D1)."""

import asyncio
import contextlib
import datetime
import ipaddress
import itertools
import socket
import ssl
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.egress import Egress, EgressError, EgressRefused, egress_hosts, permitted
from appliance.errors import ConfigError

PUBLIC = ["8.8.8.8", "1.1.1.1", "2001:4860:4860::8888", "64:ff9b::808:808", "::ffff:8.8.8.8"]
INTERNAL = ["10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.9.9.9", "100.64.0.1"]
INTERNAL += ["::1", "fd12::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b::7f00:1", "::ffff:127.0.0.1"]
NEVER = ["0.0.0.0", "169.254.169.254", "169.254.1.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1"]
NEVER += ["100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fe80::1", "ff02::1", "::", "fec0::1", "192.0.0.192"]
NEVER += ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:a9fe::1", "::169.254.169.254"]
NEVER += ["64:ff9b:1::a00:1", "100::1", "2001:db8::1", "198.18.0.1"]


@pytest.mark.parametrize("address", PUBLIC)
def test_D1_public_addresses_may_be_called(address):
    assert permitted(ipaddress.ip_address(address), named=False)


@pytest.mark.parametrize("address", INTERNAL)
def test_D1_internal_addresses_only_for_hosts_that_the_operator_wrote_out(address):
    assert permitted(ipaddress.ip_address(address), named=True)
    assert not permitted(ipaddress.ip_address(address), named=False)


@pytest.mark.parametrize("address", NEVER)
def test_D1_some_addresses_are_never_called(address):
    assert not permitted(ipaddress.ip_address(address), named=True)


REFUSED = [
    "http://ok.example/",
    "https://evil.example/",
    "https://ok.example.evil.example/",
    "https://okexample/",
    "https://user@ok.example/",
    "https://ok.example@evil.example/",
    "https://ok.example\\@evil.example/",
    "https://evil.example\\.ok.example/",
    "https://evil.example#ok.example",
    "https://evil.example?ok.example",
    "https://ok.example /",
    "https://ok.example\t/",
    "https://ok.example\n.evil.example/",
    "https://ok.ex\u0430mple/",
    "https://\uff4f\uff4b.example/",
    "https:///path",
    "https://",
    "ok.example",
    "//ok.example/",
    "ftp://ok.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[ok.example]/",
    "https://127.0.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://ok.example:99999/",
    "https://example/",
    "https://a.wild.example.evil.example/",
    "https://wild.example/",
    "",
]


@pytest.mark.parametrize("url", REFUSED)
def test_D1_only_listed_hosts_may_be_called_by_https(url):
    with pytest.raises(EgressRefused):
        Egress(["ok.example", "*.wild.example"]).check(url)


TRICKS = {
    "scheme": ["https://", "https:", "https:/", "https:///", "HTTPS://", "http://", "//", "https:\\\\", "https://\t"],
    "before": ["", "ok.example@", "ok.example:443@", "a:b@", "ok.example%40", "ok.example\\@", "ok.example#@", "%00"],
    "host": ["ok.example", "OK.example.", "evil.example", "169.254.169.254", "0xa9fea9fe", "2852039166", "[::1]"],
    "after": [
        "",
        "/",
        ":443/",
        ":80@evil.example/",
        "\\.evil.example/",
        "%2eevil.example/",
        "%00.evil.example",
        "?@ok",
    ],
}


def test_D1_what_is_let_pass_is_the_listed_host_to_every_reader_of_urls():
    """All combinations of what confused other clients: 4,032 URLs."""
    egress = Egress(["ok.example"])
    passed = []
    for parts in itertools.product(*TRICKS.values()):
        url = "".join(parts)
        with contextlib.suppress(EgressRefused):
            egress.check(url)
            passed.append(url)
    assert passed
    for url in passed:
        hosts = {urlsplit(url).hostname, httpx.URL(url).host, httpx2.URL(url).host}
        assert {(host or "").rstrip(".") for host in hosts} == {"ok.example"}, url


@pytest.mark.parametrize("url", ["https://ok.example", "https://OK.example./x?y", "https://a.b.wild.example:8443/"])
def test_D1_listed_hosts_may_be_called(url):
    Egress(["ok.example", "*.wild.example"]).check(url)


def test_D1_nothing_may_be_called_without_a_list():
    with pytest.raises(EgressRefused):
        Egress([]).check("https://ok.example/")


def test_D1_plain_http_only_to_this_machine_and_only_when_asked_for():
    Egress(["127.0.0.1", "ok.example"], loopback_http=True).check("http://127.0.0.1:8/")
    for url, allowed in [("http://ok.example/", True), ("http://127.0.0.1/", False)]:
        with pytest.raises(EgressRefused):
            Egress(["127.0.0.1", "ok.example"], loopback_http=allowed).check(url)


def test_hosts_of_urls_are_those_that_are_compared():
    assert list(egress_hosts(["https://A.example:1/x", None, "http://[::1]:2"])) == ["a.example", "::1"]


@asynccontextmanager
async def serving(answer: bytes, *, tls: ssl.SSLContext | None = None, hang: bool = False, seen: list | None = None):
    """A server on loopback that says the same to everybody, and then may wait until they go; yields its port."""

    async def handle(reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if seen is not None:
                seen.append(head.decode())
            writer.write(answer)
            await writer.drain()
            if hang:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def reply(body: bytes, status: int = 200, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]).encode() + body


@pytest.fixture
async def egress():
    made = Egress(["127.0.0.1", "named.example"], loopback_http=True, max_bytes=10_000, timeout=20)
    yield made
    await made.close()


async def test_the_body_of_a_200_comes_back(egress):
    async with serving(reply(b"fine")) as port:
        assert await egress.get(f"http://127.0.0.1:{port}/x") == b"fine"


@pytest.mark.parametrize("status", [204, 301, 302, 307, 404, 500])
async def test_D1_everything_else_is_an_error_and_redirects_are_not_followed(egress, status):
    seen: list[str] = []
    async with serving(reply(b"", status, "location: /next"), seen=seen) as port:
        with pytest.raises(EgressError, match=str(status)):
            await egress.get(f"http://127.0.0.1:{port}/x")
    assert len(seen) == 1


async def test_D1_a_body_over_the_limit_is_not_read_announced_or_not(egress):
    chunked = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n" + b"2000\r\n" + b"x" * 8192 + b"\r\n" * 1
    endless = chunked + b"2000\r\n" + b"x" * 8192 + b"\r\n0\r\n\r\n"
    for answer in (reply(b"x" * 10_001), endless):
        async with serving(answer) as port:
            with pytest.raises(EgressError, match="larger"):
                await egress.get(f"http://127.0.0.1:{port}/x")


GARBAGE = [
    b"",
    b"\x00" * 100,
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 200",
    b"HTTP/1.1 abc X\r\n\r\n",
    b"HTTP/1.1 200 X\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 X\r\ncontent-length: 1e9\r\n\r\n",
    b"HTTP/1.1 200 X\r\ncontent-length: 99\r\n\r\nshort",
    b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nx\r\n",
    b"HTTP/1.1 200 X\r\ntransfer-encoding: gzip\r\n\r\n",
    b"HTTP/1.1 200 X\r\nbad header\r\n\r\n",
    b"HTTP/1.1 200 X\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 10,
]


@pytest.mark.parametrize("answer", GARBAGE, ids=range(len(GARBAGE)))
async def test_D1_whatever_else_a_server_says_is_an_egress_error(egress, answer):
    egress.timeout = 1
    async with serving(answer) as port:
        with pytest.raises(EgressError):
            await egress.get(f"http://127.0.0.1:{port}/x")
        with pytest.raises(EgressError):
            await egress.get(f"https://127.0.0.1:{port}/x")


async def test_D1_a_compressed_answer_is_refused_unopened(egress):
    async with serving(reply(b"\x1f\x8b", 200, "content-encoding: gzip")) as port:
        with pytest.raises(EgressRefused, match="compressed"):
            await egress.get(f"http://127.0.0.1:{port}/x")


async def test_D1_a_slow_answer_ends_the_call_in_time(egress):
    egress.timeout = 0.2
    async with asyncio.timeout(20), serving(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nx", hang=True) as port:
        with pytest.raises(EgressError):
            await egress.get(f"http://127.0.0.1:{port}/x")


async def test_D1_a_host_that_nobody_answers_for_is_an_error_of_one_line(egress):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EgressError, match="cannot be reached"):
            await egress.get(f"http://127.0.0.1:{taken.getsockname()[1]}/x")
    with pytest.raises(EgressError, match="resolved"):
        await Egress(["no-such-host.invalid"]).addresses("no-such-host.invalid", 443)


def resolving(monkeypatch, answers: list[list[str]]) -> list[str]:
    """Let DNS give these addresses, call after call; the list it returns holds the hosts that were looked up."""
    asked: list[str] = []

    async def getaddrinfo(self, host, port, **_):
        if host not in ("named.example", "a.wild.example"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers.pop(0)]

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize("addresses", [["169.254.169.254"], ["8.8.8.8", "169.254.169.254"], ["224.0.0.1"]])
async def test_D1_a_name_that_leads_to_a_forbidden_address_is_not_called(egress, monkeypatch, addresses):
    resolving(monkeypatch, [addresses])
    with pytest.raises(EgressRefused):
        await egress.get("https://named.example/x")


async def test_D1_a_host_that_a_pattern_matches_may_not_be_inside(monkeypatch):
    resolving(monkeypatch, [["10.0.0.1"]])
    with pytest.raises(EgressRefused):
        await Egress(["*.wild.example"]).addresses("a.wild.example", 443)


def certificates(folder, *names: str) -> tuple[ssl.SSLContext, str]:
    """A TLS server's context for these names, and the file of the authority that signed for them."""
    signer = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(signer.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = signer.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(pem)
    (folder / "both.pem").write_bytes(secret + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context, str(folder / "ca.pem")


async def test_D1_rebinding_dns_the_connection_goes_to_the_address_that_was_checked(tmp_path, monkeypatch):
    asked = resolving(monkeypatch, [["127.0.0.1"], ["169.254.169.254"]])
    tls, ca = certificates(tmp_path, "named.example")
    seen: list[str] = []
    async with serving(reply(b"fine"), tls=tls, seen=seen) as port:
        egress = Egress(["named.example"], ca_file=ca)
        try:
            assert await egress.get(f"https://named.example:{port}/x") == b"fine"
            assert asked == ["named.example"], "the name is looked up once"
            assert f"host: named.example:{port}" in seen[0].lower()
        finally:
            await egress.close()


async def test_D1_a_certificate_for_another_name_or_of_nobody_known_is_refused(tmp_path, monkeypatch):
    resolving(monkeypatch, [["127.0.0.1"]] * 2)
    tls, ca = certificates(tmp_path, "other.example")
    async with serving(reply(b"fine"), tls=tls) as port:
        for ca_file in (ca, None):
            egress = Egress(["named.example"], ca_file=ca_file)
            with pytest.raises(EgressError, match="cannot be reached"):
                await egress.get(f"https://named.example:{port}/x")
            await egress.close()


async def test_a_server_that_does_not_shake_hands_is_given_up(egress):
    egress.timeout = 0.3
    async with serving(b"") as port:
        with pytest.raises(EgressError):
            await egress.get(f"https://127.0.0.1:{port}/x")


async def test_D1_the_environments_proxies_are_not_used(egress, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serving(reply(b"fine")) as port:
        assert await egress.get(f"http://127.0.0.1:{port}/x") == b"fine"


async def test_another_librarys_client_is_bound_to_the_same_rules(egress):
    async with serving(reply(b"fine")) as port, httpx2.AsyncClient(**egress.client_options()) as client:
        assert (await client.post(f"http://127.0.0.1:{port}/x", data={"a": "b"})).content == b"fine"
        with pytest.raises(EgressRefused):
            await client.get("https://evil.example/")


def test_a_file_of_authorities_that_is_none_is_told_at_the_start(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        Egress(["a.example"], ca_file=tmp_path / "ca.pem").client_options()
