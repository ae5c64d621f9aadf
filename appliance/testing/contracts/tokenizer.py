"""What every engine that is a ``Tokenizer`` must do. Inherit, and give one fixture.

    class TestMyTokenizer(TokenizerContract):
        model = "my-model"

        @pytest.fixture
        async def engine(self):
            engine = MyEngine(...)
            await engine.start()
            yield engine
            await engine.stop()

Needs pytest and pytest-asyncio (``asyncio_mode = auto``).
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import uuid4

from appliance.errors import BadRequest
from appliance.protocols import Tokenizer
from appliance.testing.contracts.engine import collect, generate
from appliance.types import Call
from appliance.wire import ChatRequest, DetokenizeRequest, Message, TokenizeRequest


class TokenizerContract:
    """Inherit this, see the module's text. Needs the fixture ``engine``, which answers chats too."""

    model: ClassVar[str] = "m"
    """The name that calls use."""
    text: ClassVar[str] = "Tell me of Paris and of Rome."

    def request(self, **fields: Any) -> TokenizeRequest:
        """A request for this model."""
        return TokenizeRequest(model=self.model, **fields)

    async def test_it_has_the_methods_of_a_tokenizer(self, engine: Any) -> None:
        assert isinstance(engine, Tokenizer)

    async def test_a_text_has_as_many_tokens_as_are_counted(self, engine: Any) -> None:
        found = await engine.tokenize(self.request(prompt=self.text))
        assert found.count == len(found.tokens) > 0
        assert found.max_model_len > 0
        assert found.token_strs is None

    async def test_the_same_text_has_the_same_tokens(self, engine: Any) -> None:
        first, second = [await engine.tokenize(self.request(prompt=self.text)) for _ in range(2)]
        assert first == second

    async def test_tokens_become_the_text_again(self, engine: Any) -> None:
        found = await engine.tokenize(self.request(prompt=self.text, add_special_tokens=False))
        text = await engine.detokenize(DetokenizeRequest(model=self.model, tokens=found.tokens))
        assert text == self.text

    async def test_each_token_has_a_text_when_asked_for(self, engine: Any) -> None:
        found = await engine.tokenize(self.request(prompt=self.text, return_token_strs=True))
        assert found.token_strs is not None
        assert len(found.token_strs) == found.count

    async def test_a_chat_has_as_many_tokens_as_the_engine_reports_for_it(self, engine: Any) -> None:
        messages = [Message(role="user", content=self.text)]
        request = ChatRequest(model=self.model, messages=messages, max_tokens=1)
        call = Call(id=uuid4().hex, operation="chat", model=self.model, request=request)
        (chunk,) = await collect(await generate(engine, call))
        found = await engine.tokenize(self.request(messages=messages))
        assert found.count == chunk.body["usage"]["prompt_tokens"]

    async def test_no_text_has_no_tokens(self, engine: Any) -> None:
        assert (await engine.tokenize(self.request(prompt="", add_special_tokens=False))).tokens == []
        assert await engine.detokenize(DetokenizeRequest(model=self.model, tokens=[])) == ""

    async def test_a_token_that_does_not_exist_is_nothing_or_a_bad_request(self, engine: Any) -> None:
        try:
            text = await engine.detokenize(DetokenizeRequest(model=self.model, tokens=[2**31 - 1]))
        except BadRequest:
            return
        assert text.strip() == ""

    async def test_unusual_texts_are_tokenised_too(self, engine: Any) -> None:
        for text in ("日本語 😀", "\x00\x01", "a" * 5000, "\n\n\t "):
            assert (await engine.tokenize(self.request(prompt=text))).count >= 0
