"""The tesseract plugin on scans that are made here: pictures of text, and nothing else."""

from __future__ import annotations

import struct
import weakref
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import documents
import knowledge_kit
import pytest

from appliance.config import Config
from appliance.knowledge.parsing import ParserPool
from appliance.plugin import Document, InvalidFile, StartError
from appliance_retrieval.ocr import Scans, TesseractSettings, appliance_parsers
from appliance_retrieval.ocr.pictures import opened

LINES = "The zebrafinch sings at dawn\nTurbine 400 hours"


@pytest.fixture(scope="module")
def scans() -> Scans:
    return Scans(TesseractSettings(max_pages=2, dpi=200))


def parse(scans: Scans, path: Path) -> Document:
    return scans.parse(path, path.name, None)


@pytest.fixture
async def pool() -> AsyncIterator[ParserPool]:
    config = Config(plugins=("tesseract", "documents"), plugin={"tesseract": {"dpi": 200}})
    made = ParserPool(config, names=config.plugins)
    yield made
    await made.stop()


async def test_o19_a_scanned_pdf_is_read_by_a_confined_process_and_a_note_says_how(
    pool: ParserPool, tmp_path: Path
) -> None:
    path = documents.scanned_pdf(tmp_path, [LINES])
    document = await pool.parse(path, path.name, "application/pdf")
    assert "zebrafinch sings at dawn" in document.text
    assert document.notes == ("page 1 has text read by OCR",)


async def test_o19_words_of_a_scan_are_found_by_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge_kit, "YAML", knowledge_kit.YAML.replace("documents", "tesseract, documents"))
    async with knowledge_kit.stack(tmp_path) as made:
        store = await made.make_store()
        file = await made.upload(documents.scanned_pdf(tmp_path, ["nothing here", LINES]).read_bytes(), "scan.pdf")
        await made.attach(store, file)
        row = await made.settled(store, file, within=60)
        assert (row.status, row.notes) == ("completed", ["pages 1, 2 have text read by OCR"])
        (found,) = [passage for passage in await made.search(store, "zebrafinch") if passage.matched]
        assert found.file_id == file


async def test_other_files_still_go_to_the_documents_plugin(pool: ParserPool, tmp_path: Path) -> None:
    path = documents.docx(tmp_path)
    assert documents.PARAGRAPH in (await pool.parse(path, path.name)).text


def test_only_pages_without_text_are_read_by_ocr(scans: Scans, tmp_path: Path) -> None:
    path = documents.pdf(tmp_path, ["Printed words.", None])
    document = parse(scans, path)
    assert document.text == "Printed words."
    assert document.notes == ("page 2 has no text",)


def test_pages_over_the_limit_are_left_and_named(scans: Scans, tmp_path: Path) -> None:
    document = parse(scans, documents.scanned_pdf(tmp_path, ["first page", "second page", "third page"]))
    assert document.text.split("\n\n") == ["first page", "second page"]
    assert document.notes[:2] == ("page 3 has no text", "pages 1, 2 have text read by OCR")
    assert "plugin.tesseract.max_pages" in document.notes[2]


@pytest.mark.parametrize("format_", ["png", "jpg", "tiff", "bmp", "webp"])
def test_pictures_of_text_are_read(scans: Scans, tmp_path: Path, format_: str) -> None:
    path = tmp_path / f"scan.{format_}"
    documents.picture(LINES).save(path)
    assert "zebrafinch sings" in parse(scans, path).text


def test_all_pictures_of_a_tiff_are_read_up_to_the_limit(scans: Scans, tmp_path: Path) -> None:
    path = tmp_path / "fax.tif"
    pages = [documents.picture(text) for text in ("first page", "second page", "third page")]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    document = parse(scans, path)
    assert document.text == "first page\n\nsecond page"
    assert document.notes[1].startswith("1 pages are not read")


def test_only_one_picture_of_a_tiff_is_unpacked_at_a_time(tmp_path: Path) -> None:
    """A scan of 50 pages can be gigabytes, and a parser has two of memory."""
    path = tmp_path / "fax.tif"
    pages = [documents.picture(text) for text in ("first page", "second page", "third page")]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    before: weakref.ref[object] | None = None
    with opened(path) as (pictures, count):
        assert count == 3
        for _ in range(count):
            picture = next(pictures)
            assert before is None or before() is None
            before = weakref.ref(picture)
            del picture
        assert next(pictures, None) is None


def test_a_picture_that_lies_on_its_side_is_turned_as_it_says(scans: Scans, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "phone.jpg"
    exif = Image.Exif()
    exif[0x0112] = 8  # the camera was turned
    documents.picture(LINES).rotate(-90, expand=True).save(path, exif=exif)
    assert "zebrafinch" in parse(scans, path).text


def test_a_picture_without_text_is_invalid(scans: Scans, tmp_path: Path) -> None:
    path = tmp_path / "white.png"
    documents.picture("").save(path)
    with pytest.raises(InvalidFile, match="no text could be read"):
        parse(scans, path)


def bomb_png(side: int) -> bytes:
    """A picture of some hundred bytes with very many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_001, 2**31 - 1])
def test_C11_a_picture_of_too_many_pixels_is_refused_before_it_is_unpacked(
    scans: Scans, tmp_path: Path, side: int
) -> None:
    path = documents.raw(tmp_path, bomb_png(side), "bomb.png")
    with pytest.raises(InvalidFile, match=r"over the limit of 100000000|damaged"):
        parse(scans, path)


def test_C11_a_page_as_large_as_a_field_is_drawn_with_fewer_dots(scans: Scans, tmp_path: Path) -> None:
    from reportlab.pdfgen.canvas import Canvas

    path = tmp_path / "field.pdf"
    canvas = Canvas(str(path), pagesize=(14_400, 14_400))
    canvas.showPage()
    canvas.save()
    with pytest.raises(InvalidFile, match="OCR found none either"):
        parse(scans, path)


def test_damaged_pictures_are_invalid(scans: Scans, tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    documents.picture(LINES).save(path)
    for content in (path.read_bytes()[:400], b"no picture at all"):
        with pytest.raises(InvalidFile, match="damaged"):
            parse(scans, documents.raw(tmp_path, content, "cut.png"))


def test_a_language_that_is_not_there_stops_the_start_and_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"plugin\.tesseract\.languages: .* apt-get install tesseract-ocr-chi-sim"):
        appliance_parsers(TesseractSettings(languages=("chi_sim",)))
    with pytest.raises(StartError, match=r"plugin\.tesseract\.data"):
        appliance_parsers(TesseractSettings(data=str(tmp_path)))
