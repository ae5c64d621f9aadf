"""What lies on the disk is for the appliance's user alone (F9)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from worker_kit import worker

CHANGES = {
    "plugins": ["langchain", "documents", "tokens", "scripted_embedder"],
    "retrieval": {"vector_store": "langchain"},
    "plugin": {"langchain": {"class": "langchain_core.vectorstores.InMemoryVectorStore", "filter": "function"}},
}


def open_to_others(folder: Path) -> list[str]:
    """Whatever in a folder its group or anybody may read, write or enter."""
    return [str(path) for path in folder.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]


async def test_F9_texts_and_vectors_are_for_the_appliance_s_user_alone_also_in_an_open_folder(
    tmp_path, monkeypatch
) -> None:
    before = os.umask(0)
    try:
        async with worker(tmp_path, monkeypatch, **CHANGES) as made:
            store = await made.make_store()
            await made.add(store, "the zebrafinch sings")
            catalogue = tmp_path / "data" / "catalogue"
            assert any(b"zebrafinch" in path.read_bytes() for path in catalogue.rglob("*") if path.is_file())
            assert open_to_others(catalogue) == []
    finally:
        os.umask(before)
