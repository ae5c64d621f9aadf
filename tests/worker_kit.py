"""What tests need to run the real worker process with test plugins."""

from pathlib import Path

import yaml

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
