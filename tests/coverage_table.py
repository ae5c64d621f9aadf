"""The fields of every route as docs/api.md lists them, and as the official clients' own types know them.

After a change of tests/fates.py, bring the document up to date:

    .venv/bin/python tests/coverage_table.py --write
"""

from __future__ import annotations

import importlib
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from fates import COVERAGE, Fate

from appliance.http.routes import TABLE, Entry

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "api.md"
HEADING = "## Coverage"
TESTS = {
    Fate.ENGINE: "test_a_field_for_the_engine_reaches_it",
    Fate.HERE: "test_a_field_that_is_done_here_has_its_effect",
    Fate.STORED: "test_a_field_that_is_stored_is_shown_again",
    Fate.IGNORED: "test_a_field_that_is_ignored_changes_nothing",
    Fate.REFUSED: "test_a_field_that_is_refused_is_named",
}
"""Which test tries all entries of a fate."""
_INTRO = """\
Every field of every request, each sent as it should be, and what became of it. Null, wrong types, values out of bounds
and oversized ones are tried by `tests/appliance/http/test_fields.py`. The fields are ours, and all that the types of
the official clients know (`openai` {openai}, `anthropic` {anthropic}; those of Cohere and Jina by their documentation).
`refused` is a 400 that names the field in `param`; `ignored` fields change nothing. Tests without a file are in
`tests/appliance/http/test_coverage.py`.
"""
_STORE = "/v1/vector_stores/{vector_store_id}"
_BATCH = "GET /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}"
OPENAI = {
    "POST /v1/chat/completions": "chat.completion_create_params",
    "GET /v1/chat/completions": "chat.completion_list_params",
    "POST /v1/chat/completions/{completion_id}": "chat.completion_update_params",
    "GET /v1/chat/completions/{completion_id}/messages": "chat.completions.message_list_params",
    "POST /v1/completions": "completion_create_params",
    "POST /v1/embeddings": "embedding_create_params",
    "POST /v1/moderations": "moderation_create_params",
    "POST /v1/responses": "responses.response_create_params",
    "POST /v1/responses/input_tokens": "responses.input_token_count_params",
    "GET /v1/responses/{response_id}": "responses.response_retrieve_params",
    "GET /v1/responses/{response_id}/input_items": "responses.input_item_list_params",
    "POST /v1/conversations": "conversations.conversation_create_params",
    "POST /v1/conversations/{conversation_id}": "conversations.conversation_update_params",
    "POST /v1/conversations/{conversation_id}/items": "conversations.item_create_params",
    "GET /v1/conversations/{conversation_id}/items": "conversations.item_list_params",
    "GET /v1/conversations/{conversation_id}/items/{item_id}": "conversations.item_retrieve_params",
    "POST /v1/audio/transcriptions": "audio.transcription_create_params",
    "POST /v1/audio/translations": "audio.translation_create_params",
    "POST /v1/audio/speech": "audio.speech_create_params",
    "POST /v1/images/generations": "image_generate_params",
    "POST /v1/images/edits": "image_edit_params",
    "POST /v1/images/variations": "image_create_variation_params",
    "POST /v1/files": "file_create_params",
    "GET /v1/files": "file_list_params",
    "POST /v1/uploads": "upload_create_params",
    "POST /v1/uploads/{upload_id}/parts": "uploads.part_create_params",
    "POST /v1/uploads/{upload_id}/complete": "upload_complete_params",
    "POST /v1/vector_stores": "vector_store_create_params",
    "GET /v1/vector_stores": "vector_store_list_params",
    "POST /v1/vector_stores/{vector_store_id}": "vector_store_update_params",
    "POST /v1/vector_stores/{vector_store_id}/search": "vector_store_search_params",
    "POST /v1/vector_stores/{vector_store_id}/files": "vector_stores.file_create_params",
    "GET /v1/vector_stores/{vector_store_id}/files": "vector_stores.file_list_params",
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": "vector_stores.file_update_params",
    "POST /v1/vector_stores/{vector_store_id}/file_batches": "vector_stores.file_batch_create_params",
    f"{_BATCH}/files": "vector_stores.file_batch_list_files_params",
    "POST /v1/batches": "batch_create_params",
    "GET /v1/batches": "batch_list_params",
}
"""The module of the OpenAI client's types for each route that it can call."""
ANTHROPIC = {
    "POST /v1/messages": "message_create_params",
    "POST /v1/messages/count_tokens": "message_count_tokens_params",
}
RANKING = (
    *("model", "query", "documents", "top_n", "return_documents", "max_tokens_per_doc"),
    *("priority", "rank_fields", "max_chunks_per_doc", "truncation", "return_embeddings"),
)
"""Of Cohere's v1 and v2 and of Jina's rerank."""
_PARAMS = re.compile(r"Params(Base|Streaming|NonStreaming)?$")


