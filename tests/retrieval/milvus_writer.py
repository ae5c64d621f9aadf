"""A process that writes to Milvus Lite until it is killed, and prints what was acknowledged.

    python milvus_writer.py FOLDER MODE

``MODE`` is ``random`` (the caller kills at any time) or ``after-manifest`` (it kills itself in the worst moment of a
flush: the segment is committed, the write-ahead log not yet removed).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from array import array
from pathlib import Path

from appliance.plugin import StoredChunk
from appliance_retrieval.milvus import MilvusStore

CHUNKS = 30


async def write_file(store: MilvusStore, file_id: str) -> None:
    """What ingestion does with one file: remove what an earlier try left, write, seal."""
    chunks = [
        StoredChunk(id=f"{file_id}:{i}", file_id=file_id, position=i, text=f"word{i} of {file_id}")
        for i in range(CHUNKS)
    ]
    await store.delete_file("c", file_id)
    for i in range(0, CHUNKS, 10):
        await store.upsert("c", chunks[i : i + 10], array("f", [1, i] * 10).tobytes())
        print("wrote", file_id, flush=True)
    await store.seal("c")
    print("sealed", file_id, flush=True)


def die_after_manifest() -> None:
    from milvus_lite.storage.wal import WAL

    WAL.close_and_delete = lambda self: os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, mode: str) -> None:
    if mode == "after-manifest":
        die_after_manifest()
    store = MilvusStore(str(folder), run_dir=folder.parent / "run")
    await store.start()
    await store.create("c", 2)
    number = await store.count("c") // CHUNKS
    for file in range(max(0, number - 1), 10_000):
        await write_file(store, f"file-{file}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
