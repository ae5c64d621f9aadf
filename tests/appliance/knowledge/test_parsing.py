"""The parsing process: what it parses, and what it survives."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import documents
import pytest
from eventually import until
from parsing_kit import Pool, children, gone, pid_of, probe

from appliance.errors import InvalidFile, StartError, UnsupportedFile

# -- parsing ---------------------------------------------------------------------------------------------


async def test_real_documents_are_parsed_in_the_child(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    for make in (documents.text, documents.html, documents.pdf, documents.docx, documents.pptx):
        path = make(tmp_path)
        assert documents.PARAGRAPH in (await parsers.parse(path, path.name)).text


async def test_a_stored_file_is_recognised_by_the_name_it_was_uploaded_under(pool: Pool, tmp_path: Path) -> None:
    path = documents.pdf(tmp_path, [None, documents.PARAGRAPH], name="0a1b2c")
    document = await pool("documents").parse(path, "Manual.PDF", "application/octet-stream")
    assert document.notes == ("page 1 has no text",)


async def test_o18_a_declared_charset_reaches_the_parser(pool: Pool, tmp_path: Path) -> None:
    path = documents.text(tmp_path, "cena;Łódź", "ceny.csv", "iso-8859-2")
    assert (await pool("documents").parse(path, path.name, "text/csv; charset=iso-8859-2")).text == "cena;Łódź"


async def test_any_text_type_and_a_name_without_suffix_count_as_text(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    assert (await parsers.parse(documents.text(tmp_path, "all: build", "Makefile"), "Makefile")).text == "all: build"
    assert (await parsers.parse(documents.text(tmp_path, "a", "a.odd"), "a.odd", "text/x-odd")).text == "a"


async def test_o19_a_file_nobody_reads_is_unsupported_and_the_error_lists_what_is(pool: Pool, tmp_path: Path) -> None:
    path = documents.raw(tmp_path, b"RIFF", "film.avi")
    with pytest.raises(UnsupportedFile, match=r"no parser reads \.avi; supported: .*\.pdf"):
        await pool("documents").parse(path, "film.avi", "video/x-msvideo")


@pytest.mark.parametrize("suffix", [".doc", ".xls", ".PPT"])
async def test_o19_an_office_file_of_before_2007_is_told_what_to_save_it_as(
    pool: Pool, tmp_path: Path, suffix: str
) -> None:
    path = documents.raw(tmp_path, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old" + suffix)
    with pytest.raises(
        UnsupportedFile, match=rf"^no parser reads \{suffix.lower()}; save the file as \{suffix.lower()}x$"
    ):
        await pool("documents").parse(path, path.name, "application/octet-stream")


async def test_o19_empty_and_encrypted_files_fail_by_their_kind(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents")
    with pytest.raises(InvalidFile, match="0 bytes"):
        await parsers.parse(documents.raw(tmp_path, b"", "a.txt"), "a.txt")
    with pytest.raises(UnsupportedFile, match="encrypted"):
        await parsers.parse(documents.pdf(tmp_path, password="letmein"), "a.pdf")


async def test_line_breaks_are_unified_and_invisible_characters_dropped(pool: Pool, tmp_path: Path) -> None:
    text = await probe(pool(), tmp_path, "hidden")
    assert text == "abc\ndef \U0001f469\u200d\U0001f4bb\ufe0f"


@pytest.mark.parametrize("what", ["blank", "huge"])
async def test_no_text_and_too_much_text_are_invalid(pool: Pool, tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidFile, match="text"):
        await probe(pool(), tmp_path, what)


async def test_the_child_is_kept_for_the_next_file(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    assert await pid_of(parsers, tmp_path) == await pid_of(parsers, tmp_path)


async def test_files_are_parsed_side_by_side_up_to_the_size_of_the_pool(pool: Pool, tmp_path: Path) -> None:
    parsers = pool(size=2)
    pids = await asyncio.gather(*(pid_of(parsers, tmp_path) for _ in range(6)))
    assert len(set(pids)) == 2


async def test_a_plugin_that_fails_to_load_is_a_start_error_that_names_it(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="plugin broken needs the Python package no_such_module"):
        await pid_of(pool("broken"), tmp_path)


# -- hostile documents and failing parsers ---------------------------------------------------------------


async def test_an_endless_parser_is_stopped_and_the_next_file_is_parsed(pool: Pool, tmp_path: Path) -> None:
    parsers = pool(timeout=1.5)
    first = await pid_of(parsers, tmp_path)
    with pytest.raises(InvalidFile, match=r"ran out of time \(1\.5 s\).*retrieval\.parse_timeout"):
        await probe(parsers, tmp_path, "loop")
    assert gone(first)
    assert await pid_of(parsers, tmp_path) != first


async def test_a_parser_that_wants_too_much_memory_is_invalid_and_the_next_file_is_parsed(
    pool: Pool, tmp_path: Path
) -> None:
    parsers = pool()
    with pytest.raises(InvalidFile, match=r"ran out of memory.*retrieval\.parse_memory"):
        await probe(parsers, tmp_path, "memory")
    assert await pid_of(parsers, tmp_path)


@pytest.mark.parametrize("what", ["crash", "oom", "leave"])
async def test_a_crash_fails_one_file_and_no_other(pool: Pool, tmp_path: Path, what: str) -> None:
    parsers = pool()
    with pytest.raises(InvalidFile, match=r"retrieval\.parse_memory"):
        await probe(parsers, tmp_path, what)
    assert await pid_of(parsers, tmp_path)


async def test_kill_9_in_the_middle_of_a_file_fails_that_file_alone(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = asyncio.create_task(probe(parsers, tmp_path, "sleep"))
    await until(lambda: children(pid))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InvalidFile, match="killed"):
        await parsing
    assert await pid_of(parsers, tmp_path) != pid


async def test_a_child_killed_between_files_is_replaced_unnoticed(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: gone(pid))
    assert await pid_of(parsers, tmp_path) != pid


async def test_a_cancelled_parse_leaves_no_process(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = asyncio.create_task(probe(parsers, tmp_path, "loop"))
    await until(lambda: children(pid))
    forks = children(pid)
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert gone(pid)
    await until(lambda: all(map(gone, forks)))
    assert await pid_of(parsers, tmp_path) != pid


async def test_a_parse_that_is_cancelled_again_and_again_leaves_no_process(pool: Pool, tmp_path: Path) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = asyncio.create_task(probe(parsers, tmp_path, "loop"))
    await until(lambda: children(pid))
    while not parsing.done():
        parsing.cancel()
        await asyncio.sleep(0)
    assert parsing.cancelled()
    assert gone(pid)


async def test_stop_in_the_middle_of_a_file_ends_its_fork_and_does_not_blame_the_file(
    pool: Pool, tmp_path: Path
) -> None:
    parsers = pool()
    pid = await pid_of(parsers, tmp_path)
    parsing = [asyncio.create_task(probe(parsers, tmp_path, "loop")) for _ in range(2)]
    await until(lambda: children(pid))
    pids = [pid, *children(pid)]
    await parsers.stop()
    for each in parsing:
        with pytest.raises(StartError, match="stopped"):
            await each
    await until(lambda: all(map(gone, pids)))
    await parsers.stop()


@pytest.mark.parametrize("what", ["fail", "deep"])
async def test_a_parser_that_raises_is_invalid_and_its_words_stay_inside(pool: Pool, tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidFile, match=r"the parser failed \((KeyError|RecursionError)\)"):
        await probe(pool(), tmp_path, what)


async def test_what_a_parser_prints_does_not_disturb_the_replies(pool: Pool, tmp_path: Path) -> None:
    assert await probe(pool(), tmp_path, "chatter") == "fine"


@pytest.mark.slow
async def test_C11_bombs_fail_one_after_the_other_and_the_queue_moves_on(pool: Pool, tmp_path: Path) -> None:
    parsers = pool("documents", timeout=30.0, memory=2**30)
    good = documents.pdf(tmp_path)
    laughs = '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><container>&b;</container>'
    bombs = (
        documents.zip_bomb(tmp_path),
        documents.zip_bomb(tmp_path, name="bomb.xlsx"),
        documents.epub(tmp_path, ["a" * 40 * 2**20], "bomb.epub"),
        documents.epub(tmp_path, name="laughs.epub", **{"META-INF__container.xml": laughs}),
        documents.pdf_bomb(tmp_path, 1500),
        documents.endless_pdf(tmp_path),
        documents.text(tmp_path, "[" * 1_000_000, "deep.json"),
        documents.raw(
            tmp_path, b"Subject: a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nx" * 5000, "deep.eml"
        ),
    )
    for bomb in bombs:
        try:
            shown = (await parsers.parse(bomb, bomb.name)).text
        except InvalidFile as error:
            shown = str(error)
        assert len(shown) <= max(300, bomb.stat().st_size)
        assert (await parsers.parse(good, good.name)).text == documents.PARAGRAPH
