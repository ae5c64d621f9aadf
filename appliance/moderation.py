"""Moderation: what a guard model and the filters say of a text, as OpenAI's categories.

Guard models of the Llama Guard family answer ``safe``, or ``unsafe`` and a line of codes as ``S1,S10``. The codes are
MLCommons' hazards (Vidgen et al., 2024, as listed in the model card of Llama Guard 3); some have no category at OpenAI.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from appliance.errors import EngineError
from appliance.types import Judgement

CATEGORIES = {
    "harassment": ("text",),
    "harassment/threatening": ("text",),
    "hate": ("text",),
    "hate/threatening": ("text",),
    "illicit": ("text",),
    "illicit/violent": ("text",),
    "self-harm": ("text", "image"),
    "self-harm/instructions": ("text", "image"),
    "self-harm/intent": ("text", "image"),
    "sexual": ("text", "image"),
    "sexual/minors": ("text",),
    "violence": ("text", "image"),
    "violence/graphic": ("text", "image"),
}
"""OpenAI's categories, and the kinds of input that each can be about."""
HAZARDS = {
    "S1": ("violence", "illicit/violent"),
    "S2": ("illicit",),
    "S3": ("sexual",),
    "S4": ("sexual", "sexual/minors"),
    "S5": ("harassment",),
    "S9": ("violence", "illicit/violent"),
    "S10": ("hate",),
    "S11": ("self-harm",),
    "S12": ("sexual",),
    "S14": ("illicit",),
}
"""MLCommons' hazards as categories. Advice, privacy, intellectual property and elections (S6 to S8, S13) have none."""


def verdict(answer: str) -> Judgement:
    """What a guard model's words mean. Raises EngineError for what is no verdict."""
    first, _, rest = answer.strip().partition("\n")
    word = first.strip().lower()
    if word not in ("safe", "unsafe"):
        raise EngineError(
            "the moderation model answered neither safe nor unsafe; filters.moderation_model must be a guard model"
        )
    codes = [code.strip().upper() for code in rest.split(",")] if word == "unsafe" else []
    return Judgement(word == "unsafe", frozenset(name for code in codes for name in HAZARDS.get(code, ())))


def result(judgements: Sequence[Judgement], kinds: Collection[str]) -> dict[str, Any]:
    """OpenAI's result for an input of these kinds: flagged where anybody flags it. A verdict has no degrees: 1 or 0."""
    found: frozenset[str] = frozenset().union(*(judgement.categories for judgement in judgements))
    return {
        "flagged": any(judgement.flagged for judgement in judgements),
        "categories": {name: name in found for name in CATEGORIES},
        "category_scores": {name: 1.0 if name in found else 0.0 for name in CATEGORIES},
        "category_applied_input_types": {
            name: [kind for kind in possible if kind in kinds] for name, possible in CATEGORIES.items()
        },
    }