def route(entry: Entry) -> str:
    """A route as the document names it."""
    return f"{entry.method} {re.sub(r':[a-z]+}', '}', entry.path)}"


def own_fields(entry: Entry) -> set[str]:
    """The fields that the route's type has."""
    type_ = entry.body or entry.form or entry.query
    return {field.encode_name for field in msgspec.structs.fields(type_)} - {"extra"} if type_ else set()


def official_fields(name: str) -> set[str]:
    """The fields that the official client of a route knows, as they are named on the wire."""
    if name.endswith("rerank"):
        return set(RANKING)
    place = {**{key: f"openai.types.{module}" for key, module in OPENAI.items()}}
    place |= {key: f"anthropic.types.{module}" for key, module in ANTHROPIC.items()}
    if name not in place:
        return set()
    found = set(_typed(importlib.import_module(place[name])))
    return {wire for field in found for wire in _on_the_wire(name, field)}


def _typed(module: Any) -> Iterator[str]:
    """The fields of all variants of a request; those of nested objects have other names of types."""
    for name in module.__all__:
        if _PARAMS.search(name):
            found = getattr(module, name)
            for variant in typing.get_args(found) or (found,):
                yield from typing.get_type_hints(variant)


def _on_the_wire(name: str, field: str) -> tuple[str, ...]:
    """Forms have names of their own for lists and objects, and parts of the path are no fields."""
    if "{" + field + "}" in name:
        return ()
    if name == "POST /v1/files" and field == "expires_after":
        return "expires_after[anchor]", "expires_after[seconds]"
    return (f"{field}[]",) if f"{field}[]" in COVERAGE[name] and field not in COVERAGE[name] else (field,)


