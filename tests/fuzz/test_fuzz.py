"""Requests made from our own OpenAPI document, good and bad, over HTTP: no 5xx, no answer beside the document.

FUZZ_CASES says how many (``make fuzz CASES=100000``), FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np  # noqa: F401 - Hypothesis looks into it, so no thread of the app may be halfway through importing it
import pytest
import schemathesis
from every_route import every_route, model_for, name_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.generation.stateful.state_machine import StepOutput
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from appliance.http import openapi

CASES = int(os.environ.get("FUZZ_CASES", "2000"))
WALKED = 100
"""A walk of some requests for so many of the other kind."""
_WALKS = 100
"""Walks by one seed, at most. Hypothesis begins some of them like others and then wants the same answers; but what
is there changes with each walk, and it gives up. Nothing is wrong with the app then, and the next seed goes on."""
SEED = int(os.environ.get("FUZZ_SEED", "20261130"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
LEAK = re.compile(
    r"Traceback|File \"|\.py\b|/(?:tmp|home|usr|var|root|work|proc)/|0x[0-9a-f]{6,}|sqlalchemy|sqlite|asyncpg|msgspec"
    r"|SELECT |INSERT |pydantic|litestar|uvicorn|127\.0\.0\.1:\d+|site-packages|<class |object at ",
    re.IGNORECASE,
)
"""G3: what no error may hold."""
SCHEMA = schemathesis.openapi.from_dict(openapi.build())
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with every_route(tmp_path_factory.mktemp("fuzz")) as api:
        yield api


def cases_for(operation: Any, known: Mapping[str, str]) -> st.SearchStrategy[Any]:
    """Good and bad requests, half of them at objects that exist."""
    fixed = {p.name: known[name_of(operation.path, p.name)] for p in operation.path_parameters}
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    able = [mode for mode in modes if mode is GenerationMode.POSITIVE or operation.body or operation.query]
    anywhere = [operation.as_strategy(mode) for mode in able]
    return st.one_of(*anywhere, *(operation.as_strategy(mode, path_parameters=fixed) for mode in able if fixed))


def aim(case: Any) -> None:
    """A good request asks a model that is there, or else all of them would be 404."""
    good = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if good and isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = model_for(case.path)


def answered(case: Any, url: str, seen: dict[int, int]) -> tuple[Any, list[str]]:
    """The answer to a request, and what is wrong with it."""
    reply = case.call(base_url=url)
    seen[reply.status_code] = seen.get(reply.status_code, 0) + 1
    return reply, list(problems(case, reply))


def problems(case: Any, reply: Any) -> Iterator[str]:
    # On its way nothing is left of a wrong type in a form, which holds texts alone, or of an empty list in a query.
    is_form = (case.media_type or "").startswith("multipart/")
    is_lost = is_form or any(value in ([], {}) for value in (case.query or {}).values())
    checks = [check for check in CHECKS if not (is_lost and check is negative_data_rejection)]
    try:
        case.validate_response(reply, checks=checks)
    except BaseExceptionGroup as group:
        yield from (f"{type(e).__name__}: {str(e)[:600]}" for e in group.exceptions)
    if reply.status_code >= 400 and (found := LEAK.search(reply.text)):
        yield f"G3: an error tells {found[0]!r}: {reply.text[:300]}"


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_G3_objects_are_made_asked_for_and_deleted_as_the_links_of_the_document_say(api):
    seen: dict[int, int] = {}
    wrong: list[str] = []
    print(f"FUZZ_SEED={SEED}")

    class Walk(SCHEMA.as_state_machine()):
        """Makes objects, and follows links from them."""

        def step(self, input: Any) -> Any:  # noqa: A002 - its name in the class above
            aim(input.case)
            reply, found = answered(input.case, str(api.client.base_url), seen)
            if found:
                wrong.append("\n".join([input.case.as_curl_command(), *found]))
            return StepOutput(reply, input.case)

    wanted = CASES // WALKED + 1
    walks = settings(
        max_examples=min(wanted, _WALKS),
        stateful_step_count=8,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=QUIET,
    )
    for number in range(-(-wanted // _WALKS)):
        with suppress(FlakyStrategyDefinition):
            seed(SEED + number)(Walk).run(settings=walks)
    print("walks", seen)
    assert not wrong, "\n\n".join(wrong)
    assert api.client.get("/readyz").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_G3_no_request_gets_an_answer_that_the_document_does_not_know(operation, api):
    seen: dict[int, int] = {}
    print(f"FUZZ_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=CASES // len(OPERATIONS) + 1,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=QUIET,
    )
    @given(cases_for(operation, api.objects()))
    def attack(case: Any) -> None:
        aim(case)
        _, found = answered(case, str(api.client.base_url), seen)
        assert not found, "\n".join([case.as_curl_command(), *found])

    attack()
    print(operation.label, seen)
    assert api.client.get("/readyz").status_code == 200
