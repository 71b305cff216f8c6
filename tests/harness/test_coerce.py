"""Values and arguments that are not quite right are read as what they can only mean, and as nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.coerce import check_json_call
from etude.harness.prompt import render_call
from etude.harness.protocol import calls_of, parse_message
from etude.harness.schema import MalformedCall, Parameter, ToolCall, ToolSchema

OPTIONAL = ("integer", "number", "boolean", "array", "object")
TAKE = ToolSchema(
    "take",
    "",
    (Parameter("text", ""), *(Parameter(kind, "", kind, required=False) for kind in OPTIONAL)),
)
FOREIGN = ToolSchema(
    "mcp__a__b",
    "",
    (Parameter("ids", "", "array"),),
    declared={"type": "object", "properties": {"ids": {"anyOf": [{"type": "array"}, {"type": "string"}]}}},
)
TOOLS = {tool.name: tool for tool in (TAKE, FOREIGN)}


def native(arguments: object, name: str = "take") -> ToolCall | MalformedCall:
    return check_json_call(TOOLS, name, arguments, "raw")


def taken(arguments: object, name: str = "take") -> dict[str, Any]:
    call = native(arguments, name)
    assert isinstance(call, ToolCall), call
    return dict(call.arguments)


def reason(arguments: object, name: str = "take") -> str:
    call = native(arguments, name)
    assert isinstance(call, MalformedCall), call
    return call.reason


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "12.0", 12), ("integer", ' "12" ', 12), ("integer", "`7`", 7), ("integer", "1e3", 1000),
        ("number", "'1.5'", 1.5), ("boolean", "yes", True), ("boolean", "0", False), ("boolean", '"True"', True),
        ("array", "['a', 'b']", ["a", "b"]), ("array", "a\n b \n", ["a", "b"]), ("array", '["a"]', ["a"]),
        ("object", "{'b': 1}", {"b": 1}), ("object", '```json\n{"b": 1}\n```', {"b": 1}),
        ("object", '{"b": "x\ny"}', {"b": "x\ny"}),
    ],
)  # fmt: skip
def test_values_are_met_halfway(kind: str, text: str, value: Any) -> None:
    message = render_call("take", {"text": text, kind: text})
    [strict] = calls_of(parse_message(message, TOOLS))
    [call] = calls_of(parse_message(message, TOOLS, lenient=True))
    assert isinstance(call, ToolCall) and call.arguments == {"text": text, kind: value}
    if not isinstance(strict, MalformedCall):
        assert strict.arguments == call.arguments
    assert taken({"text": text, kind: text}) == {"text": text, kind: value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "12.5"), ("integer", "two"), ("integer", "9" * 400), ("number", "nan"), ("boolean", "maybe"),
        ("array", "["), ("array", "{}"), ("object", "{"), ("object", "[]"), ("object", "{'b': {1}}"), ("object", "x"),
    ],
)  # fmt: skip
def test_what_can_mean_nothing_is_malformed(kind: str, text: str) -> None:
    [call] = calls_of(parse_message(render_call("take", {"text": "", kind: text}), TOOLS, lenient=True))
    assert isinstance(call, MalformedCall) and call.reason.startswith(f"{kind} must be a")
    assert reason({"text": "", kind: text}).startswith(f"{kind} must be a")


@pytest.mark.parametrize("nothing", ["null", "", " None "])
def test_nothing_leaves_out_what_may_be_left_out(nothing: str) -> None:
    for kind in OPTIONAL:
        [call] = calls_of(parse_message(render_call("take", {"text": nothing, kind: nothing}), TOOLS, lenient=True))
        assert isinstance(call, ToolCall) and call.arguments == {"text": nothing}
        assert taken({"text": nothing, kind: nothing}) == {"text": nothing}
    assert taken({"text": nothing, "integer": None, "unheard_of": None}) == {"text": nothing}


@pytest.mark.parametrize(
    "arguments",
    [
        '{"text": "x", "integer": 3}',
        {"text": "x", "integer": 3},
        json.dumps(json.dumps({"text": "x", "integer": 3})),
        "{'text': 'x', 'integer': 3}",
        '{"text": "x", "integer": 3,}',
        '{}{"text": "x", "integer": 3}',
        '```json\n{"text": "x", "integer": 3}\n```',
        ' {"text": "x", "integer": 3.0}\n',
        '{"text": "x", "integer": "3"}',
    ],
)
def test_arguments_that_servers_send(arguments: object) -> None:
    assert taken(arguments) == {"text": "x", "integer": 3}


def test_native_values_of_other_types() -> None:
    assert taken({"text": 5, "array": "a", "boolean": 1}) == {"text": "5", "array": ["a"], "boolean": True}
    assert taken({"text": {"b": [1]}, "array": {"c": 2}}) == {"text": '{"b": [1]}', "array": [{"c": 2}]}
    assert taken({"text": "x", "number": 3}) == {"text": "x", "number": 3}
    assert reason({"text": "x", "integer": True}) == "integer must be an integer, not 'true'"
    assert reason({"text": None}) == "text must be a string, not 'null'"
    assert reason("") == reason(None) == reason("null") == f"parameter text is missing; it is {TAKE.signature()}"


@pytest.mark.parametrize("name", ["functions.take", "default_api:take", "take<|channel|>json", " take"])
def test_names_as_templates_leak_them(name: str) -> None:
    assert taken('{"text": "x"}', name) == {"text": "x"}


def test_what_is_wrong_is_said() -> None:
    assert reason("{}", "tke") == "no tool tke; there are take, mcp__a__b"
    assert reason('{"txt": "x"}').startswith("no parameter txt; it is take(text, ")
    assert reason("[1]") == "the arguments of take are not a JSON object (it is list); write the call again"
    assert "at character" in reason('{"text": "half of a fi')
    assert "nan" in reason('{"text": "x", "number": NaN}').lower()
    assert "too deeply" in reason("[" * 100_000)
    assert native(7).raw == "raw"


def test_a_foreign_tool_judges_its_arguments_itself() -> None:
    assert taken({"ids": "one", "more": 2}, "mcp__a__b") == {"ids": "one", "more": 2}
    assert taken({"ids": "[1]"}, "mcp__a__b") == {"ids": [1]}
    for said in ({"x": 1}, None):
        assert taken({"ids": said}, "mcp__a__b") == {"ids": said}
    [call] = calls_of(parse_message(render_call("mcp__a__b", {"ids": "["}), TOOLS, lenient=True))
    assert isinstance(call, ToolCall) and call.arguments == {"ids": "["}
    assert FOREIGN.json_schema()["parameters"] == FOREIGN.declared


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", *OPTIONAL, "x"]), inner),
    max_leaves=12,
)


@given(json_values | st.text() | json_values.map(lambda value: json.dumps(value)[:-1]), st.sampled_from(list(TOOLS)))
def test_any_arguments_are_a_call_or_a_reason(arguments: object, name: str) -> None:
    call = native(arguments, name)
    if isinstance(call, ToolCall) and name == "take":
        types = {"text": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
        assert all(isinstance(value, types[key]) for key, value in call.arguments.items())


@given(st.text(max_size=30), st.sampled_from(OPTIONAL))
def test_any_text_is_a_value_or_a_reason(text: str, kind: str) -> None:
    for lenient in (False, True):
        assert calls_of(parse_message(render_call("take", {"text": "", kind: text}), TOOLS, lenient=lenient))


@given(st.fixed_dictionaries({"text": st.text()}, optional={"integer": st.integers(), "array": st.lists(st.text())}))
def test_what_fits_is_taken_as_it_is(arguments: dict[str, Any]) -> None:
    assert taken(json.dumps(arguments)) == taken(arguments) == arguments
