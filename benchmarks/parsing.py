"""Pages a second of the parsers, each file parsed by a confined process as ingestion does it.

PDF pages of plain text and of ruled tables, these also with the search for tables left out; scanned pages by OCR;
source code; and what the process of its own costs a small file.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from appliance.config import Config, RetrievalConfig
from appliance.knowledge.parsing import ParserPool

PARAGRAPH = "The turbine room is inspected every 400 hours. The inspector signs the blue logbook. " * 12


def main(arguments: list[str] | None = None) -> int:
    """Print a line a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parsing", description=__doc__)
    parser.add_argument("--pages", type=int, default=200, help="pages of each PDF file")
    parser.add_argument("--scans", type=int, default=10, help="scanned pages")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder), options.pages, options.scans))
    return 0


async def _measure(folder: Path, pages: int, scans: int) -> None:
    retrieval = RetrievalConfig(parse_timeout=600)
    config = Config(plugins=("tesseract", "documents"), retrieval=retrieval)
    with_ocr = ParserPool(config, names=("tesseract", "documents"))
    without = ParserPool(config, names=("documents",))
    try:
        plain, tables = _pdf(folder, "plain.pdf", pages, ruled=False), _pdf(folder, "tables.pdf", pages, ruled=True)
        await _line(without, plain, "PDF, text", pages, "pages/s")
        await _line(without, tables, "PDF, a ruled table on each page, as Markdown", pages, "pages/s")
        print(f"{'the same, tables left as text':<48}{pages / _without_tables(tables):10.1f} pages/s")
        await _line(with_ocr, _scan(folder, scans), "PDF, scanned, 200 dpi, by OCR", scans, "pages/s")
        await _line(without, _source(folder), "Python source", 0, "MB/s")
        small = folder / "small.txt"
        small.write_text(PARAGRAPH)
        began = time.perf_counter()
        for _ in range(50):
            await without.parse(small, small.name)
        print(f"{'a small text file':<48}{(time.perf_counter() - began) / 50 * 1000:10.1f} ms")
    finally:
        await with_ocr.stop()
        await without.stop()


async def _line(pool: ParserPool, path: Path, what: str, count: int, unit: str) -> None:
    await pool.parse(path, path.name)  # loads the libraries
    began = time.perf_counter()
    await pool.parse(path, path.name)
    seconds = time.perf_counter() - began
    amount = count or path.stat().st_size / 1e6
    print(f"{what:<48}{amount / seconds:10.1f} {unit}", flush=True)


def _without_tables(path: Path) -> float:
    import pypdfium2

    began = time.perf_counter()
    document = pypdfium2.PdfDocument(path)
    for number in range(len(document)):
        document[number].get_textpage().get_text_bounded()
    document.close()
    return time.perf_counter() - began


def _pdf(folder: Path, name: str, pages: int, *, ruled: bool) -> Path:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Table

    style, rows = getSampleStyleSheet()["Normal"], [[f"part {i}", str(400 * i), "checked"] for i in range(15)]
    story: list[object] = []
    for _ in range(pages):
        story += [Paragraph(PARAGRAPH, style)]
        story += [Table(rows, style=[("GRID", (0, 0), (-1, -1), 0.5, "black")])] if ruled else []
        story += [Paragraph(PARAGRAPH, style), PageBreak()]
    SimpleDocTemplate(str(folder / name)).build(story)
    return folder / name


def _scan(folder: Path, pages: int) -> Path:
    import pypdfium2

    document = pypdfium2.PdfDocument(_pdf(folder, "to_scan.pdf", pages, ruled=False))
    images = [document[number].render(scale=200 / 72, grayscale=True).to_pil() for number in range(pages)]
    images[0].save(folder / "scan.pdf", save_all=True, append_images=images[1:], resolution=200)
    return folder / "scan.pdf"


def _source(folder: Path) -> Path:
    import argparse as module

    path = folder / "source.py"
    path.write_text(Path(module.__file__).read_text() * 5)
    return path


if __name__ == "__main__":
    raise SystemExit(main())
