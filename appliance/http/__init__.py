"""The HTTP API: routes, request bodies and errors as OpenAI's clients know them."""