_FILES = "tests/appliance/http"
_STREAMS, _RESPONSES = f"{_FILES}/test_response_streams.py", f"{_FILES}/test_responses.py"
_UPLOADS, _SEARCH = f"{_FILES}/test_part_uploads.py", f"{_FILES}/test_store_objects.py"
_SHOWN_BY: Mapping[str, Mapping[str, str]] = {
    "tests/appliance/test_cases_streaming.py::test_the_official_stream_helper_gathers_text_and_usage": {
        "POST /v1/chat/completions": "stream"
    },
    "tests/appliance/test_cases_streaming.py::test_o02_the_end_of_a_stream_with_usage_has_the_right_shape": {
        "POST /v1/chat/completions": "stream_options"
    },
    "tests/appliance/test_cases_streaming.py::test_o02_completions_end_the_same_way": {
        "POST /v1/completions": "stream stream_options"
    },
    "tests/engines/test_cache_salt.py::test_B8_the_clients_own_salt_is_mixed_in_and_never_sent_as_it_is": {
        "POST /v1/chat/completions": "cache_salt",
        "POST /v1/completions": "cache_salt",
        "POST /v1/embeddings": "cache_salt",
    },
    f"{_FILES}/test_completions.py::test_what_is_stored_is_what_was_answered": {"POST /v1/chat/completions": "store"},
    f"{_FILES}/test_completions.py::test_lists_are_paged_and_narrowed": {
        "GET /v1/chat/completions": "limit order after before model metadata"
    },
    f"{_FILES}/test_reindex.py::test_o24_a_model_is_changed_and_changed_back_over_http": {
        "POST /v1/vector_stores/{vector_store_id}/reindex": "step embedder keep_days"
    },
    f"{_FILES}/test_reindex.py::test_a_file_that_cannot_be_indexed_again_is_left_out_if_that_is_asked_for": {
        "POST /v1/vector_stores/{vector_store_id}/reindex": "skip_failed"
    },
    f"{_RESPONSES}::test_a_stream_has_typed_events_that_join_to_the_stored_response": {"POST /v1/responses": "stream"},
    f"{_RESPONSES}::test_what_was_said_before_comes_before_the_new_input": {
        "POST /v1/responses": "previous_response_id instructions"
    },
    f"{_RESPONSES}::test_what_is_not_to_be_stored_cannot_be_fetched_or_continued": {"POST /v1/responses": "store"},
    f"{_RESPONSES}::test_a_background_response_is_worked_on_after_the_answer": {"POST /v1/responses": "background"},
    f"{_RESPONSES}::test_a_conversation_grows_with_its_responses": {"POST /v1/responses": "conversation"},
    f"{_RESPONSES}::test_O_27_file_search_is_an_item_with_results_and_citations_of_the_right_file": {
        "POST /v1/responses": "tools include"
    },
    f"{_RESPONSES}::test_input_items_are_listed_in_pages": {
        "GET /v1/responses/{response_id}/input_items": "limit order after before"
    },
    f"{_STREAMS}::test_a_client_that_left_goes_on_where_it_was": {
        "GET /v1/responses/{response_id}": "stream starting_after"
    },
    f"{_FILES}/test_messages.py::test_a_stream_gathers_to_the_same_message": {"POST /v1/messages": "stream"},
    f"{_FILES}/test_messages.py::test_a_round_with_tools_goes_round": {"POST /v1/messages": "tools"},
    f"{_FILES}/test_ranking.py::test_as_many_as_wanted_come_with_their_texts_where_asked_for": {
        f"POST {path}": "top_n return_documents" for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    },
    f"{_FILES}/test_file_expiry.py::test_a_file_says_when_it_expires": {
        "POST /v1/files": "expires_after[anchor] expires_after[seconds]"
    },
    f"{_FILES}/test_files.py::test_lists_come_in_pages_newest_first": {"GET /v1/files": "limit order after before"},
    f"{_UPLOADS}::test_parts_are_put_together_in_the_order_that_the_client_names": {
        "POST /v1/uploads/{upload_id}/complete": "part_ids"
    },
    f"{_UPLOADS}::test_the_clients_own_helper_uploads_a_large_file_in_parts": {
        "POST /v1/uploads/{upload_id}/complete": "md5"
    },
    f"{_UPLOADS}::test_an_upload_says_how_long_its_file_is_kept": {"POST /v1/uploads": "expires_after"},
    f"{_FILES}/test_batches.py::test_output_files_expire_as_wished": {"POST /v1/batches": "output_expires_after"},
    f"{_FILES}/test_batches.py::test_batches_are_listed_in_pages_newest_first": {
        "GET /v1/batches": "limit order after before"
    },
    f"{_SEARCH}::test_results_come_in_pages_that_neither_repeat_nor_leave_out": {f"POST {_STORE}/search": "page"},
    f"{_SEARCH}::test_a_query_is_rewritten_by_the_model_where_it_is_asked_for": {
        f"POST {_STORE}/search": "rewrite_query"
    },
    "tests/appliance/audit/test_trail.py::test_an_auditor_reads_the_entries_of_their_own_tenant_page_by_page": {
        "GET /v1/audit/events": "limit order after before"
    },
}
SHOWN = {
    (name, field): test
    for test, entries in _SHOWN_BY.items()
    for name, fields in entries.items()
    for field in fields.split()
}
"""Tests of other files that show better what becomes of a field than those above: by route and field."""


def text() -> str:
    """The section of the document."""
    openai, anthropic = (importlib.import_module(name).__version__ for name in ("openai", "anthropic"))
    lines = [HEADING, "", _INTRO.format(openai=openai, anthropic=anthropic)]
    lines += ["| route | field | what happens | test |", "|---|---|---|---|"]
    for name, fields in COVERAGE.items():
        for field, fate in fields.items():
            shown = SHOWN.get((name, field), TESTS[fate])
            lines.append(f"| `{name}` | `{field}` | {fate} | `{shown}` |")
    return "\n".join(lines) + "\n"


def replaced(document: str) -> str:
    """The document with the section, its last, as it ought to be."""
    return document.partition(HEADING)[0] + text()


if __name__ == "__main__":
    missing = [route(entry) for entry in TABLE if own_fields(entry) and route(entry) not in COVERAGE]
    sys.stdout.write(f"routes without an entry: {missing}\n" if missing else text())
    if "--write" in sys.argv:
        DOCUMENT.write_text(replaced(DOCUMENT.read_text()))
