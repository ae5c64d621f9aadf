"""Upload documents, ask, and see which passages the answer rests on.

python examples/ask_documents.py "Which command makes an API key?" docs/operations.md README.md
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("APPLIANCE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("APPLIANCE_API_KEY", "none"),
)
question, *names = sys.argv[1:] or ["Which command makes an API key?", "docs/operations.md"]

store = client.vector_stores.create(name="example", expires_after={"anchor": "last_active_at", "days": 1})
with ExitStack() as opened:
    files = [opened.enter_context(Path(name).open("rb")) for name in names]
    batch = client.vector_stores.file_batches.upload_and_poll(store.id, files=files, poll_interval_ms=200)
for failed in client.vector_stores.files.list(store.id, filter="failed"):
    print(f"{failed.id}: {failed.last_error.message if failed.last_error else 'failed'}")
if not batch.file_counts.completed:
    sys.exit("no document could be read")

answer = client.chat.completions.create(
    model=os.environ.get("APPLIANCE_MODEL", "smollm2"),
    messages=[{"role": "user", "content": question}],
    # The client's types know function tools only; the appliance takes this one as well.
    extra_body={"tools": [{"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 3}]},
    temperature=0,
    max_tokens=200,
)
message = answer.choices[0].message
print(message.content)
for citation in message.model_dump()["annotations"]:
    print(f"\n[{citation['filename']}] {' '.join(citation['quote'].split())}")
