"""Finds the headings of Markdown text.

CommonMark 0.31 sections 4.2 (``# Heading``), 4.3 (underlined) and 4.5 (fenced code, which holds none); front matter in
YAML, as many tools write it, holds none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.plugin import Heading

_FRONT_MATTER = re.compile(r"---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_MARK = re.compile(
    r"""^[ ]{0,3}(?:
        (?P<fence>`{3,}|~{3,})
      | (?P<level>\#{1,6})[ \t]+(?P<title>\S[^\n]*)
      | (?P<text>[^\s\#>|`~-][^\n]*)\n[ ]{0,3}(?P<line>=+|-+)[ \t]*$
    )""",
    re.VERBOSE | re.MULTILINE,
)
_CLOSING = re.compile(r"[ \t]+#+[ \t]*$")


def outline(text: str) -> tuple[Heading, ...]:
    """The headings of a Markdown text."""
    return tuple(_headings(text))


def _headings(text: str) -> Iterator[Heading]:
    front = _FRONT_MATTER.match(text)
    position, fence = front.end() if front else 0, ""
    while match := _MARK.search(text, position):
        position = match.end()
        if match["fence"]:
            if not fence:
                fence = match["fence"]
            elif match["fence"].startswith(fence):
                fence = ""
        elif fence:
            position = match.end("text") if match["text"] else match.end()
        elif match["level"]:
            yield Heading(match.start(), len(match["level"]), _CLOSING.sub("", match["title"]).strip())
        else:
            yield Heading(match.start(), 1 if match["line"][0] == "=" else 2, match["text"].strip())
