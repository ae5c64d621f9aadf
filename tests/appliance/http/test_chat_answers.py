"""What a chat answer may hold, plain and streamed, through the official client; and what a message may bring."""

import pytest
from client_types import exactly
from loopback import Box
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from appliance.testing import CallTool, Emit

HELLO = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}


async def streamed(b: Box, **fields) -> ChatCompletion:
    """The whole of a stream as the client's own helper gathers it; every chunk is of the client's type."""
    async with b.openai.chat.completions.stream(model="m", messages=HELLO, **fields) as stream:
        async for event in stream:
            if event.type == "chunk":
                exactly(ChatCompletionChunk, event.chunk.model_dump(exclude_unset=True))
        return await stream.get_final_completion()


async def plain(b: Box, **fields) -> ChatCompletion:
    answer = await b.openai.chat.completions.create(model="m", messages=HELLO, **fields)
    return exactly(ChatCompletion, answer.model_dump(exclude_unset=True))


@pytest.mark.parametrize("ask", [plain, streamed])
async def test_a_refusal_is_a_refusal(box, ask) -> None:
    async with box([Emit("I will "), Emit("not")]) as b:
        b.engine.script = [Emit("I will ", part="refusal"), Emit("not", part="refusal")]
        message = (await ask(b)).choices[0].message
        assert (message.refusal, message.content or None) == ("I will not", None)


async def test_reasoning_comes_before_the_answer_plain_and_streamed(box) -> None:
    async with box([Emit("two and ", part="reasoning_content"), Emit("two", part="reasoning_content"), Emit("4")]) as b:
        answer = await b.openai.chat.completions.create(model="m", messages=HELLO)
        assert answer.choices[0].message.reasoning_content == "two and two"
        deltas = [
            chunk.choices[0].delta
            async for chunk in await b.openai.chat.completions.create(model="m", messages=HELLO, stream=True)
        ]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "two and two"
        assert "".join(delta.content or "" for delta in deltas) == "4"


@pytest.mark.parametrize("ask", [plain, streamed])
async def test_log_probabilities_spell_the_answer_with_as_many_others_as_asked_for(box, ask) -> None:
    async with box([Emit("Hel"), Emit("lo")]) as b:
        tokens = (await ask(b, logprobs=True, top_logprobs=3)).choices[0].logprobs.content
        assert [token.token for token in tokens] == ["Hel", "lo"]
        assert [len(token.top_logprobs) for token in tokens] == [3, 3]
        assert (await ask(b)).choices[0].logprobs is None


@pytest.mark.parametrize("ask", [plain, streamed])
async def test_several_choices_keep_apart(box, ask) -> None:
    async with box([Emit("same "), Emit("one", 1), Emit("two", 2)]) as b:
        choices = (await ask(b, n=3)).choices
        assert [choice.index for choice in choices] == [0, 1, 2]
        assert [choice.message.content for choice in choices] == ["same ", "same one", "same two"]


@pytest.mark.parametrize("ask", [plain, streamed])
async def test_several_tool_calls_keep_apart(box, ask) -> None:
    script = [
        CallTool('{"a":', name="f", index=0),
        CallTool("1}", name="f", index=0),
        CallTool("{}", name="g", index=1),
    ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
    async with box(script) as b:
        choice = (await ask(b, tools=tools, parallel_tool_calls=True)).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        assert calls == [("f", '{"a":1}'), ("g", "{}")]
        assert len({call.id for call in choice.message.tool_calls}) == 2
        assert choice.finish_reason == "tool_calls"
        assert b.engine.diaries[-1].call.request.parallel_tool_calls is True


async def test_max_completion_tokens_reaches_the_engine_and_has_a_bound(box) -> None:
    async with box(None, {"limits": {"max_completion_tokens": 8}}) as b:
        await plain(b, max_completion_tokens=7)
        assert b.engine.diaries[-1].call.request.max_completion_tokens == 7
        answer = await b.chat(max_completion_tokens=9)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")


# -- parts of messages ---------------------------------------------------------------------------------------


def asking(*parts: dict) -> list[dict]:
    return [{"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}]


async def test_parts_reach_an_engine_of_which_nothing_is_said(box) -> None:
    async with box() as b:
        assert (await b.chat(messages=asking(IMAGE, AUDIO, FILE))).status_code == 200
        (message,) = b.engine.diaries[-1].call.request.messages
        assert [part.type for part in message.content] == ["text", "image_url", "input_audio", "file"]
        assert message.content[3].file == FILE["file"]


@pytest.mark.parametrize(("inputs", "refused"), [([], "image_url"), (["image"], "input_audio")])
@pytest.mark.parametrize("name", ["m", "also"])
async def test_a_part_that_a_model_does_not_read_is_refused_by_name(box, inputs, refused, name) -> None:
    models = [{"name": "m", "engine": "scripted", "inputs": inputs}, {"name": "also", "alias_of": "m"}]
    async with box(None, {"models": models}) as b:
        answer = await b.chat(model=name, messages=asking(*([AUDIO] if inputs else [IMAGE])))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages[0].content[1].type")
        assert refused in error["message"]
        assert b.engine.diaries == []
        assert (await b.chat(model=name, messages=asking(*([IMAGE] if inputs else [])))).status_code == 200


PDF = "data:application/pdf;base64,AA=="
OF_OTHER_FORMS = [
    ("/v1/responses", {"type": "input_image", "image_url": PDF}, "image_url"),
    ("/v1/responses", {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "input_audio"),
    ("/v1/responses", {"type": "input_file", "filename": "a.pdf", "file_data": PDF}, "file"),
    ("/v1/messages", {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, "image_url"),
    (
        "/v1/messages",
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        "file",
    ),
]


@pytest.mark.parametrize(("path", "part", "kind"), OF_OTHER_FORMS)
async def test_a_part_in_another_apis_form_reaches_an_engine_or_is_refused_by_its_own_name(
    box, path, part, kind
) -> None:
    models = [{"name": "m", "engine": "scripted"}, {"name": "blind", "engine": "scripted", "inputs": []}]
    text = {"type": "text" if path.endswith("messages") else "input_text", "text": "what?"}
    turns = {"messages" if path.endswith("messages") else "input": [{"role": "user", "content": [text, part]}]}
    body = {"model": "m", "max_tokens": 5, "system": "Be brief.", "instructions": "Be brief.", **turns}
    async with box(None, {"models": models}) as b:
        assert (await b.client.post(path, json=body)).status_code == 200
        message = b.plugin.engines["m"].diaries[0].call.request.messages[-1]
        assert [found.type for found in message.content] == ["text", kind]
        reply = await b.client.post(path, json=body | {"model": "blind"})
        error = reply.json()["error"]
        field = "messages" if path.endswith("messages") else "input"
        assert (reply.status_code, error["param"]) == (400, f"{field}[0].content[1].type")
        assert part["type"] in error["message"]
        assert not b.plugin.engines["blind"].diaries


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "hologram"}, "messages[0].content[1].type"),
        ({"type": "text"}, "messages[0].content[1].text"),
        ({"type": "image_url"}, "messages[0].content[1].image_url"),
        ({"type": "image_url", "image_url": {}}, "messages[0].content[1].image_url.url"),
        ({"type": "input_audio", "text": "a"}, "messages[0].content[1].input_audio"),
        ({"type": "file", "file": "a"}, "messages[0].content[1].file"),
    ],
)
async def test_a_part_that_is_none_is_400_with_its_place(box, part, param) -> None:
    async with box() as b:
        answer = await b.chat(messages=asking(part))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
