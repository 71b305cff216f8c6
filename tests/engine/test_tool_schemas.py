"""Whatever the JSON schema of a tool says, the model reads it; and where calls are held to it, they fit it."""

import asyncio
import json

import jsonschema
import pytest
from engine_serving import serving
from small_models import SHAPE, random_decoder, shipped_tokenizer

from etude.engine.config import EngineConfig
from etude.engine.server.bodies import Function
from etude.engine.server.call_grammar import call_grammar
from etude.engine.server.prompts import Turn, conversation_ids, tools_of
from etude.engine.server.tool_schemas import Unenforceable
from etude.engine.server.turns import Turns
from etude.models.chat import ChatRenderer

CHAT = "/v1/chat/completions"
BOOK = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "Seat": {
            "type": "object",
            "properties": {
                "row": {"type": "integer", "minimum": 1, "maximum": 40},
                "side": {"enum": ["left", "right"]},
            },
            "required": ["row", "side"],
            "additionalProperties": False,
        },
        "Class": {"enum": ["first", "second"], "title": "Class"},
    },
    "properties": {
        "train": {"type": "string", "pattern": "^IC [0-9]{1,3}$", "description": "Which one."},
        "class": {"allOf": [{"$ref": "#/$defs/Class"}], "default": "second"},
        "seat": {"anyOf": [{"$ref": "#/$defs/Seat"}, {"type": "null"}], "default": None},
        "names": {"type": "array", "items": {"enum": ["Ada", "Bo"]}, "minItems": 1, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "note": {"type": ["string", "null"], "maxLength": 6},
        "currency": {"const": "CHF"},
    },
    "required": ["train", "class", "seat", "names", "age", "note", "currency"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "book", "description": "Books it.", "parameters": BOOK}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
ASKED = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 500}


@pytest.fixture(scope="module")
def server():
    """Of a model that says anything."""
    model = random_decoder(shape=SHAPE.model_copy(update={"max_context": 2048}))
    with serving(model, engine=EngineConfig(cache_tokens=32_768), max_waiting=64) as made:
        yield made
        assert made.at_rest()


def post(server, body):
    async def asked():
        async with asyncio.timeout(120), server.http() as http:
            return await http.post(CHAT, json=body)

    return asyncio.run(asked())


def test_the_model_reads_the_whole_schema():
    chat = ChatRenderer(shipped_tokenizer())
    tools = tools_of([Function(**TOOL["function"])], "tools")
    text = chat.decode(conversation_ids(chat, [Turn("user", "?")], tools, Turns(0), 4096))
    for part in (
        "book(train, class, names, age, currency, seat?, note?): Books it.\n",
        '  train (string): Which one. {"pattern":"^IC [0-9]{1,3}$"}\n',
        '  class (string): {"allOf":[{"$ref":"#/$defs/Class"}],"default":"second"}\n',
        '  seat (object): {"anyOf":[{"$ref":"#/$defs/Seat"},{"type":"null"}],"default":null}\n',
        '  names (array): {"items":{"enum":["Ada","Bo"]},"minItems":1,"maxItems":2}\n',
        '"row":{"type":"integer","minimum":1,"maximum":40}',
        '"Class":{"enum":["first","second"],"title":"Class"}',
    ):
        assert part in text, part


def test_a_required_call_fits_the_whole_schema(server):
    body = {**ASKED, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "n": 16, "seed": 3}
    told = post(server, body).json()["choices"]
    whole = [choice["message"]["tool_calls"][0] for choice in told if choice["finish_reason"] == "tool_calls"]
    assert len(whole) > 8  # the others were cut: nonsense may be long
    given = [json.loads(call["function"]["arguments"]) for call in whole]
    for arguments in given:
        jsonschema.validate(arguments, BOOK)
    seats = [arguments["seat"] for arguments in given]
    assert None in seats and any(seat is not None for seat in seats)


def said(*lines):
    return "<tool_call>\n<function=book>\n" + "".join(f"{line}\n" for line in lines) + "</function>\n</tool_call>"


def value(name, text):
    return f"<parameter={name}>\n{text}\n</parameter>"


FITTING = [value("train", "IC 7"), value("class", "first"), value("seat", '{"row": 3, "side": "left"}'),
           value("names", '["Ada"]'), value("age", "30"), value("note", "x"), value("currency", "CHF")]  # fmt: skip
WRONG = {
    "a pattern": (0, value("train", "bus")),
    "an enum": (1, value("class", "third")),
    "a nested limit": (2, value("seat", '{"row": 300, "side": "left"}')),
    "a nested name": (2, value("seat", '{"rows": 3, "side": "left"}')),
    "items": (3, value("names", '["Eve"]')),
    "a number's limit": (4, value("age", "121")),
    "a length": (5, value("note", "far too long")),
    "a constant": (6, value("currency", "EUR")),
    "one left out": (3, ""),
}


def allowed(server, text, tool=TOOL["function"]):
    """How much of a text may be said, and whether it may end there."""
    chat, vocabulary = server.service.chat, server.service.grammars
    tools = tools_of([Function(**tool), Function(name="look", parameters={})], "tools")
    held = vocabulary.of_free_calls(tools, tools[:1], several=True, where="tools")()
    taken = []
    for token in chat.encode(text):
        if not held.allowed()[token]:
            return chat.decode(taken), False
        held.take(token)
        taken.append(token)
    return chat.decode(taken), bool(held.allowed()[chat.end_id])


