"""Milvus Lite inside this process, reachable only through a private unix socket.

Milvus Lite is a folder of files, an engine in Python, and a gRPC server. Started by pymilvus it listens on a
loopback TCP port without any authentication; here it gets a unix socket. A repair goes before its use, because
version 3.2 does not survive a kill at every point:

- killed between writing a segment and removing its write-ahead log, it replays the log over the segment and each
  row is there twice: logs that the manifest says are folded in are removed;
- killed while it writes an index file, it cannot load the collection again: index files are derived data
  and are removed;
- killed while it makes or drops a collection, it leaves a folder without schema that blocks the name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.plugin import NotFound, RetrievalUnavailable, StartError

_FOLDER_LIMIT = 90
"""Bytes: the path of a unix socket may have 107, and the name takes up to 16."""


class LiteServer:
    """One open Milvus Lite database.

    Raises:
        StartError: another process has it open, or the folder cannot be used.
    """

    def __init__(self, folder: Path, run_dir: Path) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread
        from milvus_lite.exceptions import DataDirLockedError

        self.folder = folder
        self._socket = _socket_path(run_dir)
        port: Any = self._socket  # the server is bound to "host:port", and "unix:path" is an address of gRPC's
        self.uri = f"unix:{self._socket}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server, self._db, _ = start_server_in_thread(str(folder), host="unix", port=port)
            # From here this process holds the folder's lock, and no collection is open yet.
            repair(folder)
            _remove_stale_sockets(self._socket)
        except DataDirLockedError:
            raise StartError(f"{folder} is open in another process; stop that one or set plugin.milvus.uri") from None
        except OSError as error:
            raise StartError(
                f"{folder}: {error.strerror or error}; make the folder writable or set plugin.milvus.uri"
            ) from None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """Milvus Lite's own object for a collection.

        Raises:
            NotFound: it is not there. RetrievalUnavailable: Milvus Lite failed.
        """
        from milvus_lite.exceptions import CollectionNotFoundError, MilvusLiteError

        try:
            yield self._db.get_collection(name)
        except CollectionNotFoundError as error:
            raise NotFound("the collection is gone; create the vector store again") from error
        except MilvusLiteError as error:
            raise RetrievalUnavailable("Milvus Lite failed; try again, and check its disk") from error

    def sync(self, collection: str) -> None:
        """Force a collection's files to the disk: Milvus Lite itself leaves that to the system."""
        root = self.folder / "collections" / collection
        for path in [root, *root.rglob("*")]:
            _fsync(path)

    def close(self) -> None:
        """Stop serving and release the folder."""
        self._server.stop(grace=2).wait()
        self._db.close()
        self._socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # an older process' socket may still be in it
            self._socket.parent.rmdir()


def _socket_path(run_dir: Path) -> Path:
    """A path of this process' own in a private folder, a temporary one where ``run_dir`` is too long for a socket."""
    folder = run_dir / "milvus"
    if len(os.fsencode(folder)) > _FOLDER_LIMIT:
        folder = Path(tempfile.mkdtemp(prefix="milvus-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{os.getpid()}.sock"


def _remove_stale_sockets(own: Path) -> None:
    for socket in own.parent.glob("*.sock"):
        if socket != own:
            socket.unlink(missing_ok=True)


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
