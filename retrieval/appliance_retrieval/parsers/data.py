"""JSON as lines that can be read and found: ``town.name: Köln``. Jupyter notebooks as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from appliance.plugin import Document, InvalidFile
from appliance_retrieval.parsers.decoding import decode

Value: TypeAlias = Any
MAX_DEPTH = 200
_AS_TEXT = "it is taken as the text that it is"
_TOO_DEEP = f"the JSON is nested deeper than {MAX_DEPTH} levels; flatten it"


def read_json(path: Path, media_type: str | None) -> Document:
    """Each value on a line with its path; items of the outermost list, if there is one, are apart.

    What is no JSON after all, as with comments in it, is taken as the text that it is.

    Raises:
        InvalidFile: nested too deep.
    """
    text = decode(path.read_bytes(), media_type)
    try:
        value = _decoded(text)
    except ValueError:
        return Document(text=text, language="json", notes=(f"the file is no JSON; {_AS_TEXT}",))
    records = value if isinstance(value, list) else [value]
    return Document(text="\n\n".join("\n".join(_lines(record)) for record in records), title=_title(value))


def read_json_lines(path: Path, media_type: str | None) -> Document:
    """As ``read_json``, of a value a line. Raises InvalidFile: nested too deep."""
    text = decode(path.read_bytes(), media_type)
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                records.append("\n".join(_lines(_decoded(line))))
            except ValueError:
                return Document(text=text, language="json", notes=(f"line {number} is no JSON; {_AS_TEXT}",))
    return Document(text="\n\n".join(records))


def read_notebook(path: Path, media_type: str | None) -> Document:
    """The cells of a notebook (nbformat 4) and what they printed. Raises InvalidFile."""
    try:
        notebook = _decoded(decode(path.read_bytes(), media_type))
        language = notebook.get("metadata", {}).get("language_info", {}).get("name", "python")
        cells = [text for cell in notebook["cells"] if (text := _cell(cell, language)).strip()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidFile("the file is no notebook of format 4; open it in Jupyter and save it again") from error
    return Document(text="\n\n".join(cells))


def _decoded(text: str) -> Value:
    """Python's values; numbers keep their digits. Raises ValueError, InvalidFile."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError as error:
        raise InvalidFile(_TOO_DEEP) from error


def _lines(value: Value, path: str = "", depth: int = 0) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise InvalidFile(_TOO_DEEP)
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _lines(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _lines(item, f"{path}[{number}]", depth + 1)
    elif value not in (None, "", [], {}):
        words = ", ".join(map(_word, value)) if isinstance(value, list) else _word(value)
        yield f"{path}: {words}" if path else words


def _word(value: Value) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _title(value: Value) -> str:
    title = value.get("title") or value.get("name") if isinstance(value, dict) else ""
    return title if isinstance(title, str) else ""


def _cell(cell: dict[str, Any], language: str) -> str:
    source = _joined(cell["source"])
    if cell["cell_type"] != "code" or not source.strip():
        return source
    printed = [_printed(output) for output in cell.get("outputs", ())]
    return "\n\n".join([f"```{language}\n{source}\n```", *(text for text in printed if text.strip())])


def _printed(output: dict[str, Any]) -> str:
    return _joined(output.get("text") or output.get("data", {}).get("text/plain") or "")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
