"""What it costs to find out who calls and whether they may: the guard of one request. In process, nothing on a wire.

python -m benchmarks.auth [--calls N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from appliance.http.guard import guard
from appliance.plugin import KeyStore, Unauthenticated
from appliance.runtime import Runtime
from appliance.testing import ScriptedPlugin, make_app

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the issuer that the tests have, too
PATH = "/v1/models"
Prepared: TypeAlias = tuple[Any, Sequence[Mapping[str, str]]]
"""A started app, and the headers of each call in turn."""
Case: TypeAlias = Callable[[Path, int], AbstractAsyncContextManager[Prepared]]


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auth", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each figure; a tenth of it for slow ones")
    calls = parser.parse_args(arguments).calls
    print("| caller | CPU us/request | us one by one, p50 | p99 |\n|---|--:|--:|--:|")
    for name, (case, share) in CASES.items():
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            figures = asyncio.run(_measure(case, Path(folder), int(calls * share)))
        print(f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |", flush=True)
    return 0


async def _measure(case: Case, folder: Path, calls: int) -> tuple[float, float, float]:
    """CPU time of a call of everything in this process, and how long calls take one by one."""
    async with case(folder, calls) as (app, sent):
        handler = next(route.route_handlers[0] for route in app.routes if route.path == PATH)
        scopes = [_scope(app, headers) for headers in sent]
        for scope in scopes[: calls // 10]:
            await _ask({**scope, "state": {}}, handler)
        times = []
        cpu = time.process_time()
        for i in range(calls // 10, calls):
            scope = {**scopes[i % len(scopes)], "state": {}}
            began = time.perf_counter()
            await _ask(scope, handler)
            times.append(time.perf_counter() - began)
        cpu = (time.process_time() - cpu) / len(times)
    return cpu * 1e6, statistics.median(times) * 1e6, statistics.quantiles(times, n=100)[98] * 1e6


async def _ask(scope: dict[str, Any], handler: BaseRouteHandler) -> None:
    with suppress(Unauthenticated):
        await guard(ASGIConnection(scope), handler)  # type: ignore[arg-type]


def _scope(app: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    """What uvicorn would make of a request by a usual client."""
    usual = {"host": "localhost", "user-agent": "OpenAI/Python 2.0", "accept": "application/json", **headers}
    return {
        "type": "http",
        "method": "GET",
        "path": PATH,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in usual.items()],
        "client": ("127.0.0.1", 50_000),
        "litestar_app": app,
    }


@asynccontextmanager
async def _started(folder: Path, plugins: Sequence[str], settings: Mapping[str, Any]) -> AsyncIterator[Any]:
    config = {"plugins": list(plugins), "models": [{"name": "m", "engine": "scripted"}], "plugin": dict(settings)}
    app = make_app(config, {"scripted": ScriptedPlugin()}, folder=folder)
    runtime: Runtime = app.state.runtime
    await runtime.start()
    try:
        yield app
    finally:
        await runtime.stop()


@asynccontextmanager
async def _nobody(folder: Path, calls: int) -> AsyncIterator[Prepared]:
    """No authenticator is listed."""
    async with _started(folder, (), {}) as app:
        yield app, [{}]


@asynccontextmanager
async def _key(folder: Path, calls: int, *, refresh: float) -> AsyncIterator[Prepared]:
    """An API key with a role, scopes and models."""
    async with _started(folder, ("api_keys", "rbac"), {"api_keys": {"refresh": refresh}}) as app:
        store = KeyStore(app.state.runtime.database)
        _, text = await store.create(name="bench", scopes=["inference", "files"], models=["m"])
        ((_, authenticator),) = app.state.runtime.pipeline.authenticators
        await authenticator.refresh()  # the first key is noticed a little later else
        yield app, [{"authorization": f"Bearer {text}"}]


@asynccontextmanager
async def _refused(folder: Path, calls: int, *, wrong: Callable[[str], str]) -> AsyncIterator[Prepared]:
    """What is not quite the key: each refusal asks the database, as nothing wrong is remembered."""
    async with _key(folder, calls, refresh=2) as (app, (sent,)):
        yield app, [{"authorization": wrong(sent["authorization"])}]


@asynccontextmanager
async def _jwt(folder: Path, calls: int, *, kind: str, fresh: bool) -> AsyncIterator[Prepared]:
    """RFC 9068 tokens of a local issuer: another one for each call, or always the same."""
    from oauth_kit import key

    async with _trusting(folder, {"algorithms": ["RS256", "ES256"]}) as (app, issuer):
        signer = key(kind, kind)
        issuer.publish(signer)
        tokens = [issuer.token(signer, jti=f"id-{i}") for i in range(calls if fresh else 1)]
        yield app, [{"authorization": f"Bearer {token}"} for token in tokens]


@asynccontextmanager
async def _opaque(folder: Path, calls: int) -> AsyncIterator[Prepared]:
    """A token that the issuer was asked about once."""
    introspection = {"client_id": "appliance", "client_secret": "bench"}
    async with _trusting(folder, {"introspection": introspection}) as (app, issuer):
        issuer.answers["/introspect"] = msgspec.json.encode({"active": True, **issuer.claims()})
        yield app, [{"authorization": "Bearer opaque-token-of-usual-length-0123456789"}]


@asynccontextmanager
async def _trusting(folder: Path, changed: Mapping[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    from oauth_kit import issuing

    async with issuing() as issuer:
        settings = {"oauth": {"issuers": [issuer.settings(**changed)]}}
        async with _started(folder, ("oauth", "rbac"), settings) as app:
            yield app, issuer


CASES: Mapping[str, tuple[Case, float]] = {
    "nobody is asked": (_nobody, 1),
    "API key, remembered": (partial(_key, refresh=2), 1),
    "API key, the database asked each time (`refresh: 0`)": (partial(_key, refresh=0), 0.1),
    "no key: another secret": (partial(_refused, wrong=lambda text: f"{text[:-32]}{'a' * 32}"), 0.1),
    "no key: a secret of which 31 of 32 letters are right": (
        partial(_refused, wrong=lambda text: text[:-1] + ("a" if text[-1] != "a" else "b")),
        0.1,
    ),
    "no key: an id that nobody has": (
        partial(_refused, wrong=lambda text: f"Bearer sk-app-{'0' * 12}-{text[-32:]}"),
        0.1,
    ),
    "JWT, remembered": (partial(_jwt, kind="RSA", fresh=False), 1),
    "JWT, RS256 verified": (partial(_jwt, kind="RSA", fresh=True), 0.1),
    "JWT, ES256 verified": (partial(_jwt, kind="EC", fresh=True), 0.1),
    "opaque token, introspected and remembered": (_opaque, 1),
}
"""Each case with the share of the calls that it makes."""

if __name__ == "__main__":
    sys.exit(main())
