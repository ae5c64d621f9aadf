"""Framing of server-sent events, on bytes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.sse import EventSplitter, EventTooLarge, encode, event_data

ENDS = [b"\n", b"\r\n", b"\r"]
LINES = st.sampled_from(
    [
        b"data: x",
        b"data:y",
        b"data",
        b"data:  two",
        b": working",
        b":",
        b"event: ping",
        b"id: 7",
        "data: 你好 🙂é".encode(),
        b"",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from(ENDS))).map(lambda pairs: b"".join(map(b"".join, pairs)))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.flush()


def reference(stream: bytes) -> list[bytes | None]:
    """The data of each event, by the letter of the grammar, on the whole stream at once."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\n|\r", stream)[:-1]
    events: list[bytes | None] = []
    block: list[bytes] = []
    for line in lines:
        if line:
            block.append(line)
            continue
        fields = [line for line in block if not line.startswith(b":")]
        data = [re.sub(rb"^data:? ?", b"", line) for line in fields if re.match(rb"data(:|$)", line)]
        if fields:
            events.append(b"\n".join(data) if data else None)
        block = []
    return events


@given(STREAMS, st.lists(st.integers(0, 200)))
def test_any_cut_of_a_stream_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    assert split(cut(stream, places)) == split([stream])


@given(STREAMS, st.booleans())
def test_one_byte_at_a_time_gives_the_events_of_the_grammar(stream: bytes, mark: bool) -> None:
    stream = b"\xef\xbb\xbf" * mark + stream
    events, _ = split([stream[i : i + 1] for i in range(len(stream))])
    assert [event_data(event) for event in events] == reference(stream)
    assert all(event.endswith(b"\n\n") and b"\r" not in event and b"\n\n" not in event[:-2] for event in events)


@given(st.text(), st.lists(st.integers(0, 400)))
def test_o03_a_character_cut_between_two_reads_survives(text: str, places: list[int]) -> None:
    data = text.encode()
    events, rest = split(cut(encode(data), places))
    assert [event_data(event) for event in events] == [data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")]
    assert rest == b""


def test_o03_an_event_byte_by_byte_is_whole() -> None:
    stream = 'data: {"content":"你好 🙂"}\n\n'.encode()
    assert split([bytes([byte]) for byte in stream]) == ([stream], b"")


def test_one_whole_event_passes_without_a_copy() -> None:
    event = b'data: {"choices":[]}\n\n'
    assert EventSplitter().feed(event)[0] is event


def test_several_events_in_one_read_come_one_by_one() -> None:
    assert split([b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"]) == (
        [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"],
        b"",
    )


@pytest.mark.parametrize("comment", [b": working\n\n", b":\n\n", b": working\r\n\r\n", b": a\n: b\n\n", b":\r\r"])
def test_o05_comments_never_come_out(comment: bytes) -> None:
    assert split([comment, b"data: 1\n\n", comment, comment]) == ([b"data: 1\n\n"], b"")


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: {}\r\n\r\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b'data: {"a":\ndata: 1}\n\n', b'{"a":\n1}'),
        (b": working\ndata: {}\n\n", b"{}"),
        (b"data:  two\n\n", b" two"),
        (b"data\n\n", b""),
        (b"event: error\ndata: {}\nid: 1\n\n", b"{}"),
        (b"event: ping\n\n", None),
        (b"database: no\n\n", None),
    ],
)
def test_o05_every_legal_shape_of_data_is_read(stream: bytes, data: bytes | None) -> None:
    (event,), _ = split([stream])
    assert event_data(event) == data


def test_a_comment_alone_has_no_data() -> None:
    assert event_data(b": working\n\n") is None


def test_a_stream_that_ends_inside_an_event_is_known() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n") == [b"data: 1\n\n"]
    assert splitter.pending
    assert splitter.flush() == b"data: 2"
    assert not splitter.pending


def test_blank_lines_at_the_end_are_not_pending() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: 1\n\n\n")
    assert not splitter.pending


@pytest.mark.parametrize(
    "pieces", [[b"data: 123456789\n\n"], [b"data: 1234", b"56789"], [b"data: 1\n\ndata: 123456789"]]
)
def test_an_event_over_the_limit_is_refused_however_it_comes(pieces: list[bytes]) -> None:
    *before, last = pieces
    splitter = EventSplitter(limit=12)
    for piece in before:
        splitter.feed(piece)
    with pytest.raises(EventTooLarge, match="12 bytes"):
        splitter.feed(last)


def test_many_events_of_legal_size_in_one_read_are_no_large_event() -> None:
    assert len(EventSplitter(limit=12).feed(b"data: 1\n\n" * 100)) == 100


def test_encoded_data_cannot_end_its_event_early() -> None:
    assert encode(b"a\n\nb") == b"data: a\ndata: \ndata: b\n\n"
    assert encode(b"a\r\rb") == b"data: a\ndata: \ndata: b\n\n"
