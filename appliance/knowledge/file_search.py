"""The ``file_search`` tool of a chat: which stores it names, and how they are to be searched."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from appliance.errors import BadRequest
from appliance.knowledge.filters import Filter, parse_filter
from appliance.knowledge.ranking import RankingOptions, parse_ranking
from appliance.wire import ChatRequest, FileSearch, invalid_field


class Asked(NamedTuple):
    """A tool, and what was read from its fields."""

    tool: FileSearch
    where: Filter | None = None
    ranking: RankingOptions = RankingOptions()


def is_file_search(tool: dict[str, Any]) -> bool:
    """Whether a tool is done here, and not by the client."""
    return tool.get("type") == "file_search"


def file_search_tools(request: object) -> list[dict[str, Any]]:
    """The ``file_search`` tools of a request; only chats have any."""
    return [tool for tool in request.tools or [] if is_file_search(tool)] if isinstance(request, ChatRequest) else []


def read_file_search(tool: dict[str, Any], where: str) -> Asked:
    """The tool at the place ``where`` of a body. Raises BadRequest naming the field in it."""
    try:
        search = msgspec.convert(tool, FileSearch)
    except msgspec.ValidationError as error:
        found = invalid_field(error)
        raise BadRequest(
            f"{where}: file_search: {found}", param=f"{where}.{found.param}" if found.param else where
        ) from None
    if not search.vector_store_ids:
        raise BadRequest("the file_search tool needs vector_store_ids", param=f"{where}.vector_store_ids")
    return Asked(
        search,
        parse_filter(search.filters or None, f"{where}.filters"),
        parse_ranking(search.ranking_options or None, f"{where}.ranking_options"),
    )
