"""Ask by gRPC, and see the answer come word by word, with its sources.

    python examples/grpc/chat.py 127.0.0.1:50051 "How do I start the appliance?"

The plugin `grpc` must be listed; a key goes into the variable APPLIANCE_API_KEY. docs/grpc.md says more.
"""

import os
import sys

import grpc

from appliance_plugins.grpc import inference_pb2 as pb


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    address, question = sys.argv[1], sys.argv[2]
    model = sys.argv[3] if len(sys.argv) > 3 else "docs"
    key = os.environ.get("APPLIANCE_API_KEY")
    request = pb.ChatRequest(model=model, messages=[pb.Message(role="user", content=question)])
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_stream(
            "/appliance.v1.Inference/StreamChat",
            request_serializer=pb.ChatRequest.SerializeToString,
            response_deserializer=pb.ChatChunk.FromString,
        )
        try:
            for chunk in ask(request, metadata=[("authorization", f"Bearer {key}")] if key else [], timeout=300):
                show(chunk)
        except grpc.RpcError as error:
            raise SystemExit(f"{error.code().name}: {error.details()}") from None


def show(chunk: pb.ChatChunk) -> None:
    for choice in chunk.choices:
        print(choice.delta.content, end="", flush=True)
        for citation in choice.delta.annotations:
            print(f"\n[{citation['filename']}] {citation['quote']}")


if __name__ == "__main__":
    main()
