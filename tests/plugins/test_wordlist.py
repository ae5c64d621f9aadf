import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.plugin import (
    BadRequest,
    Blocked,
    Call,
    ChatRequest,
    Chunk,
    CompletionRequest,
    ConfigError,
    Message,
    Passage,
)
from appliance.testing.answers import chat_call, chunks_of, delta, finishes_of, message, stream_of, text_of, usage
from appliance.testing.contracts.output_filter import OutputFilterContract
from appliance.wire import ContentPart, FunctionCall, ToolCall
from appliance_plugins import wordlist
from appliance_plugins.wordlist import Wordlist, WordlistSettings


def made(**fields) -> Wordlist:
    return Wordlist(WordlistSettings(**{"block": ("kumquat",), "mask": ("email",), **fields}))


async def filtered(chunks, *, n=None, stream=True, word_list=None):
    source = chunks_of(chunks)
    call = chat_call(n=n, stream=stream)
    out = [chunk async for chunk in (word_list or made()).filter_output(call, source)]
    return out, source


class TestWordlistKeepsTheContract(OutputFilterContract):
    texts = (*OutputFilterContract.texts, "a kumquat tree", "write user@example.test now", "kum", "")
    may_end_early = True

    @pytest.fixture
    def output_filter(self):
        return made()


@pytest.mark.parametrize("pieces", [["kum", "quat"], list("kumquat"), ["KUM", "QUAT"], ["I like kumquat", " jam"]])
async def test_o39_a_blocked_term_cut_anywhere_ends_the_choice_with_content_filter(pieces):
    chunks, _ = await filtered(stream_of(["I said ", *pieces, " and more"]))
    assert text_of(chunks) in ("I said ", "I said I like ")
    assert finishes_of(chunks) == ["content_filter"]


@pytest.mark.parametrize("pieces", [["user@exa", "mple.test"], list("user@example.test"), ["USER@", "EXAMPLE.TEST"]])
async def test_o39_a_masked_address_cut_anywhere_is_replaced_whole(pieces):
    chunks, _ = await filtered(stream_of(["Write to ", *pieces, ", please"]))
    assert text_of(chunks) == "Write to ***, please"
    assert finishes_of(chunks) == ["stop"]


async def test_o39_a_term_across_two_choices_does_not_match():
    chunks = [delta("kum"), delta("quat", index=1), delta(finish="stop"), delta(index=1, finish="stop"), usage()]
    out, _ = await filtered(chunks, n=2)
    assert (text_of(out), text_of(out, index=1)) == ("kum", "quat")
    assert finishes_of(out) == finishes_of(out, index=1) == ["stop"]


async def test_o39_one_blocked_choice_leaves_the_other_running():
    chunks = [delta("kumquat"), delta("fine", index=1), delta("more"), delta(" day", index=1)]
    chunks += [delta(index=1, finish="stop"), delta(finish="stop"), usage()]
    out, _ = await filtered(chunks, n=2)
    assert (text_of(out), finishes_of(out)) == ("", ["content_filter"])
    assert (text_of(out, index=1), finishes_of(out, index=1)) == ("fine day", ["stop"])


async def test_o39_when_every_choice_is_blocked_or_over_the_generation_is_left():
    out, source = await filtered([delta("a kumquat"), *(delta("never read") for _ in range(3))])
    assert finishes_of(out) == ["content_filter"]
    assert text_of([chunk async for chunk in source]) == "never read" * 3


def tool_call(arguments: str, **fields) -> Chunk:
    return delta(tool_calls=[{"index": 0, **fields, "function": {"arguments": arguments}}])


async def test_o39_tool_call_arguments_are_blocked_and_masked():
    head = {"id": "call_1", "type": "function"}
    chunks = [tool_call('{"to": "user@', **head), tool_call('example.test"}'), delta(finish="tool_calls"), usage()]
    out, _ = await filtered(chunks)
    assert arguments_of(out) == '{"to": "***"}'
    out, _ = await filtered([tool_call('{"fruit": "kum', **head), tool_call('quat"}'), delta(finish="tool_calls")])
    assert arguments_of(out) == '{"fruit": "'
    assert finishes_of(out) == ["content_filter"]


async def test_o39_arguments_held_back_at_the_end_still_come():
    chunks = [tool_call('{"a": 1} kum', id="call_1"), delta(finish="tool_calls"), usage()]
    out, _ = await filtered(chunks)
    assert arguments_of(out) == '{"a": 1} kum'


def arguments_of(chunks) -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.body["choices"]]
    calls = [call for part in deltas for call in part.get("tool_calls") or []]
    return "".join(call["function"].get("arguments", "") for call in calls)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "refusal"])
