"""Whose address a request has: only what a trusted proxy wrote itself is believed."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline import Everything, Keys, provides

from appliance.config import ConfigError, ServerConfig, parse
from appliance.http.addresses import client_address
from appliance.plugin import ORIGIN, hookimpl

PROXIES = ("10.0.0.0/8", "fd00::/8")


def found(peer: str | None, *lines: str, name: str = "x-forwarded-for", **settings) -> str:
    server = ServerConfig(**{"trusted_proxies": PROXIES, "forwarded_header": name, **settings})
    headers = [(name.encode(), line.encode("latin-1")) for line in lines]
    return client_address({"client": (peer, 4711) if peer else None, "headers": headers}, server)


@pytest.mark.parametrize(
    ("peer", "lines", "address"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),  # what the client wrote itself is left of that
        ("10.0.0.1", ["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9", "10.0.0.3, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:DB8::1]:4711"], "2001:db8::1"),
        ("fd00::1", ["2001:db8:0::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.9\x00"], "10.0.0.1"),
        ("203.0.113.9", ["1.1.1.1"], "203.0.113.9"),
        ("127.0.0.1", ["1.1.1.1"], "127.0.0.1"),
        (None, ["1.1.1.1"], ""),
    ],
)
def test_B14_the_nearest_that_no_stranger_named(peer, lines, address):
    assert found(peer, *lines) == address


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        (["for=203.0.113.9"], "203.0.113.9"),
        (['For="[2001:db8::1]:4711";proto=https;by=10.0.0.1'], "2001:db8::1"),
        (["proto=http;for=1.1.1.1, proto=https;for=203.0.113.9;host=a.example"], "203.0.113.9"),
        (["for=1.1.1.1", "for=203.0.113.9"], "203.0.113.9"),
        (["for=203.0.113.9, for=10.0.0.2"], "203.0.113.9"),
        (["for=_hidden"], "10.0.0.1"),
        (["for=unknown"], "10.0.0.1"),
        (["proto=https"], "10.0.0.1"),
        (['for="1.1.1.1, for=203.0.113.9'], "10.0.0.1"),  # a quote left open, to swallow what the proxy appends
        (['for="a, for="[2001:db8::1]"'], "10.0.0.1"),
        (['host="x;for=1.1.1.1";for=203.0.113.9'], "203.0.113.9"),
        (['host="x, for=1.1.1.1"; for=203.0.113.9'], "10.0.0.1"),
    ],
)
def test_B14_forwarded_is_read_by_its_grammar_or_not_at_all(lines, address):
    assert found("10.0.0.1", *lines, name="forwarded") == address


def test_B14_the_header_that_is_not_configured_is_what_a_client_sent():
    scope = {"client": ("10.0.0.1", 1), "headers": [(b"forwarded", b"for=1.1.1.1"), (b"x-real-ip", b"1.1.1.1")]}
    assert client_address(scope, ServerConfig(trusted_proxies=PROXIES)) == "10.0.0.1"


@given(
    line=st.text(st.characters(max_codepoint=255), max_size=60), name=st.sampled_from(["x-forwarded-for", "forwarded"])
)
def test_B14_no_header_of_a_client_changes_what_a_proxy_appends(line, name):
    """A client's own line comes first; the proxy's after it."""
    appended = "203.0.113.9" if name == "x-forwarded-for" else "for=203.0.113.9"
    assert found("10.0.0.1", line, appended, name=name) == "203.0.113.9"


@given(
    line=st.text(st.characters(max_codepoint=255), max_size=60), name=st.sampled_from(["x-forwarded-for", "forwarded"])
)
def test_B14_an_untrusted_peer_says_nothing(line, name):
    assert found("198.51.100.7", line, name=name) == "198.51.100.7"


@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxy.example", "", "*"])
def test_what_is_no_network_is_a_mistake(tmp_path, network):
    with pytest.raises(ConfigError, match=r"server\.trusted_proxies\[0\]"):
        parse(f"server: {{trusted_proxies: ['{network}']}}", folder=tmp_path)


# -- in a served app ---------------------------------------------------------------------------------------------

SPOOFED = {
    "x-forwarded-for": "203.0.113.9",
    "forwarded": "for=203.0.113.9",
    "x-real-ip": "203.0.113.9",
    "x-forwarded-host": "evil.example",
    "x-forwarded-proto": "https",
    "x-user-id": "root",
    "x-user-role": "admin",
    "x-forwarded-user": "root",
    "x-client-cert": "forged",
    "baggage": "user=root",
}


class Witness:
    """Notes what a plugin sees of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    @hookimpl
    def appliance_recorders(self):
        return [self]

    async def record(self, record) -> None:
        call = record.call
        self.seen.append((ORIGIN.get().address, call.principal, call.headers.get("x-client-cert")))


@pytest.mark.parametrize(("trusted", "address"), [([], "127.0.0.1"), (["127.0.0.1"], "203.0.113.9")])
async def test_B14_spoofed_headers_change_neither_address_nor_identity(box, caplog, trusted, address):
    witness = Witness()
    config = {
        "server": {"trusted_proxies": trusted, "client_certificate_header": "X-Client-Cert"},
        "plugins": ["access_log"],
    }
    keys = provides(authenticators=[Keys()], authorizers=[Everything()])
    caplog.set_level(logging.INFO, "appliance.access")
    async with box(None, config, keys=keys, witness=witness) as b:
        for headers in ({}, SPOOFED):
            sent = {"authorization": "Bearer good", **headers}
            answer = await b.client.post(
                "/v1/chat/completions",
                json={"model": "m", "messages": [{"role": "user", "content": "x"}]},
                headers=sent,
            )
            assert answer.status_code == 200
    plain, spoofed = witness.seen
    assert plain == ("127.0.0.1", Keys().keys["good"], None)
    assert spoofed == (address, Keys().keys["good"], "forged" if trusted else None)
    lines = [record.getMessage() for record in caplog.records if record.name == "appliance.access"]
    assert [f"address={each} " in line for each, line in zip(("127.0.0.1", address), lines, strict=True)] == [
        True,
        True,
    ]
