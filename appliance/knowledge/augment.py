"""The retrieve step: which stores a call wants searched, and the passages put before the model.

A chat names stores with the ``file_search`` tool, or uses a model that has stores bound to it. The tool is taken
out of the request; the client's own tools, ``tool_choice`` and ``response_format`` stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.config import RetrievalConfig
from appliance.errors import BadRequest, NotFound, RequestError
from appliance.knowledge.api import Knowledge
from appliance.knowledge.budget import ContextBudget, reading_order, whole, within_characters
from appliance.knowledge.file_search import Asked, file_search_tools, is_file_search, read_file_search
from appliance.knowledge.framing import framed
from appliance.protocols import Tokenizer
from appliance.types import Call, Findings, Passage, Principal, Scope, Search
from appliance.wire import ChatRequest, FileSearch, Message, message_text, question_of

if TYPE_CHECKING:
    from appliance.knowledge.stores import StoreDirectory
    from appliance.models.registry import Model, Models

_MESSAGE = re.compile(r"\bmessages(?:\[(\d{1,9})\]|\.(\d{1,9})\b)[\w.\[\]]*")
"""A place in the messages as engines name it: ``messages[1].content[0]`` or ``messages.1.content.0``."""


class Retriever:
    """Finds passages for chats, with the caller's rights."""

    def __init__(self, knowledge: Knowledge, stores: StoreDirectory, config: RetrievalConfig) -> None:
        self._knowledge = knowledge
        self._stores = stores
        self._config = config
        self._budget = ContextBudget()

    def search_of(self, call: Call, models: Models) -> Search | None:
        """The search that a call asks for, by tool or by its model; ``None`` if it asks for none.

        Store names and ids are still as given; ``search`` resolves them. Raises BadRequest.
        """
        bound = models.resolve(call.model, call.principal)
        request = call.request
        if not isinstance(request, ChatRequest):
            if bound.vector_stores:
                raise BadRequest(
                    f"model {call.model} searches documents and answers chats only; use /v1/chat/completions"
                )
            return None
        tools = file_search_tools(request)
        if not tools and not bound.vector_stores:
            return None
        return self._search(_read_tool(tools), bound, question_of(request))

    def _search(self, asked: Asked, bound: Model, question: str) -> Search:
        tool = asked.tool
        return Search(
            store_ids=tuple(dict.fromkeys([*tool.vector_store_ids, *bound.vector_stores])),
            queries=(question,) if question else (),
            limit=tool.max_num_results or bound.max_num_results or self._config.max_num_results,
            where=asked.where,
            rewrite=_first(tool.rewrite_query, bound.rewrite_query, self._config.rewrite_chats),
            **asked.ranking.as_search(self._config),
        )

    async def bound_within_reach(self, models: Sequence[Model], caller: Principal) -> list[Model]:
        """Those models whose own vector stores are all there for the caller. Raises Unavailable."""
        references = {reference for model in models for reference in model.vector_stores}
        reached = await self._stores.reached(scope_of(caller), references)
        return [model for model in models if reached.issuperset(model.vector_stores)]

    async def check_stores(self, call: Call, search: Search) -> None:
        """Look whether a search could be done, before anything is spent on it.

        Raises:
            NotFound, Conflict: as the search would, for a store that this caller cannot search.
        """
        by_id = isinstance(call.request, Search)
        ids = search.store_ids if by_id else await self._resolved(call, search)
        await self._stores.check_usable(scope_of(call.principal), ids)

    async def search(self, call: Call, search: Search, tokenizer: Tokenizer | None = None) -> Findings:
        """Run it within the caller's tenant and rights; only passages that have to do with the question.

        ``tokenizer`` is the model's, where it has one: it knows how much the model's context has room for.

        Raises:
            NotFound: a store does not exist for this caller. RetrievalUnavailable
        """
        ids = await self._resolved(call, search)
        if not search.queries:
            return Findings()
        found = await self._knowledge.search(msgspec.structs.replace(search, store_ids=ids), scope_of(call.principal))
        relevant = [
            p
            for p in found.passages
            if p.similarity is None or p.similarity >= self._config.min_similarity or p.matched
        ]
        kept = within_characters(relevant, self._config.max_context_characters)
        kept = await self._budget.fit(kept, tokenizer, lambda passages: self._request_with(call, passages))
        return msgspec.structs.replace(found, passages=reading_order([whole(passage) for passage in kept]))

    async def _resolved(self, call: Call, search: Search) -> tuple[str, ...]:
        """The stores' ids. Whoever named none is told whose stores are missing."""
        try:
            return await self._stores.resolve(scope_of(call.principal), search.store_ids)
        except NotFound as error:
            if file_search_tools(call.request):
                raise NotFound(str(error), param="tools") from None
            told = f"model {call.model} answers from vector stores that your tenant does not have: {error}"
            raise NotFound(told, param="model") from None

    async def find(self, call: Call, search: Search) -> Findings:
        """All that a search of stores by id finds within the caller's rights, as the search API gives it."""
        found = await self._knowledge.search(search, scope_of(call.principal))
        return msgspec.structs.replace(found, passages=[whole(passage) for passage in found.passages])

    @property
    def may_be_missed(self) -> bool:
        """Whether chats are answered without documents while those cannot be searched."""
        return self._config.if_unavailable == "answer"

    def augment(self, call: Call, passages: Sequence[Passage], queries: tuple[str, ...] = ()) -> Call:
        """The call with the passages in its system message, and without the ``file_search`` tool."""
        request = self._request_with(call, passages)
        return msgspec.structs.replace(call, request=request, queries=queries, passages=tuple(passages))

    def _request_with(self, call: Call, passages: Sequence[Passage]) -> ChatRequest:
        request: ChatRequest = call.request
        tools = [tool for tool in request.tools or [] if not is_file_search(tool)]
        return msgspec.structs.replace(
            request,
            messages=_with_sources(request.messages, framed([whole(passage) for passage in passages])),
            tools=tools or None,
            tool_choice=_tool_choice(request.tool_choice, tools),
        )


