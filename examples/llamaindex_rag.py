"""The appliance's vector store in LlamaIndex: an index whose documents are split here, and embedded and searched there.

pip install "rag-appliance[client-llamaindex]"
python examples/llamaindex_rag.py "Which command makes an API key?" docs/operations.md
"""

import sys
from pathlib import Path

from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter

from appliance_client import Connection
from appliance_client.llamaindex import ApplianceVectorStore

question, *names = sys.argv[1:] or ["Which command makes an API key?", "docs/operations.md"]
connection = Connection()  # APPLIANCE_URL and APPLIANCE_API_KEY say where and who
store = ApplianceVectorStore(connection.client.vector_stores.create(name="llamaindex").id, connection)
index = VectorStoreIndex.from_vector_store(
    store,
    embed_model=MockEmbedding(embed_dim=1),  # the appliance embeds
    transformations=[SentenceSplitter(chunk_size=200, chunk_overlap=20, tokenizer=str.split)],
)
for name in names:
    index.insert(Document(text=Path(name).read_text("utf-8"), id_=name, metadata={"file": name}))

for hit in index.as_retriever(similarity_top_k=3).retrieve(question):
    print(f"{hit.score:.2f} {hit.metadata['file']}: {' '.join(hit.text.split())[:160]}")
store.clear()
connection.client.vector_stores.delete(store.store_id)
connection.close()
