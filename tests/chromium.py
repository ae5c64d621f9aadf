"""A real browser, from the Debian package ``chromium`` (``make test-deps``), driven over its own pipe.

The Chrome DevTools Protocol goes over two file descriptors, so no port is open, and the browser ends with the pipe.
Every name that ends in ``.example`` is loopback to it, as a name that an attacker owns may be; all others are unknown.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import Process
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from endings import ending_with_the_tests

_SECONDS = 60.0
"""For the answer to one command."""
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP *.example 127.0.0.1,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1,EXCLUDE localhost",
    "--no-sandbox",  # it refuses root and most containers, and loads no pages but the tests' own
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--password-store=basic",
)
_ON_3_AND_4 = 'exec "$@" 3<&{} 4>&{}'
"""The protocol's two descriptors; for bash, as dash knows no numbers of two digits."""


class Chromium:
    """``async with Chromium(folder) as browser:``; its profile lies in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> Chromium:
        binary = shutil.which("chromium")
        assert binary, "Chromium is not installed; run make test-deps"
        command = [binary, *_FLAGS, f"--user-data-dir={self._folder / 'profile'}", "about:blank"]
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        try:
            with (self._folder / "chromium.log").open("wb") as log:
                self._process = await _started(command, theirs_in, theirs_out, self._folder, log)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._out = ours_out
        self._in = os.fdopen(ours_in, "rb")
        self._reading = asyncio.create_task(self._read())
        await self.command("Browser.setDownloadBehavior", behavior="deny")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        try:
            await asyncio.wait_for(self._process.wait(), _SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait_for(self._reading, _SECONDS)

    async def command(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command of the protocol; its result. Raises RuntimeError with the browser's own words."""
        number = next(self._ids)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        told = await asyncio.wait_for(answer, _SECONDS)
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']['message']}")
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> Tab:
        """A new tab that has loaded this address."""
        target = await self.command("Target.createTarget", url="about:blank")
        attached = await self.command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = Tab(self, attached["sessionId"])
        await tab.load(url)
        return tab

    async def _read(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 24)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._in
        )
        try:
            while message := (await reader.readuntil(b"\0"))[:-1]:
                told = json.loads(message)
                if answer := self._waiting.pop(told.get("id", 0), None):
                    answer.set_result(told)
        except asyncio.IncompleteReadError:
            for answer in self._waiting.values():
                answer.set_exception(AssertionError(f"the browser ended; see {self._folder / 'chromium.log'}"))
        finally:
            transport.close()


class Tab:
    """One page after the other."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session

    async def navigate(self, url: str) -> dict[str, Any]:
        """Go there as if by the address bar; ``errorText`` and ``isDownload`` tell why no page came of it."""
        return await self._browser.command("Page.navigate", self._session, url=url)

    async def load(self, url: str) -> None:
        """Go there and wait for the page's ``load``."""
        went = await self.navigate(url)
        assert "errorText" not in went, (url, went)
        await self.run(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        )

    async def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise. Raises RuntimeError if it throws."""
        told = await self._browser.command(
            "Runtime.evaluate",
            self._session,
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in told:
            raise RuntimeError(json.dumps(told["exceptionDetails"])[:2000])
        return told["result"].get("value")


async def _started(command: list[str], theirs_in: int, theirs_out: int, home: Path, log: BinaryIO) -> Process:
    shell = ["bash", "-c", _ON_3_AND_4.format(theirs_in, theirs_out), "bash"]
    return await asyncio.create_subprocess_exec(
        *ending_with_the_tests([*shell, *command]),
        pass_fds=(theirs_in, theirs_out),
        env={**os.environ, "HOME": str(home)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
