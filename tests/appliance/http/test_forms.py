"""Forms as they are read: how many files they open, and that none stays open."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import IO, Any

import httpx
import pytest

from appliance.errors import BadRequest
from appliance.http.forms import MAX_FILES, read_form
from appliance.media.requests import ImageEditRequest
from appliance.media.spool import MEMORY

LARGE = b"x" * (MEMORY + 65_536)
LIMIT = 25 * 2**20


def picture(name: str) -> tuple[str, tuple[str, bytes, str]]:
    """One part of a form."""
    return name, ("red.png", LARGE, "image/png")


async def read(files: list[Any], scratch: Callable[[], IO[bytes]], *, whole: bool = True) -> ImageEditRequest:
    """Read a form with these files, which comes in pieces, and of which the end may be missing."""
    request = httpx.Request("POST", "http://here", data={"prompt": "blue"}, files=files)
    body = request.read() if whole else request.read()[:-40]
    pieces = [body[i : i + 65_536] for i in range(0, len(body), 65_536)]
    messages: list[Any] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request"} if whole else {"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return await read_form(headers, receive, LIMIT, ImageEditRequest, scratch)


@pytest.fixture
def opened() -> list[IO[bytes]]:
    """The files that were opened."""
    return []


@pytest.fixture
def scratch(opened):
    def opens() -> IO[bytes]:
        opened.append(tempfile.TemporaryFile())  # noqa: SIM115  the form closes it
        return opened[-1]

    return opens


async def test_a_form_of_as_many_files_as_there_can_be_is_read(opened, scratch) -> None:
    request = await read([picture("image"), picture("mask"), *[picture("image[]")] * 16], scratch)
    assert [file.size for file in request.files] == [len(LARGE)] * MAX_FILES
    assert len(opened) == MAX_FILES
    request.close()
    assert all(file.closed for file in opened)


async def test_a_form_of_more_files_is_refused_before_they_are_opened(opened, scratch) -> None:
    with pytest.raises(BadRequest, match="more than 18 files") as caught:
        await read([picture("image[]")] * 60, scratch)
    assert caught.value.param == "image[]"
    assert len(opened) == MAX_FILES
    assert all(file.closed for file in opened)


async def test_files_that_cannot_be_written_to_their_end_keep_no_other_open_and_hide_no_error(opened, scratch) -> None:
    def opens() -> IO[bytes]:
        if opened:
            return scratch()
        opened.append(open("/dev/full", "w+b", buffering=2**20))  # noqa: SIM115, PTH123  it fails when closed
        return opened[-1]

    with pytest.raises(BadRequest, match="ended early"):
        await read([picture("image[]")] * 3, opens, whole=False)
    assert len(opened) == 3
    assert all(file.closed for file in opened)
