"""What somebody has written onto PDF pages: values in fields of a form, and notes as text (ISO 32000, 12.5 and 12.7).

Neither is a part of a page's text. What is hidden, or typed as a password, is left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage


def written(document: PdfDocument, page: PdfPage) -> str:
    """A line for each field that is filled in, ``Surname: Okonkwo``, and each note; the forms must be initialised."""
    return "\n".join(dict.fromkeys(filter(None, _lines(document, page))))


def _lines(document: PdfDocument, page: PdfPage) -> Iterator[str]:
    from pypdfium2 import raw

    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        with ExitStack() as open_:
            annotation = raw.FPDFPage_GetAnnot(page, number)
            if annotation:
                open_.callback(raw.FPDFPage_CloseAnnot, annotation)
                if not raw.FPDFAnnot_GetFlags(annotation) & (raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW):
                    yield _line(document.formenv, annotation)


def _line(forms: Any, annotation: Any) -> str:
    from pypdfium2 import raw

    kind = raw.FPDFAnnot_GetSubtype(annotation)
    if kind == raw.FPDF_ANNOT_FREETEXT:
        return _text(partial(raw.FPDFAnnot_GetStringValue, annotation, b"Contents"))
    if kind != raw.FPDF_ANNOT_WIDGET or not forms or not _is_shown(forms, annotation):
        return ""
    value, label, name = (
        _text(partial(get, forms, annotation))
        for get in (
            raw.FPDFAnnot_GetFormFieldValue,
            raw.FPDFAnnot_GetFormFieldAlternateName,
            raw.FPDFAnnot_GetFormFieldName,
        )
    )
    return f"{label or name}: {value}" if value else ""


def _is_shown(forms: Any, field: Any) -> bool:
    """Whether it holds text that can be seen, or is a box that is ticked."""
    from pypdfium2 import raw

    kind = raw.FPDFAnnot_GetFormFieldType(forms, field)
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        return bool(raw.FPDFAnnot_IsChecked(forms, field))
    password = raw.FPDFAnnot_GetFormFieldFlags(forms, field) & raw.FPDF_FORMFLAG_TEXT_PASSWORD
    return kind in (raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX) or (
        kind == raw.FPDF_FORMFIELD_TEXTFIELD and not password
    )


def _text(get: Callable[[Any, int], int]) -> str:
    """A string of pdfium's, on one line: asked for its size first, in bytes of UTF-16 with a zero at the end."""
    buffer = (ctypes.c_ushort * (get(None, 0) // 2))()
    get(buffer, ctypes.sizeof(buffer))
    return " ".join(bytes(buffer).decode("utf-16-le", "replace").rstrip("\0").split())
