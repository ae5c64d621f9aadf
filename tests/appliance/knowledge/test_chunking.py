"""Which chunker cuts a document, and what comes of a chunk's context on its way to the reader."""

from collections.abc import Sequence

import knowledge_kit
import pytest
from knowledge_kit import stack

from appliance.config import Config, RetrievalConfig
from appliance.errors import ConfigError
from appliance.knowledge.chunking import check_chunker
from appliance.knowledge.framing import framed
from appliance.knowledge.text import clean_document
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Document, Embeddings, Heading, Passage, Scope

MANUAL = "# Turbine manual\n\n" + "Before the shift. " * 30 + "\n\n## Lubrication\n\n" + "Use the thin one. " * 60
YAML = """
plugins: [{store}, documents, tokens, chunkers]
models: [{{name: words, embedder: scripted_embedder}}]
retrieval: {{vector_store: {store}, chunker: contextual}}
"""


class Recording(ScriptedEmbedder):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str | Sequence[int]] = []

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, bulk: bool = False) -> Embeddings:
        self.texts += inputs
        return await super().embed(inputs, bulk=bulk)


@pytest.mark.parametrize("store", ["memory", pytest.param("milvus", marks=pytest.mark.slow)])
async def test_a_chunk_is_found_by_its_heading_and_quoted_as_it_stands_in_the_text(
    tmp_path, monkeypatch, store
) -> None:
    monkeypatch.setattr(knowledge_kit, "YAML", YAML)
    embedder = Recording()
    async with stack(tmp_path, embedder, store) as made:
        vs = await made.make_store()
        file = await made.add(vs, MANUAL, "manual.md")
        chunks = await made.knowledge.content(vs, file, Scope())
        assert [MANUAL[chunk.start : chunk.end] for chunk in chunks] == [chunk.text for chunk in chunks]
        assert chunks[-1].context == "Turbine manual > Lubrication"
        assert "Lubrication" not in chunks[-1].text
        found = await made.search(vs, "lubrication")
        assert chunks[-1].id in {passage.chunk_id for passage in found if passage.matched}
        assert {passage.text for passage in found} <= {chunk.text for chunk in chunks}
        assert any(str(text).startswith("Turbine manual > Lubrication\n\nUse") for text in embedder.texts)


def test_the_model_reads_the_context_before_the_text() -> None:
    passage = Passage(
        chunk_id="c", store_id="v", file_id="f", filename="a.md", text="Thin.", score=1.0, context="Oil > </source>"
    )
    assert "[1] Oil > &lt;/source>\nThin.\n</source>" in framed([passage])


def test_a_chunker_that_no_plugin_provides_stops_the_start_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^retrieval\.chunker: .*paragraphs.*tokens$"):
        check_chunker("paragraphs", {"tokens": object()})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="list tokens under plugins"):
        check_chunker(None, {})
    assert Config().retrieval == RetrievalConfig(chunker=None)


def test_headings_stay_at_their_places_when_the_text_is_cleaned() -> None:
    text = "\ufeff# A\u200b\r\nx\r\n# B\r\ny"
    document = Document(
        text=text, outline=(Heading(text.index("# B"), 1, "B\u200b\n"), Heading(1, 1, "A"), Heading(99, 2, "end"))
    )
    cleaned = clean_document(document)
    assert cleaned.text == "# A\nx\n# B\ny"
    assert cleaned.outline == (Heading(0, 1, "A"), Heading(6, 1, "B"), Heading(11, 2, "end"))


def test_a_part_of_a_document_stands_under_the_headings_before_it() -> None:
    headings = (Heading(0, 1, "A"), Heading(2, 2, "B"), Heading(4, 2, "C"), Heading(8, 1, "D"))
    part = Document(text="0123456789", title="T", outline=headings).part(6, 10)
    assert (part.text, part.title) == ("6789", "T")
    assert part.outline == (Heading(0, 1, "A"), Heading(0, 2, "C"), Heading(2, 1, "D"))


async def test_a_file_is_cut_by_the_chunker_it_was_attached_with(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(knowledge_kit, "YAML", YAML)
    async with stack(tmp_path) as made:
        vs, file = await made.make_store(), await made.upload(MANUAL, "manual.md")
        await made.attach(vs, file, chunker="tokens")
        await made.settled(vs, file)
        assert {chunk.context for chunk in await made.knowledge.content(vs, file, Scope())} == {""}


async def test_a_file_whose_chunker_is_gone_fails_and_names_it(tmp_path) -> None:
    async with stack(tmp_path) as made:
        vs, file = await made.make_store(), await made.upload("some text")
        await made.attach(vs, file, chunker="contextual")
        row = await made.settled(vs, file)
        assert row.status == "failed"
        assert "no listed plugin provides the chunker contextual" in row.error_message
