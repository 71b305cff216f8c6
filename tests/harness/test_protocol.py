"""The parser reads what the renderer writes, forgives what models forget, and never raises."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.prompt import render_call, render_calls
from etude.harness.protocol import CallParser, Item, Text, calls_of, parse_message
from etude.harness.schema import MalformedCall, Parameter, ToolCall, ToolSchema

TOOLS = {
    tool.name: tool
    for tool in (
        ToolSchema("read", "", (Parameter("path", ""), Parameter("start", "", "integer", required=False))),
        ToolSchema("edit", "", (Parameter("path", ""), Parameter("old", ""), Parameter("new", ""))),
        ToolSchema("run", "", (Parameter("command", ""),)),
    )
}
TAGS = (
    "<tool_call>", "</tool_call>", "<function=read>", "<function=edit>", "<function=>", "</function>",
    "<parameter=path>", "<parameter=old>", "<parameter=start>", "</parameter>", "<parameter=", "<function", "\n", "\n",
    " ", "a.py", "7", "\r", "é",
)  # fmt: skip
TAG_AT_LINE_START = re.compile(r"^(?=</?(?:tool_call|function|parameter)[=>])", re.MULTILINE)
messages = st.one_of(st.lists(st.sampled_from(TAGS), max_size=30).map("".join), st.text(max_size=200))
values = st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=12)), max_size=12).map("".join)


def parse(text: str, cut: bool = False) -> list[Item]:
    return parse_message(text, TOOLS, cut)


def one_call(text: str) -> ToolCall:
    [call] = calls_of(parse(text))
    assert isinstance(call, ToolCall), call
    return call


def reason(text: str, cut: bool = False) -> str:
    [call] = calls_of(parse(text, cut))
    assert isinstance(call, MalformedCall), call
    return call.reason


@given(messages, st.lists(st.integers(0, 300)), st.booleans())
def test_how_a_message_is_cut_into_pieces_does_not_matter(text: str, cuts: list[int], cut: bool) -> None:
    bounds = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
    parser = CallParser(TOOLS)
    items = [item for start, end in itertools.pairwise(bounds) for item in parser.feed(text[start:end])]
    assert [*items, *parser.finish(cut)] == parse(text, cut)
    assert parser.raw == text


@given(messages)
def test_text_outside_calls_is_kept_and_raw_text_is_from_the_message(text: str) -> None:
    items = parse(text)
    for item in items:
        assert (item.text if isinstance(item, Text) else item.raw) in text
    if "<tool_call>" not in text and "<function=" not in text:
        assert "".join(item.text for item in items if isinstance(item, Text)) == text


@given(st.lists(st.tuples(values, values), min_size=1, max_size=4))
def test_what_is_rendered_is_read_back_exactly(edits: list[tuple[str, str]]) -> None:
    # a line that begins with a tag cannot be told from structure: the form has no escape
    edits = [(TAG_AT_LINE_START.sub(" ", old), TAG_AT_LINE_START.sub(" ", new)) for old, new in edits]
    calls = [("edit", {"path": "a/b.py", "old": old, "new": new}) for old, new in edits]
    parsed = calls_of(parse("Let me see.\n" + render_calls(calls)))
    assert [(call.name, call.arguments) for call in parsed if isinstance(call, ToolCall)] == calls


def test_indentation_and_inner_newlines_stay() -> None:
    old = "\n    def f(x):\n\treturn x  \n\n"
    assert one_call(render_call("edit", {"path": "a", "old": old, "new": ""})).arguments["old"] == old


def test_a_closing_tag_inside_a_line_is_content() -> None:
    old = 'END = "</parameter>"  # not </function> either\n  </parameter>'
    assert one_call(render_call("edit", {"path": "a", "old": old, "new": "x"})).arguments["old"] == old


def test_a_call_is_delivered_when_its_function_is_closed() -> None:
    parser = CallParser(TOOLS)
    assert parser.feed("<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n") == []
    [call] = parser.feed("</function>\n")
    assert isinstance(call, ToolCall) and call.arguments == {"command": "ls"}
    assert parser.feed("</tool_call>") + parser.finish() == []


BODY = "<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>"


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        f"<tool_call>\n{BODY}",
        f"<tool_call>{BODY}</tool_call>",
        f"I look.<tool_call>\n{BODY}\n</tool_call>\n",
        BODY.removesuffix("\n</function>"),
        BODY.replace("</parameter>\n", ""),
        "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</tool_call>",
        "<tool_call>\n<function=read>\n<parameter=path>\na.py",
        "<tool_call>\n<function=read>\n<parameter=path>\na.py</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=read><parameter=path>a.py</parameter></function></tool_call>",
        "<tool_call>\n<function='read'>\n<parameter= path >\na.py\n</parameter>",
        f"<tool_call>\n{BODY}\n\nThat is all.",
    ],
)  # fmt: skip
def test_forgotten_structure_is_forgiven(text: str) -> None:
    call = one_call(text)
    assert (call.name, call.arguments) == ("read", {"path": "a.py"})


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{BODY}\n</tool_call>\n<tool_call>\n{BODY}\n</tool_call>",
        f"<tool_call>\n{BODY}\n{BODY}\n</tool_call>",
        f"<tool_call>\n{BODY}\n<tool_call>\n{BODY}",
        "<tool_call>\n<function=read>\n<parameter=path>\na.py\n<tool_call>\n" + BODY,
        f"{BODY}\n{BODY}",
    ],
)
def test_several_calls_in_one_message(text: str) -> None:
    calls = calls_of(parse(text))
    assert [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)] == [
        ("read", {"path": "a.py"})
    ] * 2
    assert all(call.raw.startswith("<") and call.raw.count("<function=") == 1 for call in calls)


def test_a_malformed_call_says_what_to_do() -> None:
    assert reason(render_call("reed", {"path": "a"})) == "no tool reed; there are read, edit, run"
    assert reason(render_call("read", {"file": "a"})) == "no parameter file; it is read(path, start?)"
    assert reason(render_call("edit", {"path": "a"})) == "parameter old, new is missing; it is edit(path, old, new)"
    assert reason(render_call("read", {"path": "a", "start": "two"})) == "start must be an integer, not 'two'"
    assert reason(render_call("read", {"path": "a", "start": "9" * 5000})).startswith("start must be an integer")
    assert "twice" in reason(BODY.replace("</function>", "<parameter=path>\nb\n</parameter>\n</function>"))
    assert "without a function" in reason('<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>')
    assert "without a function" in reason("<tool_call>\n")
    assert "outside a parameter" in reason(BODY.replace("<parameter=path>", "path:"))


def test_integers_are_read_and_calls_after_a_malformed_one_still_count() -> None:
    assert one_call(render_call("read", {"path": "a", "start": " 12"})).arguments == {"path": "a", "start": 12}
    broken, good = calls_of(parse(render_call("reed", {}) + "\n" + BODY))
    assert isinstance(broken, MalformedCall) and isinstance(good, ToolCall)


def test_a_call_cut_off_by_a_limit_is_not_run() -> None:
    whole = render_call("edit", {"path": "a", "old": "x", "new": "y"})
    for end in range(len("<tool_call>\n"), whole.index("</function>") + len("</function>")):
        assert "cut off" in reason(whole[:end], cut=True)
    assert isinstance(calls_of(parse(whole.removesuffix("</tool_call>"), cut=True))[0], ToolCall)


def test_json_in_a_block_is_a_call_to_who_is_lenient() -> None:
    text = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py", "start": "3"}}\n</tool_call>\nThat is all.'
    assert "without a function" in reason(text)
    call, words = parse_message(text, TOOLS, lenient=True)
    assert call == ToolCall("read", {"path": "a.py", "start": 3}, text.partition("\nThat")[0])
    assert words == Text("That is all.")
    unclosed = text.partition("</tool_call>")[0]
    assert len(calls_of(parse_message(unclosed + text, TOOLS, lenient=True))) == 2
    for wrong, why in (
        (text.replace("read", "reed"), "no tool reed"),
        (text.replace('"name"', '"tool"'), "no tool without a name"),
        (text.replace("}}", "}"), "not a JSON object"),
        (text.replace('"path"', '"file"'), "no parameter file"),
    ):
        [malformed] = calls_of(parse_message(wrong, TOOLS, lenient=True))
        assert isinstance(malformed, MalformedCall) and why in malformed.reason
    [cut] = calls_of(parse_message(unclosed, TOOLS, True, lenient=True))
    assert isinstance(cut, MalformedCall) and "cut off" in cut.reason
