"""Source code: its text as it is, and its definitions by tree-sitter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING

import msgspec

from appliance.plugin import Document, Heading

if TYPE_CHECKING:
    from tree_sitter import Node, TreeCursor

MAX_CHARACTERS = 4_000_000
"""Longer code is taken without its outline: it is data, or made by a machine."""
TITLE_CHARACTERS = 100
MAX_LEVEL = 3
"""Definitions nested deeper are part of the one around them."""
MAX_DEPTH = 30
"""Nodes of the syntax tree are looked at so deep."""
_GRAMMARS = {
    "bash": ".sh .bash",
    "c": ".c .h",
    "c_sharp": ".cs",
    "cpp": ".cc .cpp .cxx .hpp",
    "go": ".go",
    "java": ".java",
    "javascript": ".js .mjs .cjs .jsx",
    "php": ".php",
    "python": ".py .pyi",
    "ruby": ".rb",
    "rust": ".rs",
    "typescript": ".ts .mts .cts",
    "tsx": ".tsx",
}
LANGUAGES = {suffix: name for name, suffixes in _GRAMMARS.items() for suffix in suffixes.split()}
_MODULES = {"tsx": ("tree_sitter_typescript", "language_tsx"), "php": ("tree_sitter_php", "language_php")}
_MODULES["typescript"] = ("tree_sitter_typescript", "language_typescript")
# In the grammars of all these languages what defines something is named so, and has a body.
_DEFINES = ("_definition", "_declaration", "_item", "_specifier")
_DEFINITIONS = ("class", "module", "method", "singleton_method")
_CLOSING = re.compile(r"(?:[\s)}\];]|\bend\b)*")
"""What goes with the definition that it closes."""
_AROUND = ("decorated_definition", "export_statement", "template_declaration")
_BEFORE = ("comment", "attribute")


def outlined(document: Document, suffix: str) -> Document:
    """The document with its language, and the definitions in it if that has a grammar here."""
    language = LANGUAGES.get(suffix, suffix.removeprefix("."))
    outline = (
        () if suffix not in LANGUAGES or len(document.text) > MAX_CHARACTERS else _outline(document.text, language)
    )
    return msgspec.structs.replace(document, language=language, outline=outline)


def grammar_module(language: str) -> tuple[str, str]:
    """The module of a language's grammar, and the function in it that gives the grammar."""
    return _MODULES.get(language, (f"tree_sitter_{language}", "language"))


def _outline(text: str, language: str) -> tuple[Heading, ...]:
    import tree_sitter

    module, function = grammar_module(language)
    grammar = tree_sitter.Language(getattr(import_module(module), function)())
    tree = tree_sitter.Parser(grammar).parse(source := text.encode("utf-8", "replace"))
    lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    by_line: dict[int, Heading] = {}
    for row, level, title in _headings(_definitions(tree.walk()), source):
        start = lines[min(row, len(lines) - 1)]
        if start < len(text) and (start not in by_line or (title and not by_line[start].title)):
            by_line[start] = Heading(start, level, title)
    ordered = [by_line[start] for start in sorted(by_line)]
    return tuple(
        heading
        for heading, after in zip_longest(ordered, ordered[1:])
        if heading.title or not _CLOSING.fullmatch(text, heading.start, after.start if after else len(text))
    )


def _headings(defined: Iterable[tuple[Node, Node, int]], source: bytes) -> Iterator[tuple[int, int, str]]:
    """Rows, levels and titles; where a definition ends, one without a title."""
    ends: list[int] = []
    for node, body, row in defined:
        while ends and ends[-1] <= node.start_byte:
            ends.pop()
        ends.append(node.end_byte)
        if len(ends) <= MAX_LEVEL:
            yield row, len(ends), _title(source[node.start_byte : body.start_byte])
            yield node.end_point.row + 1, len(ends), ""


def _definitions(cursor: TreeCursor, depth: int = 0, around: int | None = None) -> Iterator[tuple[Node, Node, int]]:
    """What is defined below a node: the definition, its body, and the row where it begins.

    That is where its decorators, attributes and the comment above it do. A walk, since looking for parents and
    neighbours, as queries do too, takes time that grows with the square of what is nested.
    """
    if not cursor.goto_first_child():
        return
    before = (-2, -2)  # the first and the last row of the comments before a node
    while True:
        node = cursor.node
        if node is None:
            return
        row = node.start_point.row
        first = before[0] if before[1] >= row - 1 else row
        if node.type.endswith(_BEFORE):
            before = (first, node.end_point.row)
        else:
            first = first if around is None else around
            if _defines(node) and (body := node.child_by_field_name("body")):
                yield node, body, first
            if depth < MAX_DEPTH:
                yield from _definitions(cursor, depth + 1, first if node.type in _AROUND else None)
            before = (-2, -2)
        if not cursor.goto_next_sibling():
            break
    cursor.goto_parent()


def _defines(node: Node) -> bool:
    return node.type.endswith(_DEFINES) or node.type in _DEFINITIONS


def _title(before_body: bytes) -> str:
    """What stands before the body, on one line: ``def on(self)``."""
    return " ".join(before_body.decode("utf-8", "replace").split()).rstrip(" :{=")[:TITLE_CHARACTERS]
