"""A list of URLs as a source, fetched by the guarded client from a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from sources_kit import folder

from appliance.source_config import SourceConfig


class Web(ThreadingHTTPServer):
    """Pages by path: status, headers, body. ``asked`` holds the path and the validators of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def page(self, path: str, text: str, **headers: str) -> str:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = (200, {"content-type": "text/html"} | given, text.encode())
        return self.url + path

    def leads(self, path: str, to: str) -> str:
        self.pages[path] = (302, {"location": to}, b"")
        return self.url + path


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        asked = (self.headers["if-none-match"], self.headers["if-modified-since"])
        self.server.asked.append((self.path, *asked))
        status, headers, body = self.server.pages.get(self.path, (404, {}, b""))
        if asked[0] is not None and asked[0] == headers.get("etag"):
            status, body = 304, b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def source(*urls: str, **fields) -> SourceConfig:
    return folder("", **{"folder": None, "urls": urls, **fields})


def page(text: str) -> str:
    return f"<html><head><title>A page</title></head><body><p>{text}</p></body></html>"


async def test_pages_are_indexed_by_their_type_and_follow_the_list(web, kit) -> None:
    one = web.page("/guide/one", page("zebrafinch one"))
    two = web.page("/two.php?x=1", "zebrafinch,two\n", content_type="text/csv; charset=utf-8")
    three = web.page("/a%20b/th%C3%A9.txt", "zebrafinch three", content_type="text/plain")
    await kit.use(source(one, two, three))
    assert (await kit.sync()).added == 3
    found = await kit.texts()
    assert set(found) == {"one.html", "two.php.csv", "thé.txt"}
    assert "<p>" not in found["one.html"]
    await kit.use(source(one, three))
    assert (await kit.sync()).removed == 1
    assert set(await kit.texts()) == {"one.html", "thé.txt"}


async def test_a_page_that_has_not_changed_is_asked_for_by_its_validators_and_not_taken_again(web, kit) -> None:
    modified = "Mon, 30 Nov 2026 09:00:00 GMT"
    one = web.page("/one", page("zebrafinch one"), etag='"1"', last_modified=modified)
    await kit.use(source(one))
    await kit.sync()
    before = (await kit.rows())[one]
    assert (await kit.sync()).changed == 0
    assert web.asked == [("/one", None, None), ("/one", '"1"', modified)]
    assert (await kit.rows())[one].file_id == before.file_id
    web.page("/one", page("zebrafinch anew"), etag='"2"')
    assert (await kit.sync()).changed == 1
    assert "zebrafinch anew" in (await kit.texts())["one.html"]


async def test_a_page_without_validators_is_known_by_its_content(web, kit) -> None:
    one = web.page("/one", page("zebrafinch one"))
    await kit.use(source(one))
    await kit.sync()
    before = (await kit.rows())[one].file_id
    assert (await kit.sync()).changed == 0
    assert (await kit.rows())[one].file_id == before
    assert kit.blobs() == 1


async def test_what_is_out_of_reach_keeps_what_was_fetched_and_is_told(web, kit) -> None:
    one, two = web.page("/one", page("zebrafinch one")), web.page("/two", page("zebrafinch two"))
    await kit.use(source(one, two))
    await kit.sync()
    del web.pages["/one"]
    web.page("/two", page("zebrafinch anew"))
    report = await kit.sync()
    assert report.failures == {one: "answered 404; correct the URL or take it off the list"}
    assert set(await kit.texts()) == {"one.html", "two.html"}
    assert (await kit.rows())[one].error == report.failures[one]


async def test_D1_redirects_are_followed_only_to_hosts_that_may_be_called(web, kit) -> None:
    inside = web.leads("/inside", "/there")
    web.page("/there", page("zebrafinch there"))
    other = f"http://localhost:{web.server_port}/there"
    refused = {
        web.leads("/other", other): "the host localhost is not among those that may be called",
        web.leads("/cloud", "http://169.254.169.254/latest"): "169.254.169.254 is not among",
        web.leads("/private", "https://10.0.0.1/"): "10.0.0.1 is not among",
        web.leads("/local", "file:///etc/passwd"): "must name a host",
        web.leads("/odd", "http:\\\\evil.example"): "no backslash",
        web.leads("/broken", "http://["): "leads on to what is no URL",
        web.leads("/round", "/round"): "leads on more than 5 times",
    }
    await kit.use(source(inside, *refused))
    report = await kit.sync()
    assert report.failures.keys() == refused.keys()
    for url, words in refused.items():
        assert words in report.failures[url], report.failures[url]
    assert set(await kit.texts()) == {"there.html"}
    await kit.use(source(web.leads("/other", other), hosts=("localhost",)))
    report = await kit.sync(remove_all=True)
    assert (report.failures, set(await kit.texts())) == ({}, {"there.html"})


async def test_D1_a_redirect_reaches_no_other_service_of_this_machine(web, kit) -> None:
    with Web() as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = web.leads("/there", other.page("/metrics", page("zebrafinch")))
            await kit.use(source(url))
            assert "leads on to another port of 127.0.0.1" in (await kit.sync()).failures[url]
            assert other.asked == []
            by_tls = web.leads("/tls", f"https://127.0.0.1:{other.server_port}/metrics")
            await kit.use(source(by_tls))
            assert "leads on to another port of 127.0.0.1" in (await kit.sync()).failures[by_tls]
            await kit.use(source(url, hosts=("127.0.0.1",)))
            assert (await kit.sync()).failures == {}
        finally:
            other.shutdown()
            thread.join(10)


@pytest.mark.parametrize("url", ["http://example.org/a", "https://user:secret@example.org/a", "ftp://example.org/a"])
async def test_D1_a_url_that_may_not_be_called_is_told_before_anything_is_fetched(web, kit, url) -> None:
    await kit.use(source(web.page("/one", page("zebrafinch")), url))
    report = await kit.sync()
    assert report.error
    assert "secret" not in report.error
    assert web.asked == []


async def test_a_named_host_at_a_metadata_address_is_never_called(kit) -> None:
    await kit.use(source("https://169.254.169.254/latest"))
    (reason,) = (await kit.sync()).failures.values()
    assert "at an address that may not be called" in reason


async def test_a_page_over_the_bound_is_told(web, kit) -> None:
    await kit.use(source(web.page("/one", page("zebrafinch" * 200))))
    small = msgspec.structs.replace(kit.config.server, max_file_bytes=1000)
    kit.service._config = msgspec.structs.replace(kit.config, server=small)
    assert "larger than may be read" in next(iter((await kit.sync()).failures.values()))
    assert kit.blobs() == 0
