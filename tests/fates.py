"""What becomes of every field of every request, route by route: of ours, and of those that official clients send.

``Fate`` says it in a word. docs/api.md shows the table, and tests/appliance/http/test_coverage.py tries every entry.
Paths' parameters are not in it. A field that is nowhere here is ignored, or goes to the engine where the model's
``pass_fields`` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Fate(StrEnum):
    """What happens to a field."""

    ENGINE = "engine"
    """Goes to the engine, in its own form where the route has another."""
    HERE = "done here"
    STORED = "stored"
    """Kept with the object, and shown with it."""
    IGNORED = "ignored"
    REFUSED = "refused"
    """400 that names it: leaving it unheeded would give something else than was asked for."""


Fields = Mapping[str, Fate]


def _fields(*, engine: str = "", here: str = "", stored: str = "", ignored: str = "", refused: str = "") -> Fields:
    words = {
        Fate.HERE: here,
        Fate.ENGINE: engine,
        Fate.STORED: stored,
        Fate.IGNORED: ignored,
        Fate.REFUSED: refused,
    }
    return {name: fate for fate, names in words.items() for name in names.split()}


_SAMPLING = (
    "frequency_penalty presence_penalty temperature top_p n seed stop max_tokens logit_bias logprobs user top_k min_p "
    "repetition_penalty min_tokens ignore_eos stop_token_ids structured_outputs"
)
_PAGE = "limit order after before"
_RESPONSE = _fields(
    here=(
        "model input instructions stream store background previous_response_id conversation tools tool_choice include "
        "truncation prompt"
    ),
    engine=(
        "max_output_tokens temperature top_p top_logprobs parallel_tool_calls text reasoning user safety_identifier "
        "prompt_cache_key service_tier"
    ),
    stored="metadata",
    ignored=(
        "stream_options max_tool_calls access_programs "
        "background_options context_management image prompt_cache_options prompt_cache_retention"
    ),
    refused="moderation",
)
_MESSAGES = _fields(
    here="model messages system stream tools tool_choice",
    engine="max_tokens stop_sequences temperature top_k top_p output_config metadata",
    ignored=(
        "thinking service_tier cache_control container diagnostics inference_geo speed user_profile_id workspace_id"
    ),
)
_RERANK = _fields(
    here="model query documents top_n return_documents",
    engine="max_tokens_per_doc user",
    ignored="priority rank_fields max_chunks_per_doc truncation return_embeddings",
)
_SCORE = _fields(here="model text_1 text_2", engine="user")
COVERAGE: Mapping[str, Fields] = {
    "POST /v1/chat/completions": _fields(
        here="model messages stream stream_options tools tool_choice store cache_salt",
        engine=(
            f"{_SAMPLING} max_completion_tokens parallel_tool_calls functions function_call response_format "
            "top_logprobs modalities audio prediction reasoning_effort verbosity service_tier prompt_cache_key "
            "safety_identifier"
        ),
        stored="metadata",
        ignored="prompt_cache_options prompt_cache_retention",
        refused="moderation web_search_options",
    ),
    "GET /v1/chat/completions": _fields(here=f"{_PAGE} model metadata"),
    "POST /v1/chat/completions/{completion_id}": _fields(stored="metadata"),
    "GET /v1/chat/completions/{completion_id}/messages": _fields(here=_PAGE),
    "POST /v1/completions": _fields(
        here="model stream stream_options cache_salt", engine=f"prompt {_SAMPLING} best_of echo suffix"
    ),
    "POST /v1/embeddings": _fields(here="model cache_salt", engine="input encoding_format dimensions user"),
    "POST /v1/moderations": _fields(here="input", ignored="model"),
    "POST /v1/rerank": _RERANK,
    "POST /v2/rerank": _RERANK,
    "POST /rerank": _RERANK,
    "POST /v1/score": _SCORE,
    "POST /score": _SCORE,
    "POST /v1/responses": _RESPONSE,
    "POST /v1/responses/input_tokens": _fields(
        here="model input instructions tools prompt",
        ignored=(
            "stream store background include truncation max_output_tokens temperature top_p top_logprobs user text "
            "parallel_tool_calls reasoning metadata stream_options max_tool_calls safety_identifier prompt_cache_key "
            "service_tier tool_choice personality"
        ),
        refused="previous_response_id conversation moderation",
    ),
    "GET /v1/responses/{response_id}": _fields(here="stream starting_after", ignored="include include_obfuscation"),
    "GET /v1/responses/{response_id}/input_items": _fields(here=_PAGE, ignored="include"),
    "POST /v1/conversations": _fields(here="items", stored="metadata"),
    "POST /v1/conversations/{conversation_id}": _fields(stored="metadata"),
    "POST /v1/conversations/{conversation_id}/items": _fields(here="items", ignored="include"),
    "GET /v1/conversations/{conversation_id}/items": _fields(here=_PAGE, ignored="include"),
    "GET /v1/conversations/{conversation_id}/items/{item_id}": _fields(ignored="include"),
    "POST /v1/messages": _MESSAGES,
    "POST /v1/messages/count_tokens": _fields(
        here="model messages system tools",
        ignored=(
            "max_tokens stop_sequences temperature top_k top_p metadata stream tool_choice thinking output_config "
            "service_tier cache_control speed user_profile_id workspace_id"
        ),
    ),
    "POST /tokenize": _fields(
        here="model",
        engine=(
            "prompt messages tools add_special_tokens add_generation_prompt continue_final_message "
            "chat_template_kwargs return_token_strs"
        ),
    ),
    "POST /detokenize": _fields(here="model", engine="tokens"),
    "POST /v1/audio/transcriptions": _fields(
        here="model file stream",
        engine=(
            "language languages[] keywords[] prompt response_format temperature timestamp_granularities[] include[] "
            "chunking_strategy known_speaker_names[] known_speaker_references[]"
        ),
    ),
    "POST /v1/audio/translations": _fields(here="model file", engine="prompt response_format temperature"),
    "POST /v1/audio/speech": _fields(
        here="model", engine="input voice instructions response_format speed stream_format"
    ),
    "POST /v1/images/generations": _fields(
        here="model stream",
        engine=(
            "prompt n size quality style background moderation output_format output_compression response_format "
            "partial_images user safety_identifier"
        ),
        ignored="complexity frame_count frame_duration_ms svg",
    ),
    "POST /v1/images/edits": _fields(
        here="model stream image image[] mask",
        engine=(
            "prompt n size quality background input_fidelity output_format output_compression response_format "
            "partial_images user safety_identifier"
        ),
        ignored="complexity frame_count frame_duration_ms markup svg",
    ),
    "POST /v1/images/variations": _fields(here="model image", engine="n response_format size user"),
    "POST /v1/files": _fields(here="file expires_after[anchor] expires_after[seconds]", stored="purpose"),
    "GET /v1/files": _fields(here=f"{_PAGE} purpose"),
    "POST /v1/uploads": _fields(here="expires_after mime_type", stored="filename bytes purpose"),
    "POST /v1/uploads/{upload_id}/parts": _fields(here="data"),
    "POST /v1/uploads/{upload_id}/complete": _fields(here="part_ids md5"),
    "POST /v1/vector_stores": _fields(
        here="file_ids chunking_strategy access", stored="name description expires_after metadata"
    ),
    "GET /v1/vector_stores": _fields(here=_PAGE),
    "POST /v1/vector_stores/{vector_store_id}": _fields(stored="name expires_after metadata"),
    "POST /v1/vector_stores/{vector_store_id}/reindex": _fields(here="step embedder keep_days skip_failed"),
    "POST /v1/vector_stores/{vector_store_id}/search": _fields(
        here="query filters max_num_results ranking_options rewrite_query page include"
    ),
    "POST /v1/vector_stores/{vector_store_id}/files": _fields(
        here="file_id access", stored="attributes chunking_strategy"
    ),
    "GET /v1/vector_stores/{vector_store_id}/files": _fields(here=f"{_PAGE} filter filters"),
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": _fields(here="access", stored="attributes"),
    "POST /v1/vector_stores/{vector_store_id}/file_batches": _fields(
        here="file_ids files attributes chunking_strategy access"
    ),
    "GET /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files": _fields(here=f"{_PAGE} filter filters"),
    "POST /v1/batches": _fields(
        here="output_expires_after", stored="input_file_id endpoint completion_window metadata"
    ),
    "GET /v1/batches": _fields(here=_PAGE),
    "GET /v1/audit/events": _fields(here=f"{_PAGE} action outcome principal user object file since until"),
}
"""By route, as docs/api.md names it."""
