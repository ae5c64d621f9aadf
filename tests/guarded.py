"""A served app with every route there is, the plugins' included, and keys of every kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import Litestar

from appliance.http.guard import ACTION, OTHER_ACTIONS
from appliance.permissions import PUBLIC, ROLES, SCOPES
from appliance.plugin import KeyStore
from appliance.storage.database import Database
from appliance.testing import ScriptedPlugin, make_app
from appliance.testing.scripted_embedder import ScriptedEmbedder

ISSUER = "http://127.0.0.1:9"
"""Where nobody listens."""
CONFIG = {
    "plugins": ["memory", "documents", "tokens", "api_keys", "oauth", "login", "rbac", "usage", "prometheus"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
    "auth": {"public_docs": False, "resource": "http://localhost/v1"},
    "plugin": {
        "api_keys": {"refresh": 0},
        "oauth": {"issuers": [{"issuer": ISSUER, "audience": "appliance", "loopback_http": True}]},
        "login": {
            "public_url": "http://localhost",
            "loopback_http": True,
            "client_id": "appliance",
            "client_secret": "none",
            "cli_client_id": "cli",
        },
    },
}
BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "tokens": [1],
    "max_tokens": 1,
}
"""Good for every route that asks a model (which is only known from the body), but those of ``BODIES``."""
BODIES = {
    "/tokenize": {"model": "m", "prompt": "hi"},
    "/v1/moderations": {"input": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/responses/input_tokens": {"model": "m", "input": "hi"},
    **{f"{version}/rerank": {"model": "m", "query": "hi", "documents": ["a"]} for version in ("", "/v1", "/v2")},
    **{f"{version}/score": {"model": "m", "text_1": "hi", "text_2": "a"} for version in ("", "/v1")},
}
WITHOUT_BODY = ("GET", "HEAD", "DELETE")


@dataclass(frozen=True)
class Operation:
    """A method and a path that the router knows, with the permission that its handler names."""

    method: str
    template: str
    permission: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def path(self) -> str:
        """The template with values for its parameters."""
        return re.sub(r"\{[^}]*\}", "x", self.template)

    @property
    def public(self) -> bool:
        return self.permission == PUBLIC

    @property
    def request(self) -> dict[str, Any]:
        """What httpx needs for a request that is well-formed."""
        body = {} if self.method in WITHOUT_BODY else {"json": BODIES.get(self.path, BODY)}
        return {"method": self.method, "url": self.path, **body}


def operations(app: Litestar) -> list[Operation]:
    """Every operation of the app's router, the plugins' included."""
    return sorted(_operations(app), key=lambda operation: (operation.template, operation.method))


def _operations(app: Litestar) -> Iterator[Operation]:
    for route in app.routes:
        handlers = [getattr(route, "route_handler", None), *getattr(route, "route_handlers", [])]
        for handler in filter(None, handlers):
            for method in set(getattr(handler, "http_methods", {"POST"})) - {"OPTIONS"}:
                yield Operation(str(method), route.path, handler.opt[ACTION])
            for method, action in handler.opt.get(OTHER_ACTIONS, {}).items():
                yield Operation(method, route.path, action)


def guarded_app(folder: Path) -> Litestar:
    """The app; its first key is there before it starts."""
    plugins = {"scripted": ScriptedPlugin(), "scripted_embedder": ScriptedEmbedder()}
    return make_app(CONFIG, plugins, folder=folder)


def make_keys(app: Litestar) -> dict[str, str]:
    """Keys by what they are: one of each role, and an admin's of each scope as ``scope NAME``."""

    async def make() -> dict[str, str]:
        database = Database(app.state.runtime.config.database_url)
        await database.start()
        try:
            return await keys_in(KeyStore(database))
        finally:
            await database.stop()

    return asyncio.run(make())


async def keys_in(store: KeyStore) -> dict[str, str]:
    """The keys that ``make_keys`` tells of."""
    by_role = {role: (await store.create(name=role, roles=[role]))[1] for role in ROLES}
    scoped = {s: (await store.create(name=s, roles=["admin"], scopes=[s]))[1] for s in SCOPES}
    return by_role | {f"scope {scope}": text for scope, text in scoped.items()}