def scope_of(principal: Principal) -> Scope:
    """What a caller may see: everything public in their tenant, their own, and their groups'."""
    return Scope(tenant=principal.tenant, readers=principal.readers, stores=principal.stores)


@contextmanager
def as_the_client_counts(asked: object, given: object) -> Iterator[None]:
    """Errors about the messages that an engine was given, by their places in those that the client sent.

    They differ where sources went into a system message of ours, which comes first. What is wrong with that one is said
    of the messages as a whole: nothing in it is the client's.
    """
    try:
        yield
    except RequestError as error:
        if isinstance(asked, ChatRequest) and isinstance(given, ChatRequest):
            ours = len(given.messages) - len(asked.messages)
            if ours:
                error.param = _moved(error.param, ours) if error.param is not None else None
                error.args = (_moved(str(error), ours),)
        raise


def _moved(text: str, ours: int) -> str:
    def place(found: re.Match[str]) -> str:
        number = found[1] or found[2]
        theirs = int(number) - ours
        return "messages" if theirs < 0 else found[0].replace(number, str(theirs), 1)

    return _MESSAGE.sub(place, text)


def _first(*wishes: bool | None) -> bool:
    """Whoever says something first is heeded: the client, the model's entry, then the configuration."""
    return next((wish for wish in wishes if wish is not None), False)


def _read_tool(tools: list[dict[str, Any]]) -> Asked:
    """The one tool; an empty one when only the model asks for a search. Raises BadRequest."""
    if not tools:
        return Asked(FileSearch())
    if len(tools) > 1:
        raise BadRequest("give one file_search tool, with all stores in its vector_store_ids", param="tools")
    return read_file_search(tools[0], "tools")


def _with_sources(messages: list[Message], sources: str) -> list[Message]:
    """Sources go into the system message: every chat template has one, and only at the start."""
    first, rest = messages[0], messages[1:]
    if first.role in ("system", "developer"):
        text = f"{message_text(first)}\n\n{sources}"
        return [msgspec.structs.replace(first, content=text), *rest]
    return [Message(role="system", content=sources), *messages]


def _tool_choice(choice: Any, tools: list[dict[str, Any]]) -> Any:
    """``file_search`` has been done; what remains is a choice among the client's own tools."""
    if isinstance(choice, dict) and choice.get("type") == "file_search":
        return None
    return choice if tools else None