async def test_every_text_of_an_earlier_turn_is_looked_at(field):
    earlier = Message(role="assistant", content="a", **{field: "to ann@example.test"})
    request = ChatRequest(model="m", messages=[earlier])
    call = Call(id="c", operation="chat", model="m", request=request)
    assert getattr((await made().filter_input(call)).request.messages[0], field) == "to ***"
    request.messages[0] = Message(role="assistant", content=[ContentPart(type="refusal", refusal="a kumquat")])
    with pytest.raises(Blocked) as refused:
        await made().filter_input(call)
    assert refused.value.param == "messages[0].content[0].refusal"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "refusal"])
async def test_o39_other_texts_of_a_choice_have_windows_of_their_own(field):
    chunks = [delta(**{field: "kum"}), delta("quat"), delta(**{field: "quat!"}), delta(finish="stop")]
    out, _ = await filtered(chunks)
    assert text_of(out, field=field) == ""
    assert finishes_of(out) == ["content_filter"]


async def test_o39_completion_text_is_filtered_for_each_prompt():
    def piece(text, index=0, finish=None):
        return Chunk(body={"choices": [{"index": index, "text": text, "finish_reason": finish}]})

    request = CompletionRequest(model="m", prompt=["a", "b"], stream=True)
    call = Call(id="r", operation="completion", model="m", request=request, stream=True)
    source = chunks_of([piece("a kum"), piece("b ", 1), piece("quat"), piece("fine", 1, "stop"), piece("lost")])
    out = [chunk async for chunk in made().filter_output(call, source)]
    assert (text_of(out, field="text"), finishes_of(out)) == ("a ", ["content_filter"])
    assert (text_of(out, index=1, field="text"), finishes_of(out, index=1)) == ("b fine", ["stop"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("kumqat @.exyz", max_size=12), max_size=10))
async def test_o39_any_stream_says_what_the_plain_answer_says(pieces):
    streamed, _ = await filtered(stream_of(pieces))
    plain, _ = await filtered([message("".join(pieces))], stream=False)
    assert text_of(streamed) == text_of(plain)
    assert finishes_of(streamed) == finishes_of(plain)


async def test_a_chunk_with_nothing_to_change_passes_as_it_came():
    chunks = stream_of(["The quick ", "brown fox "])
    out, _ = await filtered(chunks, word_list=made(mask=()))
    assert all(new is old for new, old in zip(out, chunks, strict=True))


async def test_log_probabilities_do_not_spell_what_is_filtered():
    chunk = Chunk(
        body={"choices": [{"index": 0, "delta": {"content": "hi "}, "logprobs": {"content": [{"token": "x"}]}}]}
    )
    out, _ = await filtered([chunk, delta(finish="stop")])
    assert out[0].body["choices"][0]["logprobs"] is None
    assert chunk.body["choices"][0]["logprobs"] is not None


async def test_a_stream_that_ends_without_a_finish_reason_loses_nothing():
    out, _ = await filtered([delta("a kum")])
    assert text_of(out) == "a kum"
    assert finishes_of(out) == []


async def test_a_plain_answer_is_cut_and_says_why():
    out, _ = await filtered([message("I like kumquat jam")], stream=False)
    assert text_of(out) == "I like "
    assert finishes_of(out) == ["content_filter"]
    assert out[0].body["usage"]["completion_tokens"] == 5


async def test_error_events_pass():
    error = Chunk(body={"error": {"message": "kumquat"}})
    out, _ = await filtered([error])
    assert out == [error]


def asked(*messages: Message) -> Call:
    return Call(id="r", operation="chat", model="m", request=ChatRequest(model="m", messages=list(messages)))


async def test_input_is_masked_in_all_messages_and_the_original_stays():
    call = asked(
        Message(role="system", content="Write to boss@example.test"),
        Message(
            role="user",
            content=[ContentPart(type="text", text="I am user@example.test"), ContentPart(type="image_url")],
        ),
        Message(
            role="assistant", tool_calls=[ToolCall(id="1", function=FunctionCall(name="f", arguments='{"m":"a@b.de"}'))]
        ),
    )
    before = msgspec.json.encode(call.request)
    changed = await made().filter_input(call)
    system, user, assistant = changed.request.messages
    assert system.content == "Write to ***"
    assert user.content[0].text == "I am ***"
    assert user.content[1].text is None
    assert assistant.tool_calls[0].function.arguments == '{"m":"***"}'
    assert msgspec.json.encode(call.request) == before


async def test_a_blocked_term_in_the_input_names_the_field_but_not_the_term():
    call = asked(Message(role="user", content="hello"), Message(role="user", content="a KumQuat"))
    with pytest.raises(Blocked) as caught:
        await made().filter_input(call)
    assert caught.value.param == "messages[1].content"
    assert "kumquat" not in str(caught.value).lower()


async def test_prompts_are_filtered_and_token_ids_refused():
    def prompt_call(prompt):
        return Call(id="r", operation="completion", model="m", request=CompletionRequest(model="m", prompt=prompt))

    changed = await made().filter_input(prompt_call(["to a@b.de", "fine"]))
    assert changed.request.prompt == ["to ***", "fine"]
    with pytest.raises(Blocked):
        await made().filter_input(prompt_call("kumquat"))
    for tokens in ([1, 2, 3], [[1, 2], [3]]):
        with pytest.raises(BadRequest, match="token ids"):
            await made().filter_input(prompt_call(tokens))


