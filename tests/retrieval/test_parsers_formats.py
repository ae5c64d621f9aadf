"""Code, data, books, e-mail and tables: what comes out of real files, and of hostile ones."""

from __future__ import annotations

import json
from email.message import EmailMessage
from pathlib import Path

import documents
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.plugin import Document, InvalidFile, UnsupportedFile
from appliance_retrieval.parsers import Documents, code, data, pdf, pdf_tables


def parse(path: Path, media_type: str | None = None) -> Document:
    return Documents().parse(path, path.name, media_type)


def parse_text(folder: Path, text: str, name: str) -> Document:
    return parse(documents.text(folder, text, name))


# -- source code -----------------------------------------------------------------------------------------

SOURCES = {
    ".py": ("# about\n@dec\nclass A(B):\n    def f(self):\n        return 1\n\nprint(1)\n", "class A(B)|def f(self)|"),
    ".js": ("// c\nexport class A {\n  f(a) { return 1 }\n}\nfunction g(x) {}\n", "class A|f(a)|function g(x)"),
    ".ts": (
        "interface I { a: string }\nclass A<T> {\n  f(a: T): T { return a }\n}\n",
        "interface I|class A<T>|f(a: T): T",
    ),
    ".tsx": ("export function App() {\n  return <div/>\n}\n", "function App()"),
    ".java": ("/** d */\nclass A extends B {\n  int f(int a) { return 1; }\n}\n", "class A extends B|int f(int a)"),
    ".go": ("package p\n// F does\nfunc F(a int) error {\n\treturn nil\n}\n", "func F(a int) error"),
    ".rs": ("#[derive(X)]\nstruct S { a: i32 }\nimpl S {\n  fn f(&self) {}\n}\n", "struct S|impl S|fn f(&self)"),
    ".c": ("int main(int n) {\n  return 0;\n}\nstruct s { int a; };\n", "int main(int n)|struct s"),
    ".cpp": ("namespace n {\ntemplate <class T>\nint g(T t) { return 2; }\n}\n", "namespace n|int g(T t)"),
    ".cs": ("namespace N {\n class A : B {\n  int F() { return 1; }\n }\n}\n", "namespace N|class A : B|int F()"),
    ".rb": ("module M\n  class A < B\n    def f(x)\n      1\n    end\n  end\nend\n", "module M|class A < B|def f(x)"),
    ".php": ("<?php\nclass A {\n  function f($a) { return 1; }\n}\n", "class A|function f($a)"),
    ".sh": ("f() {\n  echo 1\n}\n", "f()"),
}


@pytest.mark.parametrize("suffix", SOURCES)
def test_definitions_of_source_code_are_its_outline(tmp_path: Path, suffix: str) -> None:
    source, titles = SOURCES[suffix]
    document = parse_text(tmp_path, source, f"a{suffix}")
    assert document.text == source
    assert document.language == code.LANGUAGES[suffix]
    assert "|".join(heading.title for heading in document.outline) == titles


def test_a_definition_begins_with_its_decorators_and_the_comment_above_it(tmp_path: Path) -> None:
    source, _ = SOURCES[".py"]
    first, second, last = parse_text(tmp_path, source, "a.py").outline
    assert (first.start, first.level) == (0, 1)
    assert (second.level, source[second.start :].splitlines()[0]) == (2, "    def f(self):")
    assert source[last.start :].splitlines()[-1] == "print(1)"


def test_code_without_a_grammar_is_text_in_a_language(tmp_path: Path) -> None:
    document = parse_text(tmp_path, "fun main() {}", "a.kt")
    assert (document.language, document.outline) == ("kt", ())
    assert parse_text(tmp_path, "a,b\n1,2", "a.csv").language == "csv"
    assert parse_text(tmp_path, "prose", "a.txt").language == ""


@given(st.text(alphabet="def class(x):{}\n @#é😀\t;", max_size=200), st.sampled_from(sorted(code.LANGUAGES)))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_code_has_an_outline_that_ascends_along_its_lines(text: str, suffix: str) -> None:
    starts = [heading.start for heading in code.outlined(Document(text=text), suffix).outline]
    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] == "\n" for start in starts)