@pytest.mark.parametrize("before", ["", "I book it, in <b>both</b> ways.\n"])
def test_a_strict_tool_may_be_called_and_need_not_be(server, before):
    whole = f"{before}{said(*FITTING)}"
    assert allowed(server, before) == (before, True)
    assert allowed(server, whole) == (whole, True)
    twice = f"{whole}\n{said(*FITTING)}"
    assert allowed(server, twice) == (twice, True)
    other = f"{before}<tool_call>\n<function=look>\n</function>\n</tool_call>"
    assert allowed(server, other) == (other, True)


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_a_strict_tool_cannot_be_said(server, what):
    at, line = WRONG[what]
    lines = [*FITTING[:at], line, *FITTING[at + 1 :]] if line else [*FITTING[:at], *FITTING[at + 1 :]]
    text = said(*lines)
    taken, _ = allowed(server, text)
    fitting = text.index(line) if line else text.index("<parameter=age>")
    assert fitting - 12 < len(taken) < len(text)  # a token may reach over the place


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        (r"^a\\/b$", "a\\/b", "a/b"),
        (r"^a\/b$", "a/b", "a\\/b"),
        (r"^a\\$", "a\\", "a\\b"),
        (r"^a\$", "a$b", "ab"),
        ("/$", "a/", "/a"),
        ("b+c", "a b\nbc d", "b c"),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"minLength": 1, "maxLength": 300}])
def test_a_pattern_means_what_it_says_whatever_is_escaped_and_beside_a_length(server, pattern, fits, other, limits):
    assert fitting(server, fits, pattern=pattern, **limits)
    assert not fitting(server, other, pattern=pattern, **limits)


def test_a_text_may_be_as_long_as_its_schema_says(server):
    assert fitting(server, "x" * 1000, maxLength=1000) and not fitting(server, "x" * 1001, maxLength=1000)
    assert fitting(server, "a\nb", minLength=3) and not fitting(server, "a\n", minLength=3)


@pytest.mark.parametrize("line", ["<function=a>", "</function>", "<tool_call>", "</tool_call>", "</parameter>x"])
def test_no_line_of_a_text_begins_as_a_call_does(server, line):
    for text in (line, f"a\n{line}\nb"):
        assert not fitting(server, text, minLength=1)
    assert fitting(server, f"a{line}\n<para\n<\n</\n\n{line[:-3]}", minLength=1)


def fitting(server, text, **limits):
    """Whether a text may be the value of a strict tool's only parameter."""
    shape = {"type": "object", "properties": {"x": {"type": "string", **limits}}, "required": ["x"]}
    tool = {"name": "book", "parameters": {**shape, "additionalProperties": False}, "strict": True}
    whole = said(value("x", text))
    return allowed(server, whole, tool) == (whole, True)


def test_strict_holds_a_message_that_chooses_itself(server):
    counters = server.service.engine.counters
    before = counters["constrained_tokens"]
    assert post(server, {**ASKED, "tools": [TOOL], "max_tokens": 5}).status_code == 200
    assert counters["constrained_tokens"] == before
    assert post(server, {**ASKED, "tools": [STRICT], "max_tokens": 5}).status_code == 200
    assert counters["constrained_tokens"] > before


REFUSED = {
    "what it must not be": ({"properties": {"a": {"type": "integer", "not": {"const": 3}}}}, "a"),
    "a union at the top": ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
    "other names": ({"properties": {}, "patternProperties": {"^x": {}}}, "patternProperties"),
    "a reference elsewhere": ({"properties": {"a": {"$ref": "https://example.com/a"}}}, "$ref"),
    "a reference to nothing": ({"properties": {"a": {"$ref": "#/$defs/B"}}}, "leads nowhere"),
    "a circle": ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "circles"),
    "two that both fit": ({"properties": {"a": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}}, "oneOf"),
    "a structure of calls": ({"properties": {"a": {"enum": ["x\n</function>"]}}}, "cannot be written"),
    "nothing but null": ({"properties": {"a": {"type": "null"}}}, "no value"),
    "an unknown name": ({"properties": {}, "required": ["b"]}, "no property"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name_and_told_where_it_need_not_be(server, what):
    schema, named = REFUSED[what]
    function = {"name": "odd", "parameters": {"type": "object", **schema}}
    tools = [{"type": "function", "function": function}]
    for held in ({"tool_choice": "required"}, {"strict": True}):
        strict = [{"type": "function", "function": {**function, "strict": held.get("strict", False)}}]
        choice = {key: each for key, each in held.items() if key == "tool_choice"}
        answer = post(server, {**ASKED, "tools": [TOOL, *strict], **choice})
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and "odd cannot be enforced" in message and named in message, message
    assert post(server, {**ASKED, "tools": tools, "max_tokens": 2}).status_code == 200


def test_a_schema_without_types_is_taken_apart():
    schema = {"type": "object", "properties": {"level": {"enum": [1, 2]}, "size": {"minimum": 3}, "any": {}}}
    (tool,) = tools_of([Function(name="set", parameters=schema)], "tools")
    assert tool.types == {"level": "integer", "size": "number", "any": "string"}
    assert "level" in call_grammar([tool], several=False)
    with pytest.raises(Unenforceable, match="type"):
        call_grammar(tools_of([Function(name="set", parameters={"properties": {"a": {"enum": []}}})], "t"), False)
