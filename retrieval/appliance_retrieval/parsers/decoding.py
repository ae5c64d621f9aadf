"""Turns the bytes of a text file into text, without ever guessing silently wrong where the bytes tell better.

In this order: byte-order mark, declared charset, UTF-16 by its zeros, UTF-8, Windows-1252 for Western European text,
and for everything else the guess of charset-normalizer over the passages that are not ASCII.
"""

from __future__ import annotations

import codecs
import re

from appliance.plugin import InvalidFile, UnsupportedFile

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:+-]+)""", re.IGNORECASE)
_ASCII = re.compile("[\x00-\x7f]+")
_HIGH = re.compile(rb"[\x80-\xff]+")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_SAMPLE_BYTES = 32_768
_CONTEXT = 40

_LETTERS = "äëïöüÿâêîôûàèìòùáéíóúãñõåæçøœß"
_SIGNS = "€‚„…†‡‰‹‘’“”•–—™›\xa0¡¢£¥§©ª«¬\xad®°±²³´µ¶·¹º»¼½¾¿×÷"  # noqa: RUF001
_WESTERN = frozenset(_LETTERS + _LETTERS.upper() + _SIGNS)
_SIGN_IN_WORD = re.compile(r"[^\W\d_][¡£¥¹³¾¿¶][^\W\d_]")


def decode(data: bytes, media_type: str | None = None, *, default: str | None = None) -> str:
    """Text of ``data``; ``default`` is a charset named inside the file, weaker than the one in ``media_type``.

    Raises:
        InvalidFile: some byte does not fit; its position is named. UnsupportedFile: binary data.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _strict(data, encoding, len(mark))
    named = _known(_declared(media_type)) or _known(default)
    if named:
        return _strict(data, named).removeprefix("\ufeff")
    if (position := data.find(b"\0")) >= 0:
        if (wide := _utf16(data)) is not None:
            return wide
        raise UnsupportedFile(f"the file is binary, not text (NUL at byte {position}); upload it in a supported format")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_utf8(data, error)


def _utf16(data: bytes) -> str | None:
    """Text in UTF-16 without a mark: mostly Latin letters, so every other byte is zero, and no control characters."""
    for encoding, high in (("utf-16-le", 1), ("utf-16-be", 0)):
        if data[high::2].count(0) > len(data) // 4 and not data[1 - high :: 2].count(0):
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                return None
            return None if _CONTROL.search(text) else text
    return None


def _declared(media_type: str | None) -> str | None:
    match = _CHARSET.search(media_type or "")
    return match[1] if match else None


def _known(charset: str | None) -> str | None:
    """The codec's name; ``None`` for no charset, an unknown one, or a codec that is not a text encoding."""
    try:
        info = codecs.lookup(charset) if charset else None
        "".encode(charset or "ascii")  # LookupError for codecs such as hex
    except LookupError:
        return None
    # Browsers and Windows mean their superset when they say Latin-1 or ASCII.
    return "cp1252" if info and info.name in ("iso8859-1", "ascii") else info and info.name


def _strict(data: bytes, encoding: str, skip: int = 0) -> str:
    try:
        return data[skip:].decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidFile(_message(encoding, error.start + skip)) from error


def _message(encoding: str, position: int) -> str:
    return f"byte {position} is not valid {encoding}; save the file as UTF-8 or declare its charset in the content type"


def _not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    if _is_damaged_utf8(data):
        raise InvalidFile(_message("utf-8", error.start)) from error
    sample = _sample(data)
    encoding = "cp1252" if _is_western(sample) else _guess(sample)
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as failed:
        raise InvalidFile(_message(encoding or "utf-8", failed.start)) from failed


def _is_damaged_utf8(data: bytes) -> bool:
    """True when nearly all that is not ASCII is sound UTF-8: such text in another encoding is as good as impossible."""
    beyond_ascii = _ASCII.sub("", data.decode("utf-8", "replace"))
    bad = beyond_ascii.count("\ufffd")
    return len(beyond_ascii) - bad > 4 * bad


def _is_western(sample: bytes) -> bool:
    """True for Western European text in Windows-1252: single accented letters, and known signs outside words."""
    runs = [len(run) for run in _HIGH.findall(sample)]
    if 10 * sum(length for length in runs if length > 2) > sum(runs):
        return False
    text = sample.decode("cp1252", "replace")
    return set(_ASCII.sub("", text)) <= _WESTERN and not _SIGN_IN_WORD.search(text)


def _sample(data: bytes) -> bytes:
    """The passages that are not ASCII, with a little around them, up to a limit; the rest tells nothing."""
    pieces, size, end = [], 0, 0
    for match in _HIGH.finditer(data):
        if match.end() <= end:
            continue
        start, end = max(end, match.start() - _CONTEXT), match.end() + _CONTEXT
        pieces.append(data[start:end])
        size += end - start
        if size > _SAMPLE_BYTES:
            break
    return b"".join(pieces)


def _guess(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return best.encoding if best else None
