"""The documents plugin on real files of every format, and on bad ones."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import documents
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.plugin import Document, InvalidFile, Parser, UnsupportedFile
from appliance_retrieval.parsers import Documents, appliance_parsers
from appliance_retrieval.parsers.decoding import decode


def parse(path: Path, media_type: str | None = None, filename: str | None = None) -> Document:
    return Documents().parse(path, filename or path.name, media_type)


def test_the_plugin_provides_one_parser_for_all_formats() -> None:
    [parser] = appliance_parsers()
    assert isinstance(parser, Parser)
    assert {".txt", ".md", ".csv", ".html", ".pdf", ".docx", ".pptx", ".xlsx", ".ts"} <= parser.suffixes


# -- text ------------------------------------------------------------------------------------------------


def test_o18_a_windows_1252_csv_keeps_its_umlauts(tmp_path: Path) -> None:
    text = parse(documents.umlaut_csv(tmp_path)).text
    assert "Jürgen;Köln" in text
    assert text.startswith("name;ort")


def test_o18_one_umlaut_after_60_kb_of_ascii_is_read_right(tmp_path: Path) -> None:
    path = documents.text(tmp_path, "plain ascii words\n" * 3500 + "die Tür\n", "late.txt", "cp1252")
    assert parse(path).text.endswith("die Tür\n")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_o18_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path, encoding: str) -> None:
    text = parse(documents.umlaut_csv(tmp_path, encoding)).text
    assert text.startswith("name;ort")
    assert "Jürgen;Köln" in text


def test_o18_a_declared_charset_wins_over_the_guess(tmp_path: Path) -> None:
    path = documents.text(tmp_path, "cena;Łódź", "ceny.csv", "iso-8859-2")
    assert parse(path, "text/csv; charset=iso-8859-2").text == "cena;Łódź"


def test_o18_a_declared_charset_that_does_not_fit_is_an_error_with_the_byte_position(tmp_path: Path) -> None:
    path = documents.raw(tmp_path, b"abc\xff", "a.txt")
    with pytest.raises(InvalidFile, match="byte 3 is not valid utf-8"):
        parse(path, "text/plain; charset=utf-8")


def test_o18_damaged_utf8_is_an_error_with_the_byte_position(tmp_path: Path) -> None:
    good = "Zürich, Genève, Neuchâtel, Delémont, Köniz. "
    path = documents.raw(tmp_path, good.encode() * 3 + b"\xff" + good.encode() * 3, "cities.txt")
    with pytest.raises(InvalidFile, match=f"byte {3 * len(good.encode())} is not valid utf-8"):
        parse(path)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("El niño comió piñas en la mañana — “qué rico”, dijo él… 50 €", "cp1252"),
        ("Ça va être l'été, œuvre, cœur, naïve garçon, déjà vu", "cp1252"),
        ("Größe 3 m², Preis 5 €", "cp1252"),
        ("Zażółć gęślą jaźń. Każdy człowiek ma prawo do życia i wolności swojej osoby.\n" * 3, "cp1250"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy. Nejlepší řešení je to jednodušší.\n" * 3, "cp1250"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир\n" * 3, "cp1251"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n" * 3, "shift_jis"),
        ("我们的产品可以在网上购买。请联系客服。\n" * 3, "gbk"),
        ("我們的產品可以在網上購買。請聯繫客服。謝謝您的支持。\n" * 3, "big5"),
        ("우리 제품은 온라인에서 구매할 수 있습니다. 고객 서비스에 문의하십시오.\n" * 3, "euc_kr"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир\n" * 3, "koi8_r"),
        ("Γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. Καλημέρα κόσμε.\n" * 3, "iso8859_7"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n" * 3, "euc_jp"),
    ],
)
def test_common_encodings_are_recognised(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


@given(st.text(alphabet="abcdefghijklmnop äöüßÄÖÜéèàçñ.,;\n", min_size=1))
def test_west_european_words_in_windows_1252_come_out_right(words: str) -> None:
    text = "header;line\n" + " ".join(f"a{letter}b" if ord(letter) > 127 else letter for letter in words)
    assert decode(text.encode("cp1252")) == text


@given(
    st.binary(max_size=300),
    st.sampled_from([None, "text/plain", "text/plain; charset=utf-16", "text/x; charset=bogus"]),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_either_decode_or_fail_with_a_reason(data: bytes, media_type: str | None) -> None:
    try:
        text, reason = decode(data, media_type), ""
    except (InvalidFile, UnsupportedFile) as error:
        text, reason = None, str(error)
    assert text is not None or "byte" in reason


@given(st.text())
def test_utf8_always_comes_back_as_it_was(text: str) -> None:
    if "\0" not in text and not text.startswith("\ufeff"):
        assert decode(text.encode()) == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_by_its_zeros(encoding: str) -> None:
    text = "name;town\r\nJürgen;Köln — 5 €\r\n"
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize("data", [bytes(range(1, 9)) * 2 + b"\0", b"\1\0\2\0" * 50, b"a\0b\0\0\0", b"\0"])
def test_numbers_of_two_bytes_are_no_text(data: bytes) -> None:
    with pytest.raises(UnsupportedFile, match="binary"):
        decode(data)


def test_a_charset_that_is_no_text_encoding_is_ignored() -> None:
    assert decode("Tür".encode(), "text/plain; charset=hex") == "Tür"


def test_a_binary_file_called_txt_is_refused(tmp_path: Path) -> None:
    path = documents.raw(tmp_path, b"\x7fELF\x02\x01\x00\x00abc", "program.txt")
    with pytest.raises(UnsupportedFile, match="binary"):
        parse(path)


def test_typescript_is_text_whatever_media_type_the_browser_sends(tmp_path: Path) -> None:
    path = documents.text(tmp_path, "export const a: number = 1", "index.ts")
    assert parse(path, "video/mp2t").text.startswith("export")


def test_xml_is_taken_as_text_and_its_entities_stay_unread(tmp_path: Path) -> None:
    canary = documents.text(tmp_path, "canary-4711", "canary.txt")
    xml = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{canary}">]><a>&x;</a>'
    assert "canary-4711" not in parse(documents.text(tmp_path, xml, "feed.xml")).text


def test_a_markdown_heading_becomes_the_title(tmp_path: Path) -> None:
    assert parse(documents.text(tmp_path, "# Turbine manual\n\nText", "a.md")).title == "Turbine manual"


# -- html, pdf, office -----------------------------------------------------------------------------------


def test_html_becomes_markdown_without_scripts(tmp_path: Path) -> None:
    document = parse(documents.html(tmp_path))
    assert document.title == "Turbine manual"
    assert "# Inspection" in document.text
    assert documents.PARAGRAPH in document.text
    assert "| Blade_A1 | 400 |" in document.text
    assert "secret_script" not in document.text


def test_a_cell_over_several_rows_is_in_each_of_them_and_shifts_none(tmp_path: Path) -> None:
    page = """<table><tr><th rowspan=2>Country</th><th colspan=2>Fee</th></tr><tr><th>Small</th><th>Large</th></tr>
    <tr><td rowspan="2">Iceland</td><td>3</td><td rowspan=2>9</td></tr><tr><td>4</td></tr></table>"""
    rows = ["| Country | Fee | |", "| --- | --- | --- |", "| Country | Small | Large |"]
    assert parse(documents.text(tmp_path, page, "a.html")).text == "\n".join(
        [*rows, "| Iceland | 3 | 9 |", "| Iceland | 4 | 9 |"]
    )


def test_C11_cells_that_claim_very_many_rows_are_taken_as_they_are(tmp_path: Path) -> None:
    row = "<tr>" + "<td rowspan=65000>x</td>" * 1000 + "</tr>"
    text = parse(documents.text(tmp_path, f"<table>{row}{'<tr><td>y</td></tr>' * 200}</table>", "a.html")).text
    assert text.count("x") == 1000
    assert text.count("y") == 200


def test_a_table_without_a_marked_head_has_its_first_row_for_one(tmp_path: Path) -> None:
    page = "<table><tbody><tr><td>Part</td><td>Hours</td></tr><tr><td>Blade</td><td>400</td></tr></tbody></table>"
    expected = "| Part | Hours |\n| --- | --- |\n| Blade | 400 |"
    assert parse(documents.text(tmp_path, page, "a.html")).text == expected


def test_o18_an_html_page_names_its_own_charset(tmp_path: Path) -> None:
    page = '<html><head><meta charset="iso-8859-2"></head><body>Łódź</body></html>'
    assert parse(documents.text(tmp_path, page, "a.html", "iso-8859-2")).text == "Łódź"


def test_html_nested_very_deep_still_gives_its_text(tmp_path: Path) -> None:
    page = "<div>" * 3000 + documents.PARAGRAPH + "</div>" * 3000
    assert documents.PARAGRAPH in parse(documents.text(tmp_path, page, "deep.html")).text


def test_docx_gives_headings_tables_and_title(tmp_path: Path) -> None:
    document = parse(documents.docx(tmp_path))
    assert document.title == "Turbine manual"
    assert "# Inspection" in document.text
    assert documents.PARAGRAPH in document.text
    assert "| Blade_A1 | 400 |" in document.text
    assert "base64" not in document.text


def test_a_docx_table_has_its_first_row_for_a_head_and_a_merged_cell_in_each_row(tmp_path: Path) -> None:
    from docx import Document as Word

    word = Word()
    table = word.add_table(rows=3, cols=2)
    for row, texts in enumerate((("Part", "Hours"), ("Blade", "400"), ("", "800"))):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    word.save(str(tmp_path / "a.docx"))
    assert parse(tmp_path / "a.docx").text == "| Part | Hours |\n| --- | --- |\n| Blade | 400 |\n| Blade | 800 |"


def test_a_date_of_a_sheet_has_no_midnight(tmp_path: Path) -> None:
    day, moment = datetime(1990, 5, 17), datetime(1990, 5, 17, 8, 30)
    assert parse(documents.xlsx(tmp_path, [[day, moment]])).text.endswith("| 1990-05-17 | 1990-05-17 08:30:00 |")


def test_pptx_gives_slides_and_speaker_notes(tmp_path: Path) -> None:
    text = parse(documents.pptx(tmp_path)).text
    assert "# Inspection" in text
    assert documents.PARAGRAPH in text
    assert "Mention the blue logbook." in text
    assert "Slide number" not in text


def test_xlsx_gives_rows_without_empty_cells_made_up(tmp_path: Path) -> None:
    text = parse(documents.xlsx(tmp_path)).text
    assert text == "## Parts\n\n| Part | Hours | Note |\n| Blade_A1 | 400 |\n| Blade_A2 | 800.5 | two lines |"


def test_pdf_gives_the_text_of_all_pages_and_its_title(tmp_path: Path) -> None:
    document = parse(documents.pdf(tmp_path, ["First page.", "Second page."]))
    assert document.text == "First page.\n\nSecond page."
    assert document.title == "Turbine manual"
    assert document.notes == ()


def test_a_pdf_word_split_at_a_line_end_is_joined(tmp_path: Path) -> None:
    text = parse(documents.pdf(tmp_path, ["The logbook lies in the tur-\nbine room for everybody."])).text
    assert "turbine room" in text


def test_o19_an_image_page_among_others_is_named_in_the_notes(tmp_path: Path) -> None:
    document = parse(documents.pdf(tmp_path, ["First page.", None, "Third page."]))
    assert document.notes == ("page 2 has no text",)
    assert "Third page." in document.text


def test_o19_many_empty_pages_make_one_short_note(tmp_path: Path) -> None:
    document = parse(documents.pdf(tmp_path, ["First page.", *[None] * 25]))
    assert document.notes == (f"pages {', '.join(map(str, range(2, 22)))} and 5 more have no text",)


def test_o19_a_pdf_of_images_only_is_invalid_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"none of the 2 pages has text.*OCR"):
        parse(documents.pdf(tmp_path, [None, None]))


def test_o19_an_encrypted_pdf_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFile, match="remove its password"):
        parse(documents.pdf(tmp_path, password="letmein"))


@pytest.mark.parametrize("name", ["a.txt", "a.pdf", "a.docx", "a.html"])
def test_o19_an_empty_file_is_invalid(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidFile, match="0 bytes"):
        parse(documents.raw(tmp_path, b"", name))


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md"])
def test_o19_a_file_of_white_space_is_invalid(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidFile, match="no text"):
        parse(documents.raw(tmp_path, b" \n\t\r\n  ", name))


def test_a_workbook_without_cells_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no text"):
        parse(documents.xlsx(tmp_path, [[None]]))


# -- wrong names and broken files ------------------------------------------------------------------------


def test_a_pdf_called_txt_is_read_as_pdf(tmp_path: Path) -> None:
    assert parse(documents.pdf(tmp_path, name="manual.txt"), "text/plain").text == documents.PARAGRAPH


def test_a_docx_called_pdf_is_read_as_docx(tmp_path: Path) -> None:
    assert documents.PARAGRAPH in parse(documents.docx(tmp_path, "manual.pdf")).text


def test_the_media_type_counts_where_the_name_says_nothing(tmp_path: Path) -> None:
    assert parse(documents.html(tmp_path), "text/html; charset=utf-8", filename="upload").title == "Turbine manual"


def test_a_plain_zip_archive_is_unsupported(tmp_path: Path) -> None:
    path = documents.docx(tmp_path)
    documents.replace_part(path, "word/document.xml", b"")
    plain = documents.zip_bomb(tmp_path, 1, "plain.txt")
    plain.write_bytes(plain.read_bytes().replace(b"word/document.xml", b"word/somethin.xml"))
    with pytest.raises(UnsupportedFile, match="zip archive"):
        parse(plain)


def test_an_old_or_encrypted_office_file_is_unsupported(tmp_path: Path) -> None:
    path = documents.raw(tmp_path, bytes.fromhex("d0cf11e0a1b11ae1") + b"\0" * 600, "letter.docx")
    with pytest.raises(UnsupportedFile, match="password"):
        parse(path)


@pytest.mark.parametrize("make", [documents.docx, documents.pptx, documents.xlsx, documents.pdf])
def test_a_truncated_document_is_invalid(tmp_path: Path, make: type) -> None:
    path: Path = make(tmp_path)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(InvalidFile):
        parse(path)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (documents.docx, "word/document.xml"),
        (documents.pptx, "ppt/slides/slide1.xml"),
        (documents.xlsx, "xl/worksheets/sheet1.xml"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"<broken", b"<a/>", os.urandom(200)])
def test_a_document_with_a_broken_part_gives_text_or_invalid_file(
    tmp_path: Path, make: type, part: str, content: bytes
) -> None:
    path = documents.replace_part(make(tmp_path), part, content)
    try:
        shown = parse(path).text
    except InvalidFile as error:
        shown = str(error)
        assert "\n" not in shown
    assert shown.strip()


def test_a_zip_bomb_is_refused_without_unpacking(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="100 times its size"):
        parse(documents.zip_bomb(tmp_path))


def test_a_document_of_too_many_parts_is_refused(tmp_path: Path) -> None:
    import zipfile

    path = documents.docx(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(10_001):
            archive.writestr(f"word/media/{number}", b"")
    with pytest.raises(InvalidFile, match="over the limit of 10000"):
        parse(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_document_with_xml_entities_is_refused(tmp_path: Path, encoding: str) -> None:
    xml = '<?xml version="1.0"?><!DOCTYPE w [<!ENTITY a "bbbbbbbb">]><w>&a;</w>'
    path = documents.replace_part(documents.docx(tmp_path), "word/document.xml", xml.encode(encoding))
    with pytest.raises(InvalidFile, match="entities"):
        parse(path)
