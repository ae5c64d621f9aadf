"""A Milvus server of the tests' own, from the wheel that has its program (the newest of them has Milvus 2.3)."""

from __future__ import annotations

import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from ports import reserved_port

INSIDE = Path(__file__).parent / "milvus" / "inside.py"
SETTINGS = Path(__file__).parent / "milvus" / "milvus.yaml"
_START_SECONDS = 60
_APART = ("unshare", "--map-root-user", "--net")


def unpacked() -> Path:
    """The folder of the program and its libraries, which the wheel carries packed."""
    folder = Path(sys.prefix) / "milvus-server"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as made:
            for packed in (_wheel() / "bin").glob("*.lzma"):
                with lzma.open(packed) as source, (Path(made) / packed.stem).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (Path(made) / packed.stem).chmod(0o755)
            with suppress(OSError):  # another process was faster
                Path(made).rename(folder)
            Path(made).mkdir(exist_ok=True)
    return folder


def _wheel() -> Path:
    found = find_spec("milvus")
    assert found is not None, "the Milvus server is not installed; run make test, on Linux for x86-64"
    assert found.origin is not None
    return Path(found.origin).parent / "data"


class MilvusServer:
    """``with MilvusServer() as server:`` one that runs; ``kill`` and ``start`` make it fail and come back.

    With ``authorization`` it knows users: ``root``, whose password is ``Milvus``. Ends with the thread that starts it.
    """

    def __init__(self, *, authorization: bool = False) -> None:
        self._authorization = authorization

    def __enter__(self) -> MilvusServer:
        if subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip(
                "this kernel gives no user a network apart (unshare --net), without which Milvus would listen to all"
            )
        self._kept = ExitStack()
        self.folder = Path(self._kept.enter_context(tempfile.TemporaryDirectory(prefix="appliance-milvus-")))
        self.port = self._kept.enter_context(reserved_port())
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._kept.close()

    def start(self) -> None:
        """Start, and wait until it answers."""
        for name in ("configs", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        settings = SETTINGS.read_text().replace("AUTHORIZATION", str(self._authorization).lower())
        (self.folder / "configs" / "milvus.yaml").write_text(settings)
        shutil.copy(_wheel() / "glog.conf", self.folder / "configs")
        with socket.socket() as listener, (self.folder / "logs" / "output").open("ab") as output:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen()
            self.process = self._run(listener.fileno(), output)
        end = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, f"Milvus ended at once: {self._last_lines()}"
            assert time.monotonic() < end, f"Milvus does not answer: {self._last_lines()}"
            time.sleep(0.05)

    def _run(self, listener: int, output: BinaryIO) -> subprocess.Popen[bytes]:
        programs = unpacked()
        inside = [*_APART, sys.executable, str(INSIDE), str(listener)]
        return subprocess.Popen(
            [*inside, str(programs / "milvus"), "run", "standalone"],
            cwd=self.folder,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(programs),
                "DEPLOY_MODE": "STANDALONE",
                "MILVUSCONF": str(self.folder / "configs"),
            },
            pass_fds=[listener],
            start_new_session=True,
            stdout=output,
            stderr=output,
        )

    def kill(self) -> None:
        """As a crash: at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def freeze(self) -> None:
        """Connections stay open and nothing answers."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def empty(self) -> None:
        """Remove all rows; the collections stay, loaded."""
        client = self.client()
        for name in client.list_collections():
            client.delete(name, filter='id != ""')
        client.close()

    def client(self, **given: Any) -> Any:
        """A plain client."""
        from pymilvus import MilvusClient

        return MilvusClient(self.url, timeout=5, **given)

    def _answers(self) -> bool:
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            client = self.client(token="root:Milvus")
        except (MilvusException, grpc.RpcError):
            return False
        try:
            client.list_collections()
        except (MilvusException, grpc.RpcError):
            return False
        finally:
            client.close()
        return True

    def _last_lines(self) -> str:
        return (self.folder / "logs" / "output").read_text(errors="replace")[:3000]
