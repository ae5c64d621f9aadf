"""What scanners of plugins say of what comes in, and what becomes of it."""

from __future__ import annotations

import asyncio

import pytest
from inline import Slots, provides
from loopback import assert_openai_error

from appliance.errors import InfectedFile, ScannerUnavailable, TooLarge
from appliance.scanning import Scanning


class Scripted:
    """A scanner that says this, or raises it, once it has read so many pieces (all by default)."""

    def __init__(self, says: str | BaseException | None = None, pieces: int = 10**9) -> None:
        self.says = says
        self.pieces = pieces
        self.seen: list[bytes] = []

    async def scan(self, content) -> str | None:
        read = []
        async for piece in content:
            read.append(piece)
            if len(read) >= self.pieces:
                break
        self.seen.append(b"".join(read))
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says


async def abc():
    for piece in (b"a", b"b", b"c"):
        yield piece


def scanning(*scanners: Scripted) -> Scanning:
    return Scanning([(f"s{i}", scanner) for i, scanner in enumerate(scanners)])


def counts(found: Scanning) -> dict[str, float]:
    return dict(found.gauge.read())


async def test_every_scanner_sees_a_file_from_its_beginning() -> None:
    scanners = Scripted(pieces=2), Scripted()
    found = scanning(*scanners)
    await found.check(abc, "a.txt")
    assert [scanner.seen for scanner in scanners] == [[b"ab"], [b"abc"]]
    assert counts(found) == {"clean": 1, "infected": 0, "failed": 0}


async def test_what_one_finds_the_next_is_not_asked_about() -> None:
    late = Scripted()
    found = scanning(Scripted("Eicar"), late)
    with pytest.raises(InfectedFile, match=r"a\.txt is infected: the virus scanner found Eicar;"):
        await found.check(abc, "a.txt")
    assert late.seen == []
    assert counts(found) == {"clean": 0, "infected": 1, "failed": 0}


@pytest.mark.parametrize("error", [ValueError("own"), OSError("own"), TimeoutError(), KeyError("x")])
async def test_a_scanner_that_fails_in_its_own_way_is_503_and_only_the_log_says_how(caplog, error) -> None:
    found = scanning(Scripted(error))
    with pytest.raises(ScannerUnavailable, match="the scanner of plugin s0 failed") as refused:
        await found.check(abc, "a.txt")
    assert "own" not in str(refused.value)
    assert type(error).__name__ in caplog.text
    assert counts(found) == {"clean": 0, "infected": 0, "failed": 1}


@pytest.mark.parametrize("error", [TooLarge("split it"), ScannerUnavailable("wait")])
async def test_our_errors_are_told_as_they_are(error) -> None:
    with pytest.raises(type(error)) as refused:
        await scanning(Scripted(error)).check(abc, "a.txt")
    assert refused.value is error


@pytest.mark.parametrize(
    ("says", "told"), [("a\nb", "a b"), ("", "malware"), (" \n", "malware"), ("x" * 999, "x" * 200)]
)
async def test_a_name_is_one_short_line_and_none_at_all_is_a_finding_too(says, told) -> None:
    with pytest.raises(InfectedFile) as refused:
        await scanning(Scripted(says)).check(abc, "a.txt")
    assert refused.value.signature == told


async def test_a_client_that_leaves_while_its_file_is_scanned_leaves_nothing_behind(box) -> None:
    class Slow:
        def __init__(self) -> None:
            self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

        async def scan(self, content) -> str | None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

    slow = Slow()
    async with box(None, slow=provides(scanners=[slow])) as b:
        upload = asyncio.create_task(
            b.client.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "assistants"})
        )
        async with asyncio.timeout(20):
            await slow.begun.wait()
            upload.cancel()
            await asyncio.wait([upload])
        # The upload is whole, so its scan goes on without the client; here the server's end cancels it.
    async with asyncio.timeout(20):
        await slow.cancelled.wait()
    assert [path for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file()] == []


async def test_a_file_that_a_scanner_cannot_judge_is_not_kept(box) -> None:
    broken = Scripted(ValueError("own"))
    async with box(None, broken=provides(scanners=[broken])) as b:
        reply = await b.client.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "assistants"})
        assert assert_openai_error(reply, 503)["code"] == "scanner_unavailable"
        assert (await b.client.get("/v1/files")).json()["data"] == []
        assert [path for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file()] == []


async def test_D6_no_scanner_works_for_the_forms_of_a_caller_who_is_over_a_limit(box) -> None:
    scanner = Scripted()
    config = {"models": [{"name": "m", "engine": "scripted", "tasks": ["transcription"]}]}
    plugins = {"busy": provides(admitters=[Slots(limit=0)]), "scanner": provides(scanners=[scanner])}
    async with box(config=config, **plugins) as b:
        for _ in range(3):
            reply = await b.client.post(
                "/v1/audio/transcriptions", files={"file": ("a.wav", b"sound")}, data={"model": "m"}
            )
            assert_openai_error(reply, 429)
    assert scanner.seen == []
