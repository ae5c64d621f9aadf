"""Runs an appliance where the addresses that nobody may be led to exist, and answer: prints what was called there.

    unshare --map-root-user --net python inside.py FOLDER

The network has no way out; its canary listens at a cloud's metadata service and in private networks.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from loopback import NOBODY
from oauth_kit import bearer, issuing, trusting

from appliance.egress import Egress, EgressError
from appliance.errors import ApplianceError
from appliance.knowledge.sources.source import SourceError
from appliance.knowledge.sources.urls import UrlSource
from appliance.storage.blobs import BlobStore
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

ADDRESSES = ("127.0.0.1", "169.254.169.254", "100.100.100.200", "10.0.0.1", "172.16.0.1", "192.168.1.1")
PORTS = (80, 443, 8080)
_SIOCSIFADDR, _SIOCSIFFLAGS, _UP = 0x8916, 0x8914, 1 | 0x40
TRICKS = {
    "scheme": ("http://", "https://", "//"),
    "before": ("", "a:b@", "ok.example@", "ok.example#@"),
    "host": (
        *ADDRESSES, "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[::ffff:a00:1]",
        "127.1", "localhost", "rebound.example",
    ),
    "after": ("/latest", ":8080/", "\\.ok.example/"),
}  # fmt: skip
URLS = ["".join(parts) for parts in itertools.product(*TRICKS.values())]


def set_up_network() -> None:
    """Give the loopback all the addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for i, address in enumerate(ADDRESSES):
            name = f"lo:{i}".encode() if i else b"lo"
            given = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(any_socket, _SIOCSIFADDR, given)
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", name, _UP))


def rebind_names() -> None:
    """Let every name lead to the metadata service."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **given: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return original("169.254.169.254" if str(name).endswith(".example") else host, port, *args, **given)

    socket.getaddrinfo = getaddrinfo


@asynccontextmanager
async def canary() -> AsyncIterator[Counter[str]]:
    """Counts who is called."""
    hits: Counter[str] = Counter()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hits[writer.get_extra_info("sockname")[0]] += 1
        writer.close()

    servers = [await asyncio.start_server(note, "0.0.0.0", port) for port in PORTS]
    yield hits
    for server in servers:
        server.close()


def bodies(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Every field of a request that holds a URL, or that somebody could take for one."""
    parts = [{"type": kind, kind: {"url": url}} for kind in ("image_url", "audio_url", "video_url")] + [
        {"type": "file", "file": {"file_data": url, "filename": url}}
    ]
    items = [{"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}]
    image = {"type": "image", "source": {"type": "url", "url": url}}
    document = {"type": "document", "source": {"type": "url", "url": url}}
    tool = {"type": "mcp", "server_label": "a", "server_url": url}
    said = [{"role": "user", "content": "hi"}]
    return [
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": parts}], "user": url}),
        *(("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [item]}]}) for item in items),
        ("/v1/responses", {"model": "m", "input": "hi", "tools": [tool]}),
        *(
            ("/v1/messages", {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [block]}]})
            for block in (image, document)
        ),
        ("/v1/embeddings", {"model": "words", "input": url}),
        ("/v1/moderations", {"input": [parts[0]]}),
        ("/v1/vector_stores", {"name": url, "metadata": {"url": url}}),
        ("/v1/chat/completions", {"model": "m", "messages": said, "metadata": {"callback": url}}),
    ]  # fmt: skip


async def over_http(folder: Path, statuses: Counter[int]) -> None:
    """All of them, to an app with every plugin that takes part in a request."""
    plugins = {
        "scripted": ScriptedPlugin([Emit("fine")]),
        "scripted_embedder": ScriptedEmbedder(),
    }
    config = {
        "plugins": ["memory", "documents", "tokens", "wordlist", "limits", "usage"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "memory"},
    }
    async with (
        serving(make_app(config, plugins, folder=folder)) as base,
        httpx.AsyncClient(base_url=base, timeout=60, verify=NOBODY, trust_env=False) as client,
    ):
        for url in URLS:
            for path, body in bodies(url):
                statuses[(await client.post(path, json=body)).status_code] += 1


async def by_redirect(folder: Path) -> None:
    """A page on the list leads on to each."""
    blobs = BlobStore(folder / "files")
    blobs.start()
    waiting = iter(URLS)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nlocation: {next(waiting)}\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with server:
        page = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page"
        source = UrlSource([page], ["*"], 1000)
        for _ in URLS:
            try:
                with blobs.writer() as writer:
                    await source.fetch(page, "", writer)
            except SourceError:
                continue
            raise AssertionError("a forbidden page was fetched")
        await source.aclose()


async def by_metadata() -> None:
    """An identity provider names each as the place of its keys."""
    async with issuing() as issuer:
        for url in (url for url in URLS[::5] if "127.0.0.1" not in url):  # its own host, where its keys may lie
            issuer.metadata(jwks_uri=url)
            async with trusting(issuer.settings(allowed_hosts=["*"])) as tokens:
                try:
                    await tokens.authenticate(bearer(issuer.token()))
                except ApplianceError:
                    continue
                raise AssertionError("keys were taken from elsewhere")


async def directly() -> None:
    """The guarded client is asked for each, with every public host allowed."""
    egress = Egress(["*"], loopback_http=True, timeout=5)
    for url in URLS:
        try:
            await egress.get(url)
        except EgressError:
            continue
        raise AssertionError(f"{url} was called")
    await egress.close()


async def main(folder: Path) -> None:
    """Print the hits of a control, then of everything else, and what was tried."""
    statuses: Counter[int] = Counter()
    async with canary() as hits:
        for address, port in itertools.product(ADDRESSES, PORTS):
            reader, writer = await asyncio.open_connection(address, port)
            await reader.read()
            writer.close()
        control = dict(hits)
        hits.clear()
        await over_http(folder, statuses)
        await directly()
        await by_redirect(folder)
        await by_metadata()
        print(json.dumps({"urls": len(URLS), "control": control, "hits": hits, "statuses": statuses}))


if __name__ == "__main__":
    set_up_network()
    rebind_names()
    asyncio.run(main(Path(sys.argv[1])))
