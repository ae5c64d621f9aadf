"""What every ``Authorizer`` must do.

Inherit, and give three fixtures:

    class TestMyPolicy(AuthorizerContract):
        @pytest.fixture
        def authorizer(self): ...

        @pytest.fixture
        def permitted(self): ...    # a list of (principal, action, resource) that it allows

        @pytest.fixture
        def refused(self): ...      # a list of those that it does not

Needs pytest and pytest-asyncio (``asyncio_mode = auto``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pytest

from appliance.errors import Forbidden
from appliance.protocols import Authorizer, Explainer
from appliance.types import Principal

Question: TypeAlias = tuple[Principal, str, str]
ODD_RESOURCES = ("", " ", "/", "../x", "a" * 100_000, "ü\udcff€", "m\x00", "' OR 1=1 --", "*", "m\nm")


class AuthorizerContract:
    """It says yes by returning ``None``, no by Forbidden, and nothing else ever happens."""

    def test_it_is_an_authorizer(self, authorizer: Authorizer) -> None:
        assert isinstance(authorizer, Authorizer)

    async def test_what_is_permitted_returns_nothing_each_time(
        self, authorizer: Authorizer, permitted: Sequence[Question]
    ) -> None:
        assert permitted
        for question in [*permitted, *permitted]:
            assert await authorizer.authorize(*question) is None  # type: ignore[func-returns-value]

    async def test_what_is_refused_is_refused_each_time_in_one_line(
        self, authorizer: Authorizer, refused: Sequence[Question]
    ) -> None:
        assert refused
        for question in [*refused, *refused]:
            with pytest.raises(Forbidden) as caught:
                await authorizer.authorize(*question)
            assert str(caught.value)
            assert "\n" not in str(caught.value)

    async def test_a_decision_depends_on_the_principal_and_not_on_who_asked_before(
        self, authorizer: Authorizer, permitted: Sequence[Question], refused: Sequence[Question]
    ) -> None:
        for good, bad in zip(permitted, refused, strict=False):
            await authorizer.authorize(*good)
            with pytest.raises(Forbidden):
                await authorizer.authorize(*bad)
            await authorizer.authorize(*good)

    async def test_a_caller_without_roles_may_not_administer(self, authorizer: Authorizer) -> None:
        with pytest.raises(Forbidden):
            await authorizer.authorize(Principal(id="somebody"), "admin", "/admin")

    @pytest.mark.parametrize("resource", ODD_RESOURCES, ids=range(len(ODD_RESOURCES)))
    async def test_odd_resources_give_a_decision_and_break_nothing(
        self, authorizer: Authorizer, permitted: Sequence[Question], resource: str
    ) -> None:
        for principal, action, _ in permitted:
            try:
                await authorizer.authorize(principal, action, resource)
            except Forbidden as error:
                assert len(str(error)) < 1000

    async def test_an_explanation_is_lines_that_fit_the_decision(
        self, authorizer: Authorizer, permitted: Sequence[Question], refused: Sequence[Question]
    ) -> None:
        if not isinstance(authorizer, Explainer):
            return
        for question in permitted:
            assert any(reason.ok for reason in authorizer.explain(*question))
        for question in refused:
            assert any(not reason.ok for reason in authorizer.explain(*question))
        for question in [*permitted, *refused]:
            assert all("\n" not in reason.text for reason in authorizer.explain(*question))
