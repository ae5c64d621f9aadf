"""Prompt templates: messages that the configuration keeps under an id (``prompts``), and that responses name.

A variable is ``{{name}}``. Its value is put in once and as it is: what it holds is text, never a template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from appliance.config import PromptConfig
from appliance.config_checks import VARIABLE
from appliance.errors import BadRequest, NotFound
from appliance.wire import Message, check_depth

_INSTRUCTING = ("system", "developer")


class PromptReference(msgspec.Struct, kw_only=True):
    """``prompt`` of a request. Without ``version`` it is the last one that the configuration lists."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class Filled(NamedTuple):
    """A template with its variables put in."""

    instructions: Sequence[Message] = ()
    """What the system or developer says: of this response alone, as ``instructions`` are."""
    input: Sequence[Any] = ()
    """What the others say: items of the input, which those that go on from the response have before them."""
    reference: PromptReference | None = None
    """What the request named, with the version that it got."""


def fill(reference: PromptReference | None, prompts: Sequence[PromptConfig]) -> Filled:
    """The template that a request names, or nothing if it names none.

    Raises:
        NotFound: there is no such template, or version of it. BadRequest: a variable is missing, unknown, or no text.
    """
    if reference is None:
        return Filled()
    check_depth(reference.variables, "prompt.variables")
    template = _template(reference, prompts)
    values = {name: _text(name, value) for name, value in (reference.variables or {}).items()}
    _check_names(values, {name for message in template.messages for name in VARIABLE.findall(message.content)})
    said = [
        (message.role, VARIABLE.sub(lambda found: values[found[1]], message.content)) for message in template.messages
    ]
    return Filled(
        [Message(role=role, content=text) for role, text in said if role in _INSTRUCTING],
        [{"role": role, "content": text} for role, text in said if role not in _INSTRUCTING],
        msgspec.structs.replace(reference, version=template.version),
    )


def _template(reference: PromptReference, prompts: Sequence[PromptConfig]) -> PromptConfig:
    versions = {prompt.version: prompt for prompt in prompts if prompt.id == reference.id}
    if not versions:
        raise NotFound(f"no prompt has the id {reference.id[:64]!r}; the configuration keeps them", param="prompt.id")
    version = reference.version or next(reversed(versions))
    if version not in versions:
        raise NotFound(
            f"prompt {reference.id} has the versions {', '.join(versions)}; name one of them", param="prompt.version"
        )
    return versions[version]


def _text(name: str, value: object) -> str:
    """A variable's value: a text, given as it is or as a part of the type ``input_text``. Raises BadRequest."""
    if isinstance(value, dict) and value.keys() == {"type", "text"} and value["type"] == "input_text":
        value = value["text"]
    if not isinstance(value, str):
        raise BadRequest(
            f"prompt.variables: {name[:64]!r} must be a text, or an input_text with a text and nothing else",
            param=f"prompt.variables.{name[:64]}",
            code="invalid_type",
        )
    return value


def _check_names(given: Mapping[str, str], wanted: set[str]) -> None:
    for name in sorted(wanted - given.keys()):
        where = f"prompt.variables.{name}"
        raise BadRequest(f"{where} is required", param=where, code="missing_required_parameter")
    for name in sorted(given.keys() - wanted):
        raise BadRequest(
            f"prompt.variables: {name[:64]!r} is no variable of the prompt; leave it out",
            param=f"prompt.variables.{name[:64]}",
        )
