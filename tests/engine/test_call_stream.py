"""Tool calls told while they are written: however the text is cut, the arguments join to what the parser reads."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.engine.server.calls import CallPiece, CallStream, Words
from etude.harness.prompt import render_calls
from etude.harness.protocol import Text, parse_message
from etude.harness.schema import Parameter, ToolCall, ToolSchema

TOOLS = {
    tool.name: tool
    for tool in (
        ToolSchema("write", "", (Parameter("path", ""), Parameter("content", ""))),
        ToolSchema("look", "", (Parameter("line", "", "integer"), Parameter("deep", "", "boolean", required=False))),
        ToolSchema("put", "", (Parameter("at", "", "object"), Parameter("all", "", "array", required=False))),
    )
}
LINES = st.lists(
    st.sampled_from(["a", "", "  b", "</parameter>", "x</parameter>", "<tool_call>", '"\\', "é", "</function>", "-"]),
    max_size=6,
).map("\n".join)
CALLS = st.one_of(
    st.tuples(st.just("write"), st.fixed_dictionaries({"path": LINES, "content": LINES})),
    st.tuples(st.just("look"), st.fixed_dictionaries({"line": st.sampled_from(["3", " 4 ", "x"])})),
    st.tuples(st.just("put"), st.fixed_dictionaries({"at": st.sampled_from(['{"b": [1]}', "[]", "{", "{}"])})),
    st.tuples(st.just("none"), st.fixed_dictionaries({"path": LINES})),
)


def told(text, eager, cut=False, seed=0):
    """The words, and the calls as (name, arguments, complete)."""
    stream, rng, events, at = CallStream(TOOLS, eager), random.Random(seed), [], 0
    while at < len(text):
        size = rng.choice((1, 2, 5, 40))
        events += stream.feed(text[at : at + size])
        at += size
    events += stream.finish(cut)
    calls = {}
    for piece in events:
        if isinstance(piece, CallPiece):
            name, arguments, _ = calls.get(piece.index, (piece.name, "", False))
            assert piece.first == (piece.index not in calls) and name == piece.name
            calls[piece.index] = (name, arguments + piece.arguments, piece.complete)
    return "".join(each.text for each in events if isinstance(each, Words)), list(calls.values()), stream


@settings(max_examples=200)
@given(st.text(st.sampled_from("a \n<"), max_size=8), st.lists(CALLS, max_size=3), st.integers(0, 1000))
def test_what_is_told_joins_to_what_the_parser_reads(words, calls, seed):
    text = words + render_calls(calls)
    items = parse_message(text, TOOLS)
    expected = [(item.name, dict(item.arguments)) for item in items if isinstance(item, ToolCall)]
    for eager in (True, False):
        said, found, stream = told(text, eager, seed=seed)
        assert [(name, json.loads(arguments)) for name, arguments, whole in found if whole] == expected
        if not stream.told_in_part:
            assert said == "".join(item.text if isinstance(item, Text) else item.raw for item in items
                                   if not isinstance(item, ToolCall))  # fmt: skip
        assert eager or all(whole for _, _, whole in found)


def test_a_long_value_is_told_line_by_line():
    stream = CallStream(TOOLS, eager=True)
    pieces = []
    for line in ("<tool_call>\n", "<function=write>\n", "<parameter=path>\n", "a.py\n", "</parameter>\n",
                 "<parameter=content>\n", "one\n", "two\n", "three\n"):  # fmt: skip
        pieces.append("".join(each.arguments for each in stream.feed(line) if isinstance(each, CallPiece)))
    assert pieces == ["", "{", '"path": "', "", 'a.py"', ', "content": "', "", r"one\n", r"two\n"]


def test_words_come_at_once_unless_they_may_open_a_call():
    stream = CallStream(TOOLS, eager=True)
    assert [[each.text for each in stream.feed(piece)] for piece in ("I ", "look", " <b", ">\n", "  ", "<tool")] == [
        ["I "], ["look"], [" "], ["<b>\n"], [], [],
    ]  # fmt: skip


@pytest.mark.parametrize("eager", [True, False])
def test_a_call_cut_off_is_none(eager):
    text = render_calls([("write", {"path": "a", "content": "one\ntwo\nthree"})]).partition("three")[0]
    words, calls, stream = told(text, eager, cut=True)
    assert stream.malformed == 1 and not any(whole for _, _, whole in calls)
    assert bool(words) != eager and stream.told_in_part == eager


def test_without_tools_everything_is_words():
    text = render_calls([("write", {"path": "a", "content": "b"})])
    stream = CallStream({}, eager=True)
    assert stream.feed(text) == [Words(text)] and stream.finish(False) == []
