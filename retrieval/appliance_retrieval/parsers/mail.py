"""E-mail: Internet messages (RFC 5322, MIME) and those that Outlook saves."""

from __future__ import annotations

import email
from collections.abc import Iterator
from contextlib import suppress
from email import policy
from email.errors import MessageError
from email.message import EmailMessage
from pathlib import Path

from appliance.plugin import Document, InvalidFile, UnsupportedFile
from appliance_retrieval.parsers import html
from appliance_retrieval.parsers.decoding import decode

_HEADERS = ("Subject", "From", "To", "Cc", "Date")
_MESSAGE = "message/rfc822"
_TEXTS = ("text/plain", "text/html")
MAX_NESTED = 10
"""Messages inside of messages are read so deep."""
MAX_PARTS = 1_000
_DAMAGED = "the message is damaged ({name}); save it again and upload it"


def read_eml(path: Path, media_type: str | None) -> Document:
    """Headers and text of a message and of those that it forwards; attachments are named in the notes.

    Raises:
        InvalidFile: it is no message, or has too many parts.
    """
    try:
        message = email.message_from_bytes(path.read_bytes(), policy=policy.default)
        if not any(name in message for name in _HEADERS):
            raise InvalidFile("the file is no e-mail, it has no header; name it .txt if it is text")
        notes: list[str] = []
        text = "\n\n".join(filter(None, _parts(message, notes, MAX_NESTED)))
        return Document(text=text, title=_header(message, "Subject"), notes=tuple(dict.fromkeys(notes)))
    except (MessageError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # The standard library's parser lets out any of them on broken headers.
        raise InvalidFile(_DAMAGED.format(name=type(error).__name__)) from error


def read_msg(path: Path, media_type: str | None) -> Document:
    """Headers and text of a message of Outlook; attachments are named in the notes. Raises InvalidFile."""
    from oxmsg import Message

    try:
        message = Message.load(str(path))
        headers = {name.title(): value for name, value in message.message_headers.items()}
        headers = {"Subject": message.subject or "", "From": message.sender or "", **headers}
        if "To" not in headers:
            headers["To"] = ", ".join(one.email_address for one in message.recipients)
        lines = [f"{name}: {_one_line(headers[name])}" for name in _HEADERS if headers.get(name)]
        body = message.body or html.convert((message.html_body or "").encode()).text
        notes = tuple(_note(attachment.file_name or "") for attachment in message.attachments)
    except MemoryError:
        raise
    except Exception as error:  # olefile's errors have no common base
        raise InvalidFile(_DAMAGED.format(name=type(error).__name__)) from error
    return Document(text="\n\n".join(["\n".join(lines), body.strip()]), title=_one_line(message.subject), notes=notes)


def _parts(message: EmailMessage, notes: list[str], depth: int) -> Iterator[str]:
    lines = [f"{name}: {value}" for name in _HEADERS if (value := _header(message, name))]
    yield "\n".join(lines)
    body = message.get_body(preferencelist=("plain", "html"))
    for number, (part, alternative) in enumerate(_leaves(message)):
        if number == MAX_PARTS:
            raise InvalidFile(f"the message has more than {MAX_PARTS} parts; split it")
        if part.get_content_type() == _MESSAGE:
            if depth == 0:
                notes.append(f"messages nested deeper than {MAX_NESTED} are not read")
            else:
                yield from _forwarded(part, notes, depth - 1)
        elif part is body or (_is_shown_text(part) and not alternative):
            yield _text(part)
        elif part.is_attachment() or (part.get_filename() and part.get_content_maintype() != "image"):
            notes.append(_note(part.get_filename() or part.get_content_type()))


def _is_shown_text(part: EmailMessage) -> bool:
    """Whether readers see it below the body: text before and after an attachment, or what a mailing list adds."""
    return part.get_content_type() in _TEXTS and not part.is_attachment() and not part.get_filename()


def _leaves(message: EmailMessage) -> Iterator[tuple[EmailMessage, bool]]:
    """The parts that hold something, not those of messages inside; whether it is one of several to choose from."""
    left = [(message, False)]
    while left:
        part, alternative = left.pop()
        parts = part.get_payload() if part.is_multipart() else None
        if isinstance(parts, list) and (part is message or part.get_content_type() != _MESSAGE):
            alternative = alternative or part.get_content_type() == "multipart/alternative"
            left += [(one, alternative) for one in reversed(parts) if isinstance(one, EmailMessage)]
        else:
            yield part, alternative


def _forwarded(part: EmailMessage, notes: list[str], depth: int) -> Iterator[str]:
    inner = part.get_payload(0) if part.is_multipart() else None
    if isinstance(inner, EmailMessage):
        yield from _parts(inner, notes, depth)


def _text(part: EmailMessage) -> str:
    data = part.get_payload(decode=True)
    return _decoded(data if isinstance(data, bytes) else b"", part.get_content_charset(), part.get_content_subtype())


def _decoded(data: bytes, charset: str | None, subtype: str = "plain") -> str:
    """Text, or Markdown of a page. Mail often says a wrong charset, or none; then what the bytes say counts."""
    for declared in (charset, None):
        with suppress(InvalidFile, UnsupportedFile):
            media_type = f"text/{subtype}; charset={declared}"
            return (html.convert(data, media_type).text if subtype == "html" else decode(data, media_type)).strip()
    return _decoded(data.decode("utf-8", "replace").encode(), "utf-8", subtype)


def _header(message: EmailMessage, name: str) -> str:
    value = str(message.get(name, ""))
    if "\ufffd" in value:  # bytes beyond ASCII, as RFC 6532 allows them
        raw = next(str(text) for key, text in message.raw_items() if key.lower() == name.lower())
        value = _decoded(raw.encode("utf-8", "surrogateescape"), None)
    return _one_line(value)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _note(name: str) -> str:
    return f"the attachment {name[:100]} is not read; upload it by itself"