@pytest.mark.parametrize("unit", ["(", "{", "def f():\n ", "class A{", "[[", "\\", "'", "#"])
def test_hostile_code_is_taken_within_moments(tmp_path: Path, unit: str) -> None:
    text = unit * (200_000 // len(unit))
    assert parse_text(tmp_path, text, "a.py").text == text
    assert parse_text(tmp_path, text, "a.cpp").text == text


# -- data ------------------------------------------------------------------------------------------------


def test_json_becomes_lines_with_their_paths_and_no_value_is_lost(tmp_path: Path) -> None:
    value = {
        "title": "Parts",
        "n": 1.50,
        "list": [1, "b", True],
        "deep": [{"a": {"b": "x"}}, []],
        "no": None,
        "ok": False,
    }
    document = parse_text(tmp_path, json.dumps(value), "a.json")
    assert document.text == "title: Parts\nn: 1.5\nlist: 1, b, true\ndeep[0].a.b: x\nok: false"
    assert document.title == "Parts"


def test_records_of_json_are_apart(tmp_path: Path) -> None:
    expected = "a: 1\nb: x\n\na: 2"
    assert parse_text(tmp_path, '[{"a": 1, "b": "x"}, {"a": 2}]', "a.json").text == expected
    assert parse_text(tmp_path, '{"a": 1, "b": "x"}\n\n{"a": 2}\n', "a.jsonl").text == expected


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_what_is_no_json_is_taken_as_text_and_a_note_says_so(tmp_path: Path, name: str) -> None:
    document = parse_text(tmp_path, '{"a": 1, // comment', name)
    assert document.text == '{"a": 1, // comment'
    assert "no JSON" in document.notes[0]


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ipynb"])
def test_C11_json_that_is_nested_too_deep_is_invalid(tmp_path: Path, depth: int, name: str) -> None:
    with pytest.raises(InvalidFile):
        parse_text(tmp_path, '{"a":' + "[" * depth + "1" + "]" * depth + "}", name)


def test_a_number_of_a_million_digits_is_only_text(tmp_path: Path) -> None:
    assert len(parse_text(tmp_path, '{"n": ' + "9" * 1_000_000 + "}", "a.json").text) == 1_000_003


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda v: st.lists(v) | st.dictionaries(st.text(max_size=3), v),
        max_leaves=10,
    )
)
def test_every_word_of_json_is_in_its_lines(value: object) -> None:
    lines = "\n".join(data._lines(value))
    for word in _words(value):
        assert word in lines


def _words(value: object) -> list[str]:
    if isinstance(value, dict):
        return [word for item in value.values() for word in _words(item)]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    return [value] if isinstance(value, str) else []


def test_a_notebook_gives_its_cells_and_what_they_printed(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Lamps\n", "They glow."]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": ["1\n"]}, {"data": {"image/png": "x"}}]},
        {"cell_type": "code", "source": "", "outputs": []},
    ]
    document = parse_text(tmp_path, json.dumps({"cells": cells, "nbformat": 4}), "a.ipynb")
    assert document.text == "# Lamps\nThey glow.\n\n```python\nprint(1)\n```\n\n1\n"
    assert [heading.title for heading in document.outline] == ["Lamps"]


def test_json_that_is_no_notebook_is_invalid(tmp_path: Path) -> None:
    for text in ("[]", '{"cells": 5}', '{"cells": [{}]}', "no"):
        with pytest.raises(InvalidFile, match="notebook"):
            parse_text(tmp_path, text, "a.ipynb")


# -- books -----------------------------------------------------------------------------------------------


def test_a_book_gives_its_chapters_in_order_with_headings_and_title(tmp_path: Path) -> None:
    document = parse(documents.epub(tmp_path))
    assert document.title == "Turbine manual"
    assert document.text == f"# Inspection\n\n{documents.PARAGRAPH}\n\n# Blades\n\nBlade_A1 lasts."
    assert [heading.title for heading in document.outline] == ["Inspection", "Blades"]


def test_a_book_is_known_by_its_content_not_by_its_suffix(tmp_path: Path) -> None:
    assert "# Blades" in parse(documents.epub(tmp_path, name="book.bin")).text


def test_a_copy_protected_book_is_unsupported_and_one_with_scrambled_fonts_is_read(tmp_path: Path) -> None:
    entry = '<e xmlns:x="http://www.w3.org/2001/04/xmlenc#"><x:CipherReference URI="OPS/{}"/></e>'
    part = "META-INF__encryption.xml"
    assert parse(documents.epub(tmp_path, **{part: entry.format("font.otf")})).text
    with pytest.raises(UnsupportedFile, match="copy-protected"):
        parse(documents.epub(tmp_path, **{part: entry.format("ch%201.xhtml")}))


