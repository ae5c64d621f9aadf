"""Plugin ``clamav``: what comes in is shown to ClamAV's daemon, clamd, before it is kept or given to a model.

    plugin:
      clamav: {address: /run/clamav/clamd.ctl}

The protocol is that of clamd(8): a command, the file in pieces with their lengths before them (``INSTREAM``), and a
line as the answer. The client library that is on asyncio knows no unix sockets, and sends a kibibyte at a time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec

from appliance.plugin import (
    AppContext,
    ConfigError,
    HealthCheck,
    RequestError,
    Scanner,
    ScannerUnavailable,
    Strict,
    TooLarge,
    hookimpl,
)

log = logging.getLogger(__name__)
Address: TypeAlias = str | tuple[str, int]
"""The path of a unix socket, or host and port."""
_HOST_AND_PORT = re.compile(r"\[?([^\]/]+?)\]?:(\d{1,5})")
_MAX_REPLY = 4096
_PING_SECONDS = 1.5
_RETRY_SECONDS = 10.0


class ClamavSettings(Strict, frozen=True):
    """Where clamd is, and what happens where it cannot tell."""

    address: Annotated[str, msgspec.Meta(min_length=1)] = "/run/clamav/clamd.ctl"
    """The path of its unix socket, or ``host:port``. Files go there unencrypted: keep a port on this machine."""
    timeout: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    """Seconds that one file may take, waiting for its turn included."""
    max_concurrent: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Files that are scanned at once; keep it below ``MaxThreads`` of clamd.conf."""
    fail_open: bool = False
    """Let files in that clamd could not look at; else they are refused."""


@hookimpl
def appliance_settings() -> type[ClamavSettings]:
    """``plugin.clamav``."""
    return ClamavSettings


@hookimpl
def appliance_scanners(settings: ClamavSettings) -> Sequence[Scanner]:
    """Clamd."""
    return [Clamav(settings)]


@hookimpl
def appliance_health_checks(settings: ClamavSettings, context: AppContext) -> Mapping[str, HealthCheck]:
    """``clamav`` in the answer of ``/readyz``, unless files come in without it too."""
    return {} if settings.fail_open else {"clamav": Clamav(settings).problem}


class _OutOfReachError(Exception):
    """Clamd is not there, or hung up. Not an ``OSError``, which would be the file's."""


@dataclass
class Clamav:
    """A client of one clamd: a connection for each file."""

    settings: ClamavSettings
    _turns: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(self.settings.max_concurrent)
        self._address = address_of(self.settings.address)

    async def scan(self, content: AsyncIterator[bytes]) -> str | None:
        """See ``Scanner``."""
        try:
            return await self._scan(content)
        except RequestError as error:
            if not self.settings.fail_open:
                raise
            log.warning("a file was let in that was not scanned (plugin.clamav.fail_open): %s", error)
            return None

    async def problem(self) -> str | None:
        """What is wrong with clamd, in one line; ``None`` if nothing is."""
        try:
            async with asyncio.timeout(_PING_SECONDS):
                reply = await self._command(b"PING", None)
        except (TimeoutError, _OutOfReachError) as error:
            reason = str(error) or f"not within {_PING_SECONDS} s"
            return f"clamd does not answer at plugin.clamav.address ({reason}); uploads are refused: start it"
        return None if reply == "PONG" else "what answers at plugin.clamav.address is no clamd; correct the address"

    async def _scan(self, content: AsyncIterator[bytes]) -> str | None:
        """Raises ScannerUnavailable, TooLarge."""
        try:
            async with asyncio.timeout(self.settings.timeout), self._turns:
                reply = await self._command(b"INSTREAM", content)
        except TimeoutError:
            raise _unavailable(f"no answer within {self.settings.timeout:g} s (plugin.clamav.timeout)") from None
        except _OutOfReachError as error:
            raise _unavailable(str(error)) from error
        return judged(reply)

    async def _command(self, name: bytes, content: AsyncIterator[bytes] | None) -> str:
        """What clamd answers. Raises _OutOfReachError."""
        with await _connected(self._address) as made:
            # Where it has something against a file before its end, it says so, hangs up, and reads no more of it.
            with suppress(_OutOfReachError):
                await _send(made, b"z" + name + b"\0")
                if content is not None:
                    await _send_pieces(made, content)
            return await _reply(made)


def address_of(text: str) -> Address:
    """Where a setting says that clamd is. Raises ConfigError."""
    if text.startswith("/"):
        return text
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigError(
            f"plugin.clamav.address: must be host:port or the path of clamd's socket from / on, not {text[:64]!r}; "
            "see LocalSocket and TCPSocket in clamd.conf"
        )
    return match[1], int(match[2])


def judged(reply: str) -> str | None:
    """The name of what clamd found; ``None`` for nothing. Raises TooLarge, ScannerUnavailable."""
    if reply == "stream: OK":
        return None
    if reply.startswith("stream: ") and reply.endswith(" FOUND"):
        return reply.removeprefix("stream: ").removesuffix(" FOUND")
    if "size limit exceeded" in reply:
        raise TooLarge(
            "the file is larger than the virus scanner takes; split it, or raise StreamMaxLength in clamd.conf",
            param="file",
        )
    raise _unavailable("it gave no verdict" if reply else "it hung up")


def _unavailable(reason: str) -> ScannerUnavailable:
    return ScannerUnavailable(
        f"the virus scanner cannot be asked: {reason}; nothing is taken without it (plugin.clamav.address, fail_open)",
        retry_after=_RETRY_SECONDS,
    )


async def _connected(address: Address) -> socket.socket:
    """A connection to the first address that takes one. Raises _OutOfReachError."""
    loop = asyncio.get_running_loop()
    reason = "it has no address"
    try:
        targets: list[tuple[int, Any]] = [(socket.AF_UNIX, address)]
        if not isinstance(address, str):
            found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
            targets = [(family, target) for family, _, _, _, target in found]
    except OSError as error:
        raise _OutOfReachError(error.strerror) from error
    for family, target in targets:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            await loop.sock_connect(made, target)
            return made
        except OSError as error:
            made.close()
            reason = error.strerror or reason
        except BaseException:
            made.close()
            raise
    raise _OutOfReachError(reason)


async def _send_pieces(made: socket.socket, content: AsyncIterator[bytes]) -> None:
    """Each with its length before it, in network order; a length of nothing ends them."""
    async for piece in content:
        if piece:
            await _send(made, len(piece).to_bytes(4, "big"))
            await _send(made, piece)
    await _send(made, bytes(4))


async def _send(made: socket.socket, data: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(made, data)
    except OSError as error:
        raise _OutOfReachError(error.strerror) from error


async def _reply(made: socket.socket) -> str:
    """A line that a zero ends; what there is of it where clamd hung up. Raises _OutOfReachError."""
    found = bytearray()
    while b"\0" not in found and len(found) < _MAX_REPLY:
        try:
            data = await asyncio.get_running_loop().sock_recv(made, _MAX_REPLY)
        except OSError as error:
            raise _OutOfReachError(error.strerror) from error
        if not data:
            break
        found += data
    return found.partition(b"\0")[0].decode("utf-8", "replace").strip()
