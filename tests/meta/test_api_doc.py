"""docs/api.md names every route, field and error code, and none that does not exist; what it shows works."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
import openai
import pytest

from appliance import errors, wire
from appliance.anthropic.request import MessagesRequest
from appliance.http import objects
from appliance.http.batches import CreateBatch
from appliance.http.routes import TABLE
from appliance.media import requests as media
from appliance.responses.request import ResponsesRequest
from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text()
FIELDS = {
    "Chat": wire.ChatRequest,
    "Text completions": wire.CompletionRequest,
    "Embeddings": wire.EmbeddingRequest,
    "Moderations": wire.ModerationRequest,
    "Transcriptions": media.TranscriptionRequest,
    "Translations": media.TranslationRequest,
    "Speech": media.SpeechRequest,
    "Image generations": media.ImageRequest,
    "Image edits": media.ImageEditRequest,
    "Image variations": media.ImageVariationRequest,
    "Reranking": wire.RerankRequest,
    "Scores": wire.ScoreRequest,
    "Tokens": wire.TokenizeRequest,
    "Responses": ResponsesRequest,
    "Anthropic messages": MessagesRequest,
    "The file_search tool": wire.FileSearch,
    "Uploads": objects.CreateUpload,
    "Batches": CreateBatch,
    "Vector stores": objects.CreateVectorStore,
    "Files of a store": objects.AttachFile,
    "Search": objects.SearchVectorStore,
}


def rows_below(heading: str) -> Iterator[list[str]]:
    """The cells of the tables below a heading, header rows left out."""
    section = re.split(r"^#+ ", TEXT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    for table in section.split("|---")[1:]:
        for line in table.partition("\n\n")[0].splitlines()[1:]:
            yield [cell.strip(" `") for cell in line.split("|")[1:-1]]


def subclasses(type_: type) -> Iterator[type]:
    for child in type_.__subclasses__():
        yield child
        yield from subclasses(child)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_route_is_in_the_table_and_no_other() -> None:
    routes = {f"{entry.method} {re.sub(r':[a-z]+}', '}', entry.path)}" for entry in TABLE}
    assert {row[0] for row in rows_below("Routes")} == routes


def test_every_path_of_the_official_client_is_served_or_named_as_not_supported() -> None:
    sources = [path.read_text() for path in (Path(openai.__file__).parent / "resources").rglob("*.py")]
    called = r'self\._(?:post|get|delete|patch|put|get_api_list)\(\s*(?:path_template\()?\s*f?"(/[^"?]*)'
    paths = {path for source in sources for path in re.findall(called, source)}
    assert len(paths) > 100, "the client's sources are read as they are written"
    served = {re.sub(r"\{.*?\}", "{}", entry.path) for entry in TABLE}
    missing = {path for path in paths if "/v1" + re.sub(r"\{.*?\}", "{}", path) not in served}
    named = re.findall(r"`(/[a-z_/]+)`", TEXT.partition("## Not supported\n")[2])
    assert [path for path in missing if not path.startswith(tuple(named))] == []
    assert [name for name in named if not any(path.startswith(name) for path in missing)] == []


def test_the_permission_of_every_route_is_the_one_it_asks_for() -> None:
    shown = {row[0]: row[3] for row in rows_below("Routes")}
    for entry in TABLE:
        wanted = entry.action if entry.also is None else f"{entry.action} or {entry.also}"
        assert shown[f"{entry.method} {re.sub(r':[a-z]+}', '}', entry.path)}"] == wanted


@pytest.mark.parametrize("heading", FIELDS)
def test_a_table_holds_exactly_the_fields_that_are_read(heading: str) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(FIELDS[heading])} - {"extra"}
    assert {row[0] for row in rows_below(heading)} == fields


def test_what_may_be_changed_of_a_store_is_marked() -> None:
    changeable = {row[0] for row in rows_below("Vector stores") if row[2].startswith("yes")}
    assert changeable == {field.encode_name for field in msgspec.structs.fields(objects.UpdateVectorStore)}


def test_every_error_class_is_in_the_tables_with_its_status() -> None:
    shown = {tuple(row[:2]) for row in rows_below("Errors") if len(row) == 3}
    for type_ in subclasses(errors.RequestError):
        if type_.__module__ == errors.__name__:
            assert (type_.code or "null", str(type_.status)) in shown, type_
    files = {row[0] for row in rows_below("Errors") if len(row) == 2}
    assert files == {errors.IngestionError.code, *(type_.code for type_ in subclasses(errors.IngestionError))}


def test_every_code_that_the_core_gives_is_in_the_table_and_no_other() -> None:
    shown = {row[0] for row in rows_below("Errors") if len(row) == 3}
    source = "".join(path.read_text() for path in (ROOT / "appliance").rglob("*.py"))
    given = set(re.findall(r'\bcode="([a-z_]+)"', source)) | {"invalid_request"}
    given |= {type_.code or "null" for type_ in subclasses(errors.RequestError) if type_.__module__ == errors.__name__}
    assert shown == given


def test_the_json_that_is_shown_is_json() -> None:
    for block in blocks("json"):
        json.loads(block)


async def test_the_program_that_is_shown_prints_an_answer_with_its_source(tmp_path: Path) -> None:
    (program,) = blocks("python")
    config = {
        "plugins": ["scripted", "memory", "documents", "tokens"],
        "models": [
            {"name": "smollm2", "engine": "scripted", "options": {"reply": "You have 30 days [1]."}},
            {"name": "words", "embedder": "scripted_embedder"},
        ],
        "retrieval": {"vector_store": "memory"},
    }
    app = make_app(config, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    printed = io.StringIO()
    async with serving(app) as url:
        code = compile(ast.parse(program.replace("http://127.0.0.1:8000", url)), "api.md", "exec")
        with redirect_stdout(printed):
            names: dict[str, object] = {}
            await asyncio.wait_for(asyncio.to_thread(exec, code, names), 60)
        await asyncio.to_thread(names["client"].close)  # type: ignore[attr-defined]
    assert "You have 30 days [1].\nleave.txt Everybody has 30 days of leave." in printed.getvalue()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        file = ROOT / "docs" / (path or "api.md")
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, target
