"""A real vLLM with a real model that sees, where there is no network: pictures by URL reach it all the same (D2)."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from eventually import until
from loopback import assert_openai_error, http_client, text_of
from media_kit import APART, Host, as_data, hosting, reply, run_apart
from PIL import Image
from processes import processes_with
from tiny_idefics import OPTIONS, PICTURE_TOKENS, tiny_idefics

from appliance.testing import make_app, serving
from appliance_engines import vllm as module

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.own_vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")
# Its processes find one another over the loopback interface, which is down in a new network (netdevice(7)).
WITH_LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


def picture(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (60, 40), colour).save(out, "PNG")
    return out.getvalue()


RED, BLUE = picture("red"), picture("blue")


@shared
async def host() -> AsyncIterator[Host]:
    async with hosting() as made:
        made.answers |= {"/red.png": reply(RED), "/blue.png": reply(BLUE), "/broken.png": reply(RED[:50])}
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the appliance is; also the mark of vLLM's processes."""
    return tmp_path_factory.mktemp("pictures")


@shared
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An appliance whose vLLM runs in a network of its own, which leads nowhere."""
    if (await asyncio.to_thread(run_apart, "true")).returncode != 0:
        pytest.skip("this kernel gives no user a network apart (unshare --net)")
    await asyncio.to_thread(tiny_idefics, folder / "model")
    options = {**OPTIONS, "allowed_media_domains": ["127.0.0.1"], "env": {"APPLIANCE_TEST_MARK": str(folder)}}
    model = {"name": "m", "engine": "vllm", "source": "file:model", "options": options}
    before = [*APART, sys.executable, "-c", WITH_LOOPBACK]
    ordinary = module.command
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "command", lambda *args, **given: [*before, *ordinary(*args, **given)])
        app = make_app({"plugins": ["vllm", "sources"], "models": [model]}, folder=folder)
        async with serving(app) as url, http_client(base_url=url, timeout=60) as made:

            async def ready() -> bool:
                return (await made.get("/readyz")).status_code == 200

            await until(ready, 150)
            yield made


def chat(*urls: str, **fields: Any) -> dict[str, Any]:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *pictures]}]
    return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}


async def ask(client: httpx.AsyncClient, *urls: str) -> tuple[str, int]:
    """The answer, and how many tokens its prompt had."""
    reply = await client.post("/v1/chat/completions", json=chat(*urls))
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"], reply.json()["usage"]["prompt_tokens"]


def vllms(folder: Path) -> Sequence[int]:
    """Its processes, but for the guard, which only ends them."""
    return [pid for pid in processes_with(str(folder)) if b"guard.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_D2_from_where_vllm_runs_nothing_can_be_reached(client: httpx.AsyncClient, folder: Path) -> None:
    pids = vllms(folder)
    assert len(pids) >= 2
    for pid in pids:
        assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
        assert Path(f"/proc/{pid}/net/route").read_text().splitlines()[1:] == []


async def test_D2_a_picture_by_url_is_seen_as_the_same_picture_in_the_message_is(
    client: httpx.AsyncClient, host: Host
) -> None:
    _, words = await ask(client)
    red, blue = await ask(client, host.url("/red.png")), await ask(client, host.url("/blue.png"))
    assert red == await ask(client, as_data(content=RED))
    assert blue == await ask(client, as_data(content=BLUE))
    assert red[0] != blue[0], "the model sees what is in the picture"
    assert red[1] == blue[1] > words
    assert (await ask(client, host.url("/red.png"), as_data(content=BLUE)))[1] - red[1] == red[1] - words
    assert red[1] - words == PICTURE_TOKENS


async def test_D2_a_streamed_answer_and_the_other_apis_see_it_too(client: httpx.AsyncClient, host: Host) -> None:
    red, _ = await ask(client, as_data(content=RED))
    url = host.url("/red.png")
    streamed = await client.post("/v1/chat/completions", json=chat(url, stream=True))
    assert text_of(streamed.content) == red
    items = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    body = {"model": "m", "temperature": 0, "max_output_tokens": 8, "input": [{"role": "user", "content": items}]}
    answered = (await client.post("/v1/responses", json=body)).json()
    assert answered["output"][0]["content"][0]["text"] == red
    blocks = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": {"type": "url", "url": url}}]
    body = {"model": "m", "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": blocks}]}
    answered = (await client.post("/v1/messages", json=body)).json()
    assert answered["content"][0]["text"] == red


async def test_D2_what_may_not_be_fetched_or_is_no_picture_is_a_400(client: httpx.AsyncClient, host: Host) -> None:
    asked = len(host.asked)
    for url in ("https://other.example/a.png", "http://localhost/a.png", "file:///etc/passwd"):
        answer = await client.post("/v1/chat/completions", json=chat(host.url("/red.png"), url))
        assert_openai_error(answer, 400, "messages[0].content[2].image_url")
    assert len(host.asked) == asked
    for url in (host.url("/broken.png"), as_data(content=RED[:50]), as_data(content=b"")):
        assert_openai_error(await client.post("/v1/chat/completions", json=chat(url)), 400)
    assert (await ask(client, host.url("/red.png")))[0]