async def test_a_long_prompt_is_masked_across_its_slices():
    text = "x" * (wordlist._SLICE - 5) + " user@example.test " + "y" * 40_000
    changed = await made().filter_input(asked(Message(role="user", content=text)))
    assert changed.request.messages[0].content == text.replace("user@example.test", "***")
    with pytest.raises(Blocked):
        await made().filter_input(
            asked(Message(role="user", content="z" * (wordlist._SLICE - 4) + "kumquat" + "z" * 20_000))
        )


@pytest.mark.parametrize("term", ["KUMQUAT", "\uff4bumquat", "ku\u200bmquat", "\u043aumqu\u0430t", "k\u00famquat"])
async def test_F6_a_term_in_disguise_is_found_in_requests_passages_and_answers(term):
    with pytest.raises(Blocked):
        await made().filter_input(asked(Message(role="user", content=f"a {term} b")))
    passage = Passage(chunk_id="c", store_id="s", file_id="f", filename="a.txt", text=f"a {term}", score=1.0)
    assert await made().filter_passages(asked(Message(role="user", content="hi")), [passage]) == []
    call = msgspec.structs.replace(chat_call(), stream=True)
    answer = [chunk async for chunk in made().filter_output(call, chunks_of(stream_of(f"a {term} b")))]
    assert (text_of(answer), finishes_of(answer)) == ("a ", ["content_filter"])


async def test_passages_with_blocked_terms_are_dropped_and_others_masked():
    def passage(text):
        return Passage(chunk_id="c", store_id="s", file_id="f", filename="a.txt", text=text, score=1.0)

    kept = await made().filter_passages(
        chat_call(), [passage("a kumquat"), passage("ask me@example.test"), passage("ok")]
    )
    assert [item.text for item in kept] == ["ask ***", "ok"]


async def test_apply_says_where_the_filter_works():
    only_output = WordlistSettings(block=("kumquat",), apply=("output",))
    (passages_only,) = wordlist.appliance_input_filters(only_output)
    call = chat_call(text="a kumquat")
    assert await passages_only.filter_input(call) is call
    assert len(wordlist.appliance_output_filters(only_output)) == 1
    assert wordlist.appliance_output_filters(WordlistSettings(block=("x",), apply=("input",))) == []


async def test_F6_headings_that_a_passage_stands_under_are_filtered_as_its_text_is():
    def passage(context):
        return Passage(
            chunk_id="c", store_id="s", file_id="f", filename="a.txt", text="prices", score=1.0, context=context
        )

    given = [passage("Minutes > Kumquat"), passage("Of ask me@example.test"), passage("Of today")]
    kept = await made().filter_passages(chat_call(), given)
    assert [each.context for each in kept] == ["Of ask ***", "Of today"]
    assert kept[1] is given[2]


async def test_F6_names_of_files_are_filtered_as_their_passages_are():
    def passage(filename):
        return Passage(chunk_id="c", store_id="s", file_id="f", filename=filename, text="prices", score=1.0)

    given = [passage("Kumquat prices.pdf"), passage("mail of me@example.test"), passage("prices.pdf")]
    kept = await made().filter_passages(chat_call(), given)
    assert [each.filename for each in kept] == ["mail of ***", "prices.pdf"]
    assert kept[1] is given[2]


async def test_passages_are_filtered_for_an_output_list_too_as_citations_quote_them():
    (passages_only,) = wordlist.appliance_input_filters(WordlistSettings(block=("kumquat",), apply=("output",)))
    passage = Passage(chunk_id="c", store_id="s", file_id="f", filename="a.txt", text="a kumquat", score=1.0)
    assert await passages_only.filter_passages(chat_call(), [passage]) == []


def with_tool(tool):
    call = chat_call()
    return msgspec.structs.replace(call, request=msgspec.structs.replace(call.request, tools=[tool]))


async def test_descriptions_of_tools_are_input_too():
    tool = {"type": "function", "function": {"name": "f", "description": "asks me@example.test", "parameters": {}}}
    filtered = await made().filter_input(with_tool(tool))
    assert filtered.request.tools[0]["function"] == {"name": "f", "description": "asks ***", "parameters": {}}
    tool["function"]["description"] = "a kumquat"
    with pytest.raises(Blocked, match="tools"):
        await made().filter_input(with_tool(tool))


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"block": (" ",)}, "block[0]"),
        ({"mask": ("fine", "x" * 201)}, "mask[1]"),
        ({"mask_with": 'a"b'}, "mask_with"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(fields, where):
    with pytest.raises(ConfigError, match="wordlist") as caught:
        made(**fields)
    assert where in str(caught.value)