LAUGHS = (
    '<!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(
        f'<!ENTITY {chr(98 + i)} "{"&" + chr(97 + i) + ";" * 1}{("&" + chr(97 + i) + ";") * 9}">' for i in range(9)
    )
    + "]>"
)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("META-INF__container.xml", f"{LAUGHS}<container>&j;</container>"),
        ("OPS__book.opf", f"{LAUGHS}<package>&j;</package>"),
        ("OPS__book.opf", '<!DOCTYPE p [<!ENTITY x SYSTEM "file:///etc/passwd">]><package>&x;</package>'),
        (
            "OPS__book.opf",
            '<package xmlns="http://www.idpf.org/2007/opf"><spine><itemref idref="no"/></spine></package>',
        ),
        ("OPS__book.opf", "<broken"),
        ("META-INF__container.xml", "<container/>"),
    ],
)
def test_C11_a_book_with_entities_or_broken_parts_is_invalid(tmp_path: Path, part: str, content: str) -> None:
    with pytest.raises(InvalidFile):
        parse(documents.epub(tmp_path, **{part: content}))


def test_C11_entities_of_a_chapter_are_not_expanded(tmp_path: Path) -> None:
    page = f"{LAUGHS}<html><body>&j; {documents.PARAGRAPH}</body></html>"
    text = parse(documents.epub(tmp_path, **{"OPS__ch 0.xhtml": page})).text
    assert documents.PARAGRAPH in text
    assert len(text) < 2000


def test_C11_a_zip_bomb_of_any_kind_is_refused(tmp_path: Path) -> None:
    for suffix in ("docx", "xlsx", "pptx"):
        with pytest.raises(InvalidFile):
            parse(documents.zip_bomb(tmp_path, 50, f"bomb.{suffix}"))
    with pytest.raises(InvalidFile, match="100 times its size"):
        parse(documents.epub(tmp_path, ["a" * 50 * 2**20]))


def test_C11_entities_are_refused_in_a_part_of_any_name_and_pictures_may_have_a_document_type(tmp_path: Path) -> None:
    drawing = (
        b'<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd"><svg/>'
    )
    path = documents.replace_part(documents.docx(tmp_path), "word/media/drawing.svg", drawing)
    assert documents.PARAGRAPH in parse(path).text
    for name in ("word/main.data", "word/media/image1.svg", "word/media/IMAGE", "main.html"):
        for encoding in ("utf-8", "utf-16"):
            declared = '<!DOCTYPE l [<!ENTITY a "ha">]><l>&a;</l>'.encode(encoding)
            with pytest.raises(InvalidFile, match="declares XML entities"):
                parse(documents.replace_part(documents.docx(tmp_path), name, declared))


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-32-le", "UTF-32"),
        ("utf-32-be", "UCS-4"),
        ("utf-32", "UTF-32"),
        ("utf-7", "utf-7"),
        ("cp037", "IBM037"),
        ("ascii", " " * 2**21 + "UTF-7"),
    ],
)
def test_C11_xml_in_an_encoding_that_hides_entities_is_refused(tmp_path: Path, encoding: str, named: str) -> None:
    """libxml2 reads most of them, entities and all."""
    data = f'<?xml version="1.0" encoding="{named}"?><!DOCTYPE l [<!ENTITY a "ha">]><l>&a;</l>'.encode(encoding)
    data = data.replace(b"<!", b"+ADwAIQ-")  # as UTF-7 may write it
    path = documents.replace_part(documents.docx(tmp_path), "word/document.xml", data)
    with pytest.raises(InvalidFile, match="another encoding than UTF-8 and UTF-16"):
        parse(path)


@pytest.mark.parametrize(
    "head", ["", '<?xml version="1.0"?>', "<?xml version='1.0' encoding = 'Windows-1252' standalone='yes'?>"]
)
def test_C11_xml_in_an_ordinary_encoding_is_read(tmp_path: Path, head: str) -> None:
    path = documents.replace_part(documents.docx(tmp_path), "docProps/custom.xml", f"{head}<a>text</a>".encode())
    assert documents.PARAGRAPH in parse(path).text


@pytest.mark.parametrize("last", [1_048_576, 10**12])
def test_C11_a_sheet_that_says_it_is_huge_is_read_as_large_as_it_is(tmp_path: Path, last: int) -> None:
    """As Excel says after somebody has formatted whole columns: filled up to that, it would take minutes."""
    row = '<row r="{at}"><c r="A{at}" t="inlineStr"><is><t>value {at}</t></is></c></row>'
    sheet = f"""<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">
        <dimension ref="A1:XFD1048576"/><sheetData>{row.format(at=1)}{row.format(at=last)}</sheetData></worksheet>"""
    path = documents.replace_part(documents.xlsx(tmp_path), "xl/worksheets/sheet1.xml", sheet.encode())
    rows = ["| value 1 |", "| value 1048576 |"] if last == 1_048_576 else ["| value 1 |"]
    assert parse(path).text.splitlines()[2:] == rows


