"""Makes real documents for tests: each function writes one file into a folder and returns its path."""

from __future__ import annotations

import io
import struct
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


def epub(folder: Path, chapters: Sequence[str] = (), name: str = "book.epub", **parts: str) -> Path:
    """A book of XHTML chapters; ``parts`` are further files or other content of one, by name with ``__`` for ``/``."""
    pages = chapters or (f"<h1>Inspection</h1><p>{PARAGRAPH}</p>", "<h1>Blades</h1><p>Blade_A1 lasts.</p>")
    head = '<?xml version="1.0" encoding="utf-8"?>'
    content = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f"""{head}<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"
            version="1.0"><rootfiles><rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/>
            </rootfiles></container>""",
        "OPS/book.opf": f"""{head}<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata
            xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Turbine manual</dc:title></metadata><manifest>"""
        + "".join(
            f'<item id="c{i}" href="ch%20{i}.xhtml" media-type="application/xhtml+xml"/>' for i in range(len(pages))
        )
        + "</manifest><spine>"
        + "".join(f'<itemref idref="c{i}"/>' for i in range(len(pages)))
        + "</spine></package>",
    }
    for i, page in enumerate(pages):
        content[f"OPS/ch {i}.xhtml"] = (
            f'{head}<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><head><title>c</title></head>'
            f"<body>{page}</body></html>"
        )
    content |= {part.replace("__", "/"): text for part, text in parts.items()}
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, text in content.items():
            archive.writestr(part, text)
    return path


def msg(folder: Path, name: str = "mail.msg", **strings: str) -> Path:
    """A message as Outlook saves it (MS-OXMSG): strings by their property numbers, as ``p0037`` for the subject.

    A compound file (MS-CFB) of full sectors: every stream is padded with spaces to 4096 bytes and more.
    """
    given = {"p0037": "Turbine inspection", "p0C1A": "Ann", "p0C1F": "ann@example.org", "p1000": PARAGRAPH, **strings}
    streams = {
        f"__substg1.0_{key[1:]}001F": text.encode("utf-16-le") + b" \0" * max(0, 2048 - len(text))
        for key, text in given.items()
    }
    table = b"".join(
        struct.pack("<HHIII", 0x001F, int(key[1:], 16), 6, len(text) * 2 + 2, 0) for key, text in given.items()
    )
    streams["__properties_version1.0"] = bytes(32) + table + bytes(4096)
    return raw(folder, _compound_file(streams), name)


