"""The real vLLM for tests, and what its processes listen on."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from smollm2 import smollm2_folder

from appliance.config import parse
from appliance.context import AppContext
from appliance.plugin import ModelSpec
from appliance_engines.vllm import VllmEngine, make_engine

_LISTEN = "0A"


def make_vllm(folder: Path, mark: str = "", extra_args: tuple[str, ...] = (), **options: object) -> VllmEngine:
    """The real vLLM with the real SmolLM2; ``mark`` makes its processes findable, see ``processes_with``."""
    config = parse("data_dir: data", folder=folder, environ={})
    # Most machines have no compiler, and what another run compiled and kept would hide that one is needed.
    env = {"APPLIANCE_TEST_MARK": mark, "CXX": "/no/compiler", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    given = {"max_model_len": 2048, "queue_timeout": 300.0, "env": env, **options}
    spec = ModelSpec(name="smollm2", where="models[0]", path=smollm2_folder(), options=given, extra_args=extra_args)
    return make_engine(spec, AppContext(config, None))  # type: ignore[arg-type]


@asynccontextmanager
async def running(engine: VllmEngine) -> AsyncIterator[VllmEngine]:
    """An engine that is up; a minute is the most that it gets."""
    try:
        async with asyncio.timeout(60):
            await engine.start()
        yield engine
    finally:
        await engine.stop()


def listening_addresses(pid: int) -> list[str]:
    """The TCP addresses a process listens on, as ``127.0.0.1:8000``."""
    inodes = _sockets(pid)
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.append(_address(fields[1]))
    return found


def unix_sockets(pid: int) -> set[Path]:
    """The paths of the unix sockets that a process has open; nameless ones are left out."""
    inodes = _sockets(pid)
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {Path(fields[7]) for fields in lines if len(fields) > 7 and fields[6] in inodes}


def _sockets(pid: int) -> set[str]:
    links = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(str(entry.readlink()))
        except OSError:
            continue  # closed since
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _address(field: str) -> str:
    host, port = field.split(":")
    if len(host) == 8:
        return f"{socket.inet_ntoa(struct.pack('=I', int(host, 16)))}:{int(port, 16)}"
    return f"[{host}]:{int(port, 16)}"
