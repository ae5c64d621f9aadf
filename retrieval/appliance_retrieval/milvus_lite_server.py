"""Milvus Lite inside this process, reachable only through a private unix socket.

Milvus Lite is a folder of files, an engine in Python, and a gRPC server. Started by pymilvus it listens on a loopback
TCP port without any authentication; here it gets a unix socket. It is opened after a repair, because
version 3.2 does not survive a kill at every point:

- killed between writing a segment and removing its write-ahead log, it replays the log over the segment and each
  row is there twice: logs that the manifest says are folded in are removed;
- killed while it writes an index file, it cannot load the collection again: index files are derived data and are removed;
- killed while it makes or drops a collection, it leaves a folder without schema that blocks the name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from appliance.plugin import StartError

_SOCKET_PATH_LIMIT = 100


class LiteServer:
    """One open Milvus Lite database.

    Raises:
        StartError: another process has it open, or the folder cannot be used.
    """

    def __init__(self, folder: Path, run_dir: Path) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread
        from milvus_lite.exceptions import DataDirLockedError

        self.folder = folder
        self._socket_dir = _socket_dir(run_dir)
        socket = self._socket_dir / "milvus.sock"
        socket.unlink(missing_ok=True)
        self.uri = f"unix:{socket}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server, self._db, _ = start_server_in_thread(str(folder), host="unix", port=socket)  # type: ignore[arg-type]
            repair(folder)  # under the lock that the server holds, before the first collection is opened
        except DataDirLockedError:
            raise StartError(f"{folder} is open in another process; stop that one or set plugin.milvus.uri") from None
        except OSError as error:
            raise StartError(
                f"{folder}: {error.strerror or error}; make the folder writable or set plugin.milvus.uri"
            ) from None

    def sync(self, collection: str) -> None:
        """Force a collection's files to the disk: Milvus Lite itself leaves that to the system."""
        root = self.folder / "collections" / collection
        for path in [root, *root.rglob("*")]:
            _fsync(path)

    def close(self) -> None:
        """Stop serving and release the folder."""
        self._server.stop(grace=2).wait()
        self._db.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)


def _socket_dir(run_dir: Path) -> Path:
    """A fresh private folder; in the system's temporary folder where the path would be too long for a socket."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = run_dir / "milvus"
    if len(os.fsencode(folder)) > _SOCKET_PATH_LIMIT - len("/milvus.sock"):
        return Path(tempfile.mkdtemp(prefix="milvus-"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _fsync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # compaction removed it meanwhile
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def repair(folder: Path) -> None:
    """Bring a database that was killed back to a state that Milvus Lite opens rightly. Nothing acknowledged is lost."""
    for collection in (folder / "collections").glob("*"):
        if (collection / "schema.json").exists():
            _repair_collection(collection)
        else:
            shutil.rmtree(collection)


def _repair_collection(collection: Path) -> None:
    from milvus_lite.storage.manifest import Manifest

    active = Manifest.load(str(collection)).active_wal_number
    for log in collection.glob("wal/wal_*.arrow"):
        if active is not None and int(log.stem.rpartition("_")[2]) < active:
            log.unlink()
    for index_folder in collection.glob("partitions/*/indexes"):
        shutil.rmtree(index_folder)
