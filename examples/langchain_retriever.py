"""The appliance's vector store in LangChain: documents with ids and metadata go in, and a chain answers from them.

pip install "rag-appliance[client-langchain]" langchain-openai
python examples/langchain_retriever.py "When does the kitchen close on Fridays?"
"""

import os
import sys

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

from appliance_client import Connection
from appliance_client.langchain import ApplianceRetriever, ApplianceVectorStore

HOURS = [
    Document("The kitchen closes at nine in the evening on Fridays.", id="kitchen", metadata={"year": 2026}),
    Document("The library opens at eight in the morning.", id="library", metadata={"year": 2026}),
    Document("The kitchen closed at six on Fridays.", id="kitchen-old", metadata={"year": 2019}),
]


def joined(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


question = " ".join(sys.argv[1:]) or "When does the kitchen close on Fridays?"
connection = Connection()  # APPLIANCE_URL and APPLIANCE_API_KEY say where and who
store = ApplianceVectorStore.from_documents(HOURS, None, connection=connection)
retriever = ApplianceRetriever(store_id=store.store_id, connection=connection, k=2, filter={"year": {"$gte": 2025}})
prompt = ChatPromptTemplate.from_messages(
    [("system", "Answer from these passages:\n\n{passages}"), ("user", "{question}")]
)
model = ChatOpenAI(
    base_url=connection.base_url,
    api_key=os.environ.get("APPLIANCE_API_KEY", "none"),
    model=os.environ.get("APPLIANCE_MODEL", "smollm2"),
    temperature=0,
    max_tokens=60,
)
chain = {"passages": retriever | joined, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()

print(chain.invoke(question))
for document in retriever.invoke(question):
    print(f"{document.metadata['score']:.2f} {document.metadata['filename']}: {document.page_content}")
store.delete()
connection.client.vector_stores.delete(store.store_id)
connection.close()
