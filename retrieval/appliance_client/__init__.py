"""The appliance's vector stores in LangChain and LlamaIndex; for programs elsewhere, so it needs nothing of the server.

``langchain`` and ``llamaindex`` hold a retriever and a vector store each, over the same HTTP API.
"""

from appliance_client.connection import Connection

__all__ = ["Connection"]
