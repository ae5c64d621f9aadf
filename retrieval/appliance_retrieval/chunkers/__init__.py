"""The ``chunkers`` plugin: cuts documents where they have joints.

``structure`` keeps sections, tables and paragraphs together, ``code`` definitions and lines, ``sentences`` sentences.
``contextual`` cuts as ``structure`` does, and has each piece searched together with its document's title and the
headings that it stands under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from appliance.plugin import Chunker, Document, Span, hookimpl
from appliance_retrieval.chunkers import units
from appliance_retrieval.chunkers.context import Contexts
from appliance_retrieval.chunkers.packing import Counter, Packer, within
from appliance_retrieval.chunkers.units import Unit

Cut: TypeAlias = Callable[[Document, Callable[[int, int], bool]], Iterable[Unit]]


@dataclass(frozen=True)
class Joints:
    """Puts units together to pieces. A piece ends at its best joint, once it holds ``least`` of the size.

    Neighbours share whole units of at most ``overlap`` tokens, and nothing where a section or a table begins.
    """

    cut: Cut
    least: float
    contextual: bool = False

    def split(self, document: Document, *, size: int, overlap: int, spans: Sequence[tuple[int, int]]) -> Sequence[Span]:
        """Cut into pieces of at most ``size`` tokens, trimmed of white space; everything else is in one of them.

        Raises:
            ValueError: not 0 <= overlap < size.
        """
        if not 0 <= overlap < size:
            raise ValueError(f"overlap must be at least 0 and less than size ({size}), not {overlap}")
        if not document.text.strip():
            return []
        counter = Counter(spans)
        whole = within(counter, size)
        fitting = counter.fitting(document.text, self.cut(document, whole), size)
        pieces = Packer(fitting, size=size, overlap=overlap, least=self.least * size)
        contexts = Contexts(document, headings=self.contextual)
        return list(self._spans(document.text, pieces, contexts))

    def _spans(self, text: str, pieces: Iterable[Sequence[Unit]], contexts: Contexts) -> Iterator[Span]:
        for piece in pieces:
            start, end = units.trimmed(text, piece[0].start, piece[-1].end)
            if start < end:
                yield Span(start, end, contexts.of(piece[0], start))


@hookimpl
def appliance_chunkers() -> Mapping[str, Chunker]:
    """The chunkers, by the names that ``retrieval.chunker`` and ``chunking_strategy.chunker`` take."""
    return {
        "structure": Joints(units.structure, least=0.25),
        "sentences": Joints(units.sentences, least=0.75),
        "code": Joints(units.code, least=0.25),
        "contextual": Joints(units.structure, least=0.25, contextual=True),
    }