# -- e-mail ----------------------------------------------------------------------------------------------


def mail(subject: str = "Inspection", body: str = documents.PARAGRAPH) -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, "Ann Ærø <ann@example.org>", "b@example.org"
    message.set_content(body)
    return message


def parse_mail(folder: Path, message: EmailMessage | bytes) -> Document:
    return parse(documents.raw(folder, message if isinstance(message, bytes) else bytes(message), "a.eml"))


def test_a_message_gives_its_headers_and_text(tmp_path: Path) -> None:
    document = parse_mail(tmp_path, mail("Größe der Turbine"))
    assert document.title == "Größe der Turbine"
    assert document.text.startswith(
        "Subject: Größe der Turbine\nFrom: Ann Ærø <ann@example.org>\nTo: b@example.org\n\n"
    )
    assert document.text.endswith(documents.PARAGRAPH)


def test_plain_text_comes_before_html_and_html_becomes_markdown(tmp_path: Path) -> None:
    message = mail()
    message.add_alternative("<h1>Other</h1>", subtype="html")
    assert "Other" not in parse_mail(tmp_path, message).text
    message = mail()
    message.set_content("<h1>Ümlaut</h1><script>x()</script>", subtype="html", charset="iso-8859-1")
    assert parse_mail(tmp_path, message).text.endswith("# Ümlaut")


def test_attachments_are_named_and_forwarded_messages_are_read(tmp_path: Path) -> None:
    inner, message = mail("Inner", "inner words"), mail()
    inner.add_attachment(b"x", maintype="application", subtype="pdf", filename="in.pdf")
    message.add_attachment(b"x", maintype="application", subtype="pdf", filename="out.pdf")
    message.add_attachment(inner)
    document = parse_mail(tmp_path, message)
    assert "Subject: Inner" in document.text
    assert document.text.count("inner words") == 1
    assert [note.split()[2] for note in document.notes] == ["out.pdf", "in.pdf"]


def test_texts_around_an_attachment_are_all_read_and_an_alternative_once(tmp_path: Path) -> None:
    message = mail(body="before the plan")
    message.add_alternative("<p>the same as a page</p>", subtype="html")
    message.add_attachment(b"x", maintype="application", subtype="pdf", filename="plan.pdf", disposition="inline")
    message.add_attachment(b"x", maintype="image", subtype="png", filename="logo.png", disposition="inline")
    message.add_attachment("behind the plan", disposition="inline")
    document = parse_mail(tmp_path, message)
    assert document.text.endswith("\n\nbefore the plan\n\nbehind the plan")
    assert document.notes == ("the attachment plan.pdf is not read; upload it by itself",)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Type: text/plain; charset=x-made-up\n", "Jürgen".encode("cp1252")),
        (b"Content-Type: text/plain; charset=us-ascii\n", "Jürgen".encode("cp1252")),
        (b"Content-Type: text/plain; charset=utf-8\n", "Jürgen".encode("cp1252")),
        (b"Content-Type: text/html; charset=utf-8\n", "<p>Jürgen</p>".encode("cp1252")),
        (b"", "Jürgen".encode()),
        (b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n", b"SsO8cmdlbg="),
    ],
)
def test_o18_a_message_with_a_wrong_charset_or_none_is_read_by_what_its_bytes_say(
    tmp_path: Path, headers: bytes, body: bytes
) -> None:
    document = parse_mail(tmp_path, b"Subject: Gr\xc3\xbc\xc3\x9fe\n" + headers + b"\n" + body)
    assert document.text == "Subject: Grüße\n\nJürgen"
    assert document.title == "Grüße"


