"""Makes real documents for tests: each function writes one file into a folder and returns its path."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

PARAGRAPH = "The turbine room is inspected every 400 hours. The inspector signs the blue logbook."


def text(folder: Path, content: str = PARAGRAPH, name: str = "note.txt", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


def raw(folder: Path, content: bytes, name: str) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def umlaut_csv(folder: Path, encoding: str = "cp1252", name: str = "umlaut.csv") -> Path:
    """A header and 200 rows, one of them with umlauts."""
    rows = ["name;ort", *(f"Smith{i};Leeds" for i in range(199))]
    rows.insert(120, "Jürgen;Köln")
    return text(folder, "\r\n".join(rows) + "\r\n", name, encoding)


def html(folder: Path, name: str = "page.html") -> Path:
    page = f"""<!DOCTYPE html><html><head><title>Turbine manual</title><style>p {{color: red}}</style>
    <script>var secret_script = 1;</script></head><body><h1>Inspection</h1><p>{PARAGRAPH}</p>
    <table><tr><th>Part</th><th>Hours</th></tr><tr><td>Blade_A1</td><td>400</td></tr></table></body></html>"""
    return text(folder, page, name)


def docx(folder: Path, name: str = "manual.docx", title: str = "Turbine manual") -> Path:
    from docx import Document

    document = Document()
    document.core_properties.title = title
    document.add_heading("Inspection", level=1)
    document.add_paragraph(PARAGRAPH)
    table = document.add_table(rows=2, cols=2)
    for cell, word in zip(
        [c for row in table.rows for c in row.cells], ("Part", "Hours", "Blade_A1", "400"), strict=True
    ):
        cell.text = word
    document.add_picture(io.BytesIO(_png()))
    path = folder / name
    document.save(str(path))
    return path


def pptx(folder: Path, name: str = "slides.pptx") -> Path:
    from pptx import Presentation

    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Inspection"
    slide.placeholders[1].text = PARAGRAPH
    slide.notes_slide.notes_text_frame.text = "Mention the blue logbook."
    path = folder / name
    deck.save(str(path))
    return path


def xlsx(folder: Path, rows: Sequence[Sequence[object]] | None = None, name: str = "parts.xlsx") -> Path:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.title = "Parts"
    for row in rows or [["Part", "Hours", "Note"], ["Blade_A1", 400, None], [], ["Blade_A2", 800.5, "two\nlines"]]:
        sheet.append(list(row))
    path = folder / name
    book.save(path)
    return path


def pdf(folder: Path, pages: Sequence[str | None] = (PARAGRAPH,), name: str = "manual.pdf", password: str = "") -> Path:
    """A PDF with one page for each text; a page is an image and nothing else where the text is ``None``."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    path = folder / name
    canvas = Canvas(str(path), pagesize=A4, encrypt=password or None)
    canvas.setTitle("Turbine manual")
    for page in pages:
        if page is None:
            canvas.drawImage(ImageReader(io.BytesIO(_png())), 72, 500, 200, 200)
        for number, line in enumerate((page or "").split("\n")):
            canvas.drawString(72, 770 - 16 * number, line)
        canvas.showPage()
    canvas.save()
    return path


def zip_bomb(folder: Path, megabytes: int = 200, name: str = "bomb.docx") -> Path:
    """A small docx whose document part unpacks to very much."""
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        with archive.open("word/document.xml", "w") as part:
            for _ in range(megabytes):
                part.write(b"a" * 2**20)
    return path


def replace_part(path: Path, part: str, content: bytes) -> Path:
    """Put other content into one part of a zip-based document."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, old in {**parts, part: content}.items():
            archive.writestr(name, content if name == part else old)
    return path


def pdf_bomb(folder: Path, megabytes: int = 300, name: str = "bomb.pdf") -> Path:
    """A small PDF whose one page holds a stream that unpacks to very much text."""
    import zlib

    packer = zlib.compressobj(9)
    line = b"BT /F1 12 Tf 72 700 Td (aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) Tj ET\n" * 1000
    packed = b"".join(packer.compress(line) for _ in range(megabytes * 2**20 // len(line))) + packer.flush()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(packed), packed),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F1 5 0 R >> >>",
    ]
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 7\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer << /Size 7 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start
    return raw(folder, bytes(out), name)


def _png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), (30, 90, 160)).save(buffer, "PNG")
    return buffer.getvalue()
