"""Prompt-cache safety: the salt is ours, nobody can guess, choose or share it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from engine_upstream import UpstreamServer
from hypothesis import given
from hypothesis import strategies as st
from loopback import http_client

from appliance.config import parse
from appliance.context import AppContext
from appliance.plugin import Call, ChatRequest, CompletionRequest, EmbeddingRequest, Message, ModelSpec, Principal
from appliance.testing import make_app, serving
from appliance.testing.contracts.engine import collect
from appliance_engines._cache_salt import CacheSalt, framed
from appliance_engines._openai_http import encode_request
from appliance_engines.openai import make_engine
from appliance_engines.vllm import VllmEngine

KEY = bytes(range(32))
A, B = Principal(id="key:1", tenant="a", user="u1"), Principal(id="key:2", tenant="b", user="u1")
A2 = Principal(id="key:3", tenant="a", user="u2")
texts = st.lists(st.text(max_size=6), max_size=4)


def salt(partition: str = "tenant") -> CacheSalt:
    return CacheSalt(lambda: KEY, partition)  # type: ignore[arg-type]


def chat(principal: Principal = A, **fields: object) -> Call:
    request = ChatRequest(model="m", messages=[Message(role="user", content="hi")], **fields)
    return Call(id="r", operation="chat", model="m", request=request, principal=principal)


def sent(call: Call, made: CacheSalt | None) -> dict[str, object]:
    body: dict[str, object] = json.loads(encode_request(call, "m", made))
    return body


@given(one=texts, other=texts)
def test_B10_different_parts_never_frame_to_the_same_bytes(one: list[str], other: list[str]) -> None:
    assert (framed(*one) == framed(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["a", ""], ["a"]),
        (["\u212a"], ["K"]),  # the Kelvin sign, which NFKD makes a K
        (["\u00e9"], ["e\u0301"]),
        (["k-"], ["k45"]),
        (["a\x00"], ["a", ""]),
    ],
)
def test_B10_what_others_took_for_the_same_is_not(one: Sequence[str], other: Sequence[str]) -> None:
    assert framed(*one) != framed(*other)


@given(
    one=st.tuples(st.text(min_size=1), st.none() | st.text(min_size=1)),
    other=st.tuples(st.text(min_size=1), st.none() | st.text(min_size=1)),
)
def test_B8_tenants_never_share_a_salt_whatever_they_send(one: tuple, other: tuple) -> None:
    salts = [salt().of(Principal(id="p", tenant=tenant), given) for tenant, given in (one, other)]
    assert (salts[0] == salts[1]) == (one == other)


def test_B8_one_tenant_has_one_salt_and_with_users_each_has_its_own() -> None:
    assert salt().of(A) == salt().of(A2) != salt().of(B)
    by_user = salt("user")
    assert len({by_user.of(A), by_user.of(A2), by_user.of(B), salt().of(A)}) == 4
    assert by_user.of(A) == by_user.of(msgspec.structs.replace(A, id="key:another of the same user"))


def test_B8_the_clients_own_salt_is_mixed_in_and_never_sent_as_it_is() -> None:
    plain, own = sent(chat(), salt())["cache_salt"], sent(chat(cache_salt="mine"), salt())["cache_salt"]
    assert plain != own
    assert own not in ("mine", sent(chat(B, cache_salt="mine"), salt())["cache_salt"])
    # Naming another tenant's salt does not give it.
    other = sent(chat(B), salt())["cache_salt"]
    assert sent(chat(cache_salt=other), salt())["cache_salt"] != other


def test_B8_every_kind_of_call_is_salted() -> None:
    requests = [
        ("completion", CompletionRequest(model="m", prompt="hi")),
        ("embeddings", EmbeddingRequest(model="m", input="hi")),
    ]
    for operation, request in requests:
        call = Call(id="r", operation=operation, model="m", request=request, principal=A)
        assert sent(call, salt())["cache_salt"] == salt().of(A)


def test_B8_without_salts_the_clients_goes_nowhere() -> None:
    assert "cache_salt" not in sent(chat(cache_salt="mine"), None)
    assert "cache_salt" not in sent(chat(), None)


def test_B8_no_field_that_configuration_passes_on_overrides_the_salt() -> None:
    assert sent(chat(extra={"cache_salt": "mine"}), salt())["cache_salt"] == salt().of(A)


def test_a_salt_is_what_vllm_takes() -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", salt().of(A, "x" * 1024))


@pytest.mark.parametrize("partition", ["off", "tenant"])
async def test_a_remote_server_gets_a_salt_only_where_it_is_asked_for(
    upstream: UpstreamServer, tmp_path: Path, partition: str
) -> None:
    context = AppContext(parse("data_dir: data", folder=tmp_path, environ={}), None)  # type: ignore[arg-type]
    options = {"base_url": upstream.base_url, "cache_salt": partition}
    engine = make_engine(ModelSpec(name="m", where="models[0]", options=options), context)
    await collect(await engine.generate(chat()))
    await engine.start()
    await collect(await engine.generate(chat()))
    await engine.stop()
    salts = [exchange.body.get("cache_salt") for exchange in upstream.exchanges if exchange.body]
    assert len(salts) == 2
    assert salts[0] == salts[1]
    assert (salts[0] is None) == (partition == "off")


async def test_B8_a_field_that_configuration_passes_on_is_no_way_round(
    upstream: UpstreamServer, tmp_path: Path
) -> None:
    model = {"name": "m", "engine": "openai", "pass_fields": ["cache_salt", "x_new"]}
    config = {"plugins": ["openai"], "models": [model | {"options": {"base_url": upstream.base_url}}]}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "cache_salt": "mine", "x_new": 1}
    async with serving(make_app(config, folder=tmp_path)) as url, http_client(base_url=url) as client:
        assert (await client.post("/v1/chat/completions", json=body | {"stream": True})).status_code == 200
        refused = await client.post("/v1/chat/completions", json=body | {"cache_salt": "x" * 1025})
    assert upstream.exchanges[-1].body["x_new"] == 1
    assert "cache_salt" not in upstream.exchanges[-1].body
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")


# -- the real engine -----------------------------------------------------------------------------------------------


async def hits(engine: VllmEngine) -> int:
    """Tokens that vLLM took from its prefix cache since it started."""
    assert engine._probe is not None
    text = (await (await engine._probe.request("GET", "/metrics")).read()).decode()
    return sum(int(float(n)) for n in re.findall(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)$", text, re.MULTILINE))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="session")
async def test_B8_the_same_tenant_hits_the_cache_and_another_does_not(vllm_engine: VllmEngine) -> None:
    prompt = " ".join(f"Item {number} is in room {number * 7 % 100}." for number in range(40))

    async def hit_by(principal: Principal, **fields: object) -> int:
        before = await hits(vllm_engine)
        request = CompletionRequest(model="smollm2", prompt=prompt, max_tokens=1, temperature=0.0, **fields)
        call = Call(id="r", operation="completion", model="smollm2", request=request, principal=principal)
        await collect(await vllm_engine.generate(call))
        return await hits(vllm_engine) - before

    assert await hit_by(A) == 0
    first = await hit_by(A)
    assert first > 100
    assert await hit_by(A2) == first
    assert await hit_by(B) == 0
    assert await hit_by(B) == first
    assert await hit_by(A, cache_salt="mine") == 0
    assert await hit_by(B, cache_salt="mine") == 0
    assert await hit_by(A, cache_salt="mine") == first