def test_C11_messages_nested_too_deep_or_of_too_many_parts_end(tmp_path: Path) -> None:
    message = mail("0", "deepest")
    for level in range(1, 15):
        outer = mail(str(level), f"level {level}")
        outer.add_attachment(message)
        message = outer
    document = parse_mail(tmp_path, message)
    assert "level 14" in document.text
    assert "level 1\n" not in document.text
    assert any("nested deeper" in note for note in document.notes)
    head = b"Subject: a\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n"
    with pytest.raises(InvalidFile, match="more than 1000 parts"):
        parse_mail(tmp_path, head + b"--b\n\nx\n" * 1500 + b"--b--")
    nested = b"Subject: a\n" + b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i) for i in range(3000)
    )
    with pytest.raises(InvalidFile):
        parse_mail(tmp_path, nested)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_message_is_read_or_invalid(tmp_path: Path, body: bytes) -> None:
    try:
        shown = parse_mail(tmp_path, b"Subject: a\nContent-Type: " + body).text
    except (InvalidFile, UnsupportedFile) as error:
        shown = str(error)
    assert shown.strip()


def test_a_text_that_is_no_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no e-mail"):
        parse_mail(tmp_path, b"just text")


def test_a_message_of_outlook_gives_its_headers_and_text(tmp_path: Path) -> None:
    document = parse(documents.msg(tmp_path))
    assert document.title == "Turbine inspection"
    assert document.text.startswith("Subject: Turbine inspection\nFrom: ")
    assert document.text.endswith(documents.PARAGRAPH)


def test_a_damaged_message_of_outlook_is_invalid(tmp_path: Path) -> None:
    path = documents.msg(tmp_path)
    for size in (100, 600, 1500, 5000):
        with pytest.raises(InvalidFile):
            parse(documents.raw(tmp_path, path.read_bytes()[:size], "cut.msg"))


# -- PDF -------------------------------------------------------------------------------------------------

TABLE = "| Part | Hours |\n| --- | --- |\n| Blade_A1 | 400 |\n| Blade / A2 | 800 or more |"


def test_a_ruled_table_of_a_pdf_is_markdown_among_the_text_around_it(tmp_path: Path) -> None:
    text = parse(documents.table_pdf(tmp_path)).text
    before, table, after = text.split("\n\n")
    assert before.startswith("Before. The turbine room")
    assert table == TABLE
    assert after == "After."
    assert text.count("Blade_A1") == 1


@pytest.mark.parametrize("captions", [["", "", ""], ["Parts", "", ""], ["Manual, page 1", "Manual, page 2", ""]])
def test_a_table_of_a_pdf_that_goes_on_has_its_head_on_each_page(tmp_path: Path, captions: list[str]) -> None:
    text = parse(documents.long_table_pdf(tmp_path, captions)).text
    for page in range(3):
        assert f"| Part | Hours |\n| --- | --- |\n| Blade_{page}0 | 000 |\n| Blade_{page}1 | 100 |" in text
    assert text.count("Blade_") == 9


def test_a_table_of_a_pdf_under_a_caption_of_its_own_keeps_its_own_head(tmp_path: Path) -> None:
    text = parse(documents.long_table_pdf(tmp_path, ["Parts", "Others"])).text
    assert text.count("| Part | Hours |") == 1
    assert "Others\n\n| Blade_10 | 000 |\n| --- | --- |" in text


def test_what_is_filled_into_a_pdf_form_is_read_but_for_passwords_and_hidden_fields(tmp_path: Path) -> None:
    text = parse(documents.form_pdf(tmp_path)).text
    lines = ["Family name: Okonkwo", "address: Main St 1 Leeds", "I agree: Yes", "size: large", "colour: green"]
    assert text == "Application\n\n" + "\n".join(lines)


def test_tables_behind_the_limit_are_plain_text_and_a_note_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pdf_tables, "MAX_PAGES", 1)
    document = parse(documents.table_pdf(tmp_path, pages=2))
    assert document.text.count("| Blade_A1 |") == 1
    assert document.text.count("Blade_A1") == 2
    assert document.notes == ("tables on more than 1 pages; those from page 2 on are plain text",)


def test_bookmarks_of_a_pdf_are_headings_at_their_lines(tmp_path: Path) -> None:
    document = parse(documents.table_pdf(tmp_path))
    (heading,) = document.outline
    assert (heading.title, heading.level) == ("Parts list", 1)
    assert document.text[heading.start :].startswith("Parts list")


def test_C11_a_pdf_of_a_million_pages_is_refused(tmp_path: Path) -> None:
    path = documents.endless_pdf(tmp_path)
    assert path.stat().st_size < 2000
    with pytest.raises(InvalidFile, match="1000000 pages, over the limit of 20000"):
        parse(path)


def test_o19_a_scan_without_ocr_is_invalid_and_the_message_names_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="list the plugin tesseract before documents"):
        parse(documents.scanned_pdf(tmp_path, ["words"]))
    assert pdf.MAX_PAGES > 1000
