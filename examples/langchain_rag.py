"""A LangChain chain over the appliance: its hybrid search as the retriever, its model as the chat model.

pip install langchain-openai
python examples/langchain_rag.py "Which command makes an API key?" docs/operations.md
"""

import os
import sys
from pathlib import Path

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from openai import OpenAI

URL = os.environ.get("APPLIANCE_URL", "http://127.0.0.1:8000/v1")
KEY = os.environ.get("APPLIANCE_API_KEY", "none")
client = OpenAI(base_url=URL, api_key=KEY)


class ApplianceRetriever(BaseRetriever):
    """Passages from one vector store, best first."""

    store_id: str
    limit: int = 3

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = client.vector_stores.search(self.store_id, query=query, max_num_results=self.limit)
        return [
            Document(hit.content[0].text, metadata={"filename": hit.filename, "score": hit.score, "file": hit.file_id})
            for hit in found.data
        ]


def joined(documents: list[Document]) -> str:
    return "\n\n".join(f"{document.metadata['filename']}: {document.page_content}" for document in documents)


question, *names = sys.argv[1:] or ["Which command makes an API key?", "docs/operations.md"]
store = client.vector_stores.create(name="langchain", expires_after={"anchor": "last_active_at", "days": 1})
for name in names:
    with Path(name).open("rb") as file:
        client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=file, poll_interval_ms=200)

retriever = ApplianceRetriever(store_id=store.id)
prompt = ChatPromptTemplate.from_messages(
    [("system", "Answer from these passages:\n\n{passages}"), ("user", "{question}")]
)
model = ChatOpenAI(
    base_url=URL, api_key=KEY, model=os.environ.get("APPLIANCE_MODEL", "smollm2"), temperature=0, max_tokens=200
)
chain = {"passages": retriever | joined, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()

for piece in chain.stream(question):
    print(piece, end="", flush=True)
print(f"\n\nfrom: {', '.join(dict.fromkeys(d.metadata['filename'] for d in retriever.invoke(question)))}")
