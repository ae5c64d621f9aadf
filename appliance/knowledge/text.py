"""Makes parsed text fit for indexing and for prompts: one kind of line break, and nothing invisible."""

from __future__ import annotations

import re

from appliance.types import Document

_LINE_BREAK = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Tag characters, zero-width spaces and control characters can carry instructions that no human sees. Joiners
# (U+200C, U+200D) and variation selectors stay: scripts and emoji need them. Lone surrogates cannot be encoded.
_UNWANTED = re.compile("[\x00-\x08\x0e-\x1b\x7f\u200b\u2060\ufeff\ud800-\udfff\U000e0000-\U000e007f]")


def clean(text: str) -> str:
    """Turn every line break into a line feed and drop control, tag and zero-width characters."""
    return _UNWANTED.sub("", _LINE_BREAK.sub("\n", text))


def clean_document(document: Document) -> Document:
    """The same document with text, title and notes cleaned; title and notes each on one line."""
    notes = tuple(" ".join(clean(note).split()) for note in document.notes)
    return Document(text=clean(document.text), title=" ".join(clean(document.title).split()), notes=notes)
