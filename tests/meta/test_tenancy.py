"""Whoever answers requests reaches the database through a tenant's session only (B2, O-38)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["appliance/http", "appliance/responses", "auth", "engines", "observability", "plugins", "retrieval"]
ANSWERING = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
FOR_ALL_TENANTS = {"appliance/responses/background.py"}
"""Takes up the stored work of all tenants, as the ingestion worker does; no handler is in it."""
AROUND = {
    "session": "is bound to no tenant; use database.tenant or requests.tenant_session",
    "sync_session": "can do what a tenant's session refuses",
    "__table__": "is a bare table, which a tenant's session cannot narrow inside an ORM statement",
    "create_async_engine": "is a database of its own",
}


def ways_around(source: str) -> list[str]:
    """What a module's code uses to get around the tenant."""
    nodes = list(ast.walk(ast.parse(source)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr != "session"}
    called = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    imports = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return [f"{name} {why}" for name, why in AROUND.items() if name in attributes | called | imports]


@pytest.mark.parametrize("name", [name for name in ANSWERING if name not in FOR_ALL_TENANTS])
def test_b2_no_handler_and_no_plugin_gets_around_the_tenant(name: str) -> None:
    assert ways_around((ROOT / name).read_text("utf-8")) == []


def test_the_ways_around_are_seen() -> None:
    assert ways_around("async with runtime(request).database.session() as s: pass")
    assert ways_around("from sqlalchemy.ext.asyncio import create_async_engine")
    assert not ways_around("async with database.tenant(t) as session: await session.get(File, 1)")
