"""Text as it comes: joined, it is what decoding everything at once gives, up to a stop string."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import shipped_tokenizer

from etude.engine.server.text import TextStream
from etude.models.chat import ChatRenderer

CHAT = ChatRenderer(shipped_tokenizer())


def bytes_of(tokens):
    """A vocabulary of bytes, whose tokens are any pieces of characters."""
    return bytes(tokens).decode(errors="replace")


def streamed(stream, tokens):
    pieces = []
    for token in tokens:
        pieces.append(stream.feed(token))
        if stream.stopped_by is not None:
            return "".join(pieces)
    return "".join(pieces) + stream.finish()


TEXTS = st.text(st.sampled_from("ab\n<é€𝄞\ufffd"), max_size=20)


@given(TEXTS)
def test_characters_of_several_tokens_come_whole(text):
    assert streamed(TextStream(bytes_of), text.encode()) == text


@given(st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9D, 0x84, 0x9E, 0xFF]), max_size=24))
def test_bytes_that_are_no_character_are_what_decoding_all_at_once_gives(tokens):
    assert streamed(TextStream(bytes_of), tokens) == bytes_of(tokens)


@given(
    TEXTS, st.lists(st.text(st.sampled_from("ab\n<é"), min_size=1, max_size=4), min_size=1, max_size=3), st.booleans()
)
def test_text_ends_before_the_first_stop_string_to_be_completed(text, stops, keep):
    stream = TextStream(bytes_of, stops, keep)
    found = streamed(stream, text.encode())
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert found == text and stream.stopped_by is None
        return
    assert stream.stopped_by in stops
    met = min(ends)
    assert text[:met].endswith(stream.stopped_by)
    assert found == (text[:met] if keep else text[: met - len(stream.stopped_by)])


def test_nothing_is_held_back_that_no_stop_string_can_begin():
    stream = TextStream(bytes_of, ["stop"])
    assert [stream.feed(token) for token in b"ab s"] == ["a", "b", " ", ""]
    assert stream.feed(ord("x")) == "sx"


@pytest.mark.parametrize("seed", range(20))
def test_the_shipped_tokenizer_streams_what_it_decodes(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(1024) for _ in range(60)]
    assert streamed(TextStream(CHAT.decode), tokens) == CHAT.decode(tokens)
