"""Stream an answer as it is written.

python examples/chat_stream.py "What is the capital of France?"
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("APPLIANCE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("APPLIANCE_API_KEY", "none"),
)
question = " ".join(sys.argv[1:]) or "What is the capital of France?"

stream = client.chat.completions.create(
    model=os.environ.get("APPLIANCE_MODEL", "smollm2"),
    messages=[{"role": "user", "content": question}],
    stream=True,
    stream_options={"include_usage": True},
    temperature=0,
    max_tokens=200,
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n\n{chunk.usage.prompt_tokens} tokens read, {chunk.usage.completion_tokens} written")
