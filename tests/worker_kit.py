"""What tests need to run the real worker process with test plugins."""

from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from knowledge_kit import Stack
from processes import kill_worker_at

from appliance.config import load
from appliance.context import AppContext
from appliance.knowledge.remote import RemoteKnowledge
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens", "scripted_embedder"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
}


def install_plugin(folder: Path, name: str, target: str) -> Path:
    """A folder that, on ``PYTHONPATH``, makes ``target`` (``module:object``) a plugin of that name."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[appliance]\n{name} = {target}\n")
    return folder


def write_config(folder: Path, **changes: object) -> Path:
    """The configuration above with changes, as ``appliance.yaml`` in a folder."""
    path = folder / "appliance.yaml"
    path.write_text(yaml.safe_dump(CONFIG | changes))
    return path


@asynccontextmanager
async def in_worker(folder: Path, path: Path):
    """A stack whose knowledge runs in a worker process, by the configuration at ``path``."""
    made = Stack(folder, ScriptedEmbedder(), "memory")
    made.knowledge = RemoteKnowledge(AppContext(config=load(path), database=made.database), path)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def worker(folder: Path, monkeypatch, **changes: object):
    """The same, by the configuration above with changes."""
    plugins = install_plugin(
        folder / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder"
    )
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    path = write_config(folder, **changes)
    async with in_worker(folder, path) as made:
        yield made


def kill_worker(folder: Path) -> bool:
    """Kill -9 the worker of this data folder; whether there was one."""
    return kill_worker_at(folder / "data" / "run" / "worker.sock")
