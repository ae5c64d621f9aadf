"""Tokens of any size are refused for what they cost to measure (A8; Authlib once took 4 GB for one, CVE-2025-61920)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from loopback import connection, parse_answer, request_bytes
from oauth_kit import b64, bearer, issuing, key, signed, trusting
from served import Served

from appliance.plugin import Unauthenticated

CONFIG = {
    "plugins": ["scripted", "api_keys", "oauth", "rbac"],
    "models": [{"name": "m", "engine": "scripted"}],
    "plugin": {"oauth": {"issuers": [{"issuer": "http://127.0.0.1:9", "audience": "rag-api", "loopback_http": True}]}},
}
MIB = 2**20
LIMIT = 0.005
"""Seconds within which a token of a megabyte is refused."""
HUGE = {
    "no token at all": "a" * MIB,
    "a huge header": f"{b64({'alg': 'ES256', 'p': 'x' * 780_000})}.e30.e30",
    "a header that unpacks": f"{b64({'alg': 'RSA-OAEP', 'enc': 'A256GCM', 'zip': 'DEF'})}.{'A' * MIB}.e30.e30.e30",
    "dots": "." * MIB,
}


async def cost(check: Callable[[], Awaitable[None]]) -> float:
    """Seconds of CPU time; the cheapest of twenty, for others may have met a busy machine."""
    times = []
    for _ in range(20):
        began = time.thread_time()
        await check()
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize("case", HUGE)
async def test_A8_a_token_of_a_megabyte_costs_no_more_than_a_small_bad_one(case):
    async with issuing() as issuer, trusting(issuer.settings()) as tokens:
        await tokens.authenticate(bearer(issuer.token()))  # the keys are there

        def refused(token: str) -> Callable[[], Awaitable[None]]:
            async def check() -> None:
                with pytest.raises(Unauthenticated):
                    await tokens.authenticate(bearer(token))

            return check

        forged = signed(key("stranger"), issuer.claims(), kid=issuer.key.kid)
        spent = await cost(refused(HUGE[case]))
        assert spent < 2 * await cost(refused(forged))
        assert spent < LIMIT


@pytest.mark.slow
async def test_A8_memory_stays_flat_while_huge_tokens_come(tmp_path: Path):
    """Over HTTP a megabyte is refused with its head (431), and the largest token that fits into one with 401."""
    config = tmp_path / "appliance.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    with Served(config) as served:

        async def send(token: str) -> int | None:
            request = request_bytes("/v1/models", b"", method="GET", headers=bearer(token) | {"connection": "close"})
            async with asyncio.timeout(30), connection(served.url) as (reader, writer):
                with suppress(ConnectionError):  # it closes before everything is sent
                    writer.write(request)
                    answer = await reader.read()
                    return parse_answer(answer)[0] if answer else None
            return None

        async def round_(times: int) -> set[int | None]:
            found: set[int | None] = set()
            for _ in range(times):
                found |= {await send(token) for token in HUGE.values()}
                assert await send("a" * 60_000) == 401
            return found

        await round_(10)
        before = peak(served)
        assert await round_(60) <= {431, None}  # None: the connection was cut before the answer was read
        assert peak(served) - before < 16 * MIB


def peak(served: Served) -> int:
    """The most memory that the server has ever had, in bytes."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