def _compound_file(streams: dict[str, bytes]) -> bytes:
    end, none = 0xFFFFFFFE, 0xFFFFFFFF
    names = sorted(streams, key=lambda name: (len(name), name.upper()))
    directory_sectors = (len(names) + 1 + 3) // 4
    fat = [0xFFFFFFFD, *(range(2, 1 + directory_sectors)), end]
    body = b""
    entries = [_entry("Root Entry", 5, child=1, start=end)]
    for number, name in enumerate(names, 1):
        data = streams[name] + bytes(-len(streams[name]) % 512)
        start = len(fat)
        fat += [*range(start + 1, start + len(data) // 512), end]
        right = number + 1 if number < len(names) else none
        entries.append(_entry(name, 2, right=right, start=start, size=len(streams[name])))
        body += data
    assert len(fat) <= 128
    directory = b"".join(entries) + bytes(-len(b"".join(entries)) % 512)
    header = struct.pack(
        "<8s16s5H6x10I", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), 0x3E, 3, 0xFFFE, 9, 6,
        0, 1, 1, 0, 4096, end, 0, end, 0, 0,
    )  # fmt: skip
    header += struct.pack("<108I", *[none] * 108)
    return header + struct.pack("<128I", *fat, *[none] * (128 - len(fat))) + directory + body


def _entry(
    name: str, kind: int, *, right: int = 0xFFFFFFFF, child: int = 0xFFFFFFFF, start: int, size: int = 0
) -> bytes:
    text = name.encode("utf-16-le")
    links = struct.pack("<BB3I", kind, 1, 0xFFFFFFFF, right, child)
    return struct.pack("<64sH", text, len(text) + 2) + links + bytes(36) + struct.pack("<IQ", start, size)


def table_pdf(folder: Path, pages: int = 1, name: str = "table.pdf") -> Path:
    """Pages of a paragraph, a table with rules, and another paragraph; page 1 has a bookmark."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate, Table

    class Bookmark(Flowable):
        """Marks the place; takes none."""

        def draw(self) -> None:
            self.canv.bookmarkPage("parts")
            self.canv.addOutlineEntry("Parts list", "parts")

    style, path = getSampleStyleSheet()["Normal"], folder / name
    story: list[object] = [Bookmark()]
    for _ in range(pages):
        rows = [["Part", "Hours"], ["Blade_A1", "400"], ["Blade|A2", "800\nor more"]]
        story += [Paragraph(f"Before. {PARAGRAPH}", style), Paragraph("Parts list", style)]
        story += [
            Table(rows, style=[("GRID", (0, 0), (-1, -1), 0.5, "black")]),
            Paragraph("After.", style),
            PageBreak(),
        ]
    SimpleDocTemplate(str(path), title="Parts").build(story)
    return path


def picture(text: str, size: int = 40, width: int = 1600, height: int = 400):
    """A picture of black text on white, a line a line."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (width, height), 255)
    ImageDraw.Draw(image).multiline_text((60, 60), text, font=ImageFont.load_default(size), fill=0, spacing=20)
    return image


def scanned_pdf(folder: Path, pages: Sequence[str], name: str = "scan.pdf") -> Path:
    """A PDF whose pages are pictures of text, and hold no text."""
    images = [picture(page) for page in pages]
    path = folder / name
    images[0].save(path, "PDF", save_all=True, append_images=images[1:], resolution=200)
    return path


def endless_pdf(folder: Path, levels: int = 6, name: str = "endless.pdf") -> Path:
    """A PDF of less than a kilobyte with 10 to the power of ``levels`` pages: each node holds the next ten times."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    for level in range(levels):
        kids = b" ".join([b"%d 0 R" % (level + 3)] * 10)
        objects.append(b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, 10 ** (levels - level)))
    objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] >>")
    return raw(folder, pdf_of(objects), name)


def pdf_of(objects: Sequence[bytes]) -> bytes:
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return bytes(out + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))


def long_table_pdf(folder: Path, captions: Sequence[str], name: str = "long.pdf") -> Path:
    """A page for each caption, with it on the first line and below it a ruled table; the first has the head."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Table

    story: list[object] = []
    for page, caption in enumerate(captions):
        rows = [["Part", "Hours"]] * (page == 0) + [[f"Blade_{page}{row}", f"{row}00"] for row in range(3)]
        table = Table(rows, colWidths=[100, 100], style=[("GRID", (0, 0), (-1, -1), 1, (0, 0, 0))])
        story += [Paragraph(caption, getSampleStyleSheet()["Normal"])] * bool(caption) + [table, PageBreak()]
    SimpleDocTemplate(str(folder / name)).build(story)
    return folder / name


def form_pdf(folder: Path, name: str = "form.pdf") -> Path:
    """A form that is filled in, with fields of every kind."""
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(folder / name))
    canvas.drawString(72, 800, "Application")
    form = canvas.acroForm
    form.textfield(name="surname", tooltip="Family name", value="Okonkwo", y=700)
    form.textfield(name="empty", value="", y=660)
    form.textfield(name="pin", value="4711", fieldFlags="password", y=620)
    form.textfield(name="secret", value="unseen", annotationFlags="hidden", y=600)
    form.textfield(name="address", value="Main St 1\nLeeds", fieldFlags="multiline", y=580)
    form.checkbox(name="agree", tooltip="I agree", checked=True, y=540)
    form.checkbox(name="letters", checked=False, y=500)
    form.radio(name="size", value="large", selected=True, y=460)
    form.radio(name="size", value="small", selected=False, y=460, x=172)
    form.choice(name="colour", value="green", options=["red", "green"], y=420)
    canvas.save()
    return folder / name


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
    lines = b"BT /F1 12 Tf 72 700 Td (aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) Tj ET\n" * 1000
    # A block that stands by itself (RFC 1951) can be had as often as wanted, without packing it each time.
    first, block = (packer.compress(lines) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    packed = first + block * (megabytes * 2**20 // len(lines)) + packer.flush()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(packed), packed),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F1 5 0 R >> >>",
    ]
    return raw(folder, pdf_of(objects), name)


def _png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), (30, 90, 160)).save(buffer, "PNG")
    return buffer.getvalue()
