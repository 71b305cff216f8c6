"""Requests that are made to hurt: small ones that lead to endless work, and large ones. Each is refused by name, and
everybody else is answered meanwhile."""

import asyncio
import json
import threading

import pytest
from engine_serving import serving
from small_models import SHAPE, random_decoder, shipped_tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

from etude.engine.config import EngineConfig
from etude.engine.server.openapi import openapi

CHAT, COMPLETE, RESPOND, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HELD_UP_S = 20
SAID = [{"role": "user", "content": "Go."}]
ASKED = {
    CHAT: {"messages": SAID, "max_tokens": 2},
    COMPLETE: {"prompt": "x", "max_tokens": 2},
    RESPOND: {"input": "x", "max_output_tokens": 2},
    MESSAGES: {"messages": SAID, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 2}},
}


@pytest.fixture(scope="module")
def server():
    model = random_decoder(shape=SHAPE.model_copy(update={"max_context": 8192}))
    with serving(model, engine=EngineConfig(cache_tokens=16_384, max_running=8), max_waiting=64) as made:
        yield made
        assert made.at_rest()


def post(server, path, body):
    async def asked():
        async with asyncio.timeout(HELD_UP_S), server.http() as http:
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = await http.post(path, **sent)
            assert (await http.post(CHAT, json=ASKED[CHAT])).status_code == 200  # and everybody else is served
            return answer

    return asyncio.run(asked())


def refused(answer, param, *parts, code="invalid_value"):
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, code), answer.text[:500]
    assert error["param"] == param and len(error["message"]) < 2000, error
    assert all(part in error["message"] for part in parts), error


# --- schemas ----------------------------------------------------------------------------------------------------------


def chained(link, links):
    """Definitions of which each leads to the next."""
    definitions = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(links)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{links}": {"type": "string"}}}


def an_object(schema):
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def all_patterns(count):
    return {"allOf": [{"type": "string", "pattern": f"a{at}.*b"} for at in range(count)]}


DEADLY = {
    "references": chained(lambda each: each, 20_000),
    "objects": chained(an_object, 1_200),
    "lists": chained(lambda each: {"type": "array", "items": each}, 5_000),
    "unions": chained(lambda each: {"anyOf": [each, {"type": "null"}]}, 5_000),
    "joints": chained(lambda each: {"allOf": [each, {"minLength": 1}]}, 5_000),
    "copies that fan out": chained(
        lambda each: {"type": "object", "properties": {name: {**each, "minLength": 1} for name in "abcd"}}, 12
    ),
    "patterns at once": all_patterns(50),
    "sheer size": {"enum": [f"{at:050}" for at in range(25_000)]},
}
FORMS = {
    CHAT: (
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        "response_format.json_schema.schema",
    ),
    COMPLETE: (
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        "response_format.json_schema.schema",
    ),
    RESPOND: (
        lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
        "text.format.schema",
    ),
    MESSAGES: (
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "output_config.format.schema",
    ),
}


@pytest.mark.parametrize("what", DEADLY)
def test_a_schema_that_would_kill_its_compiler_kills_no_server(server, what):
    put, param = FORMS[CHAT]
    refused(post(server, CHAT, {**ASKED[CHAT], **put(DEADLY[what])}), param, "simplify")


@pytest.mark.parametrize("path", FORMS)
def test_every_route_refuses_it_by_its_own_name(server, path):
    put, param = FORMS[path]
    refused(post(server, path, {**ASKED[path], **put(DEADLY["references"])}), param, "simplify")
    told = post(server, path, {**ASKED[path], **put(chained(an_object, 60))})
    assert told.status_code == 200, told.text


def tool(parameters, **given):
    return {"type": "function", "function": {"name": "odd", "parameters": parameters, **given}}


def with_tool(path, parameters, **given):
    if path == CHAT:
        return {**ASKED[path], "tools": [tool(parameters, **given)]}
    if path == RESPOND:
        return {**ASKED[path], "tools": [{**tool(parameters, **given)["function"], "type": "function"}]}
    return {**ASKED[path], "tools": [{"name": "odd", "input_schema": parameters, **given}]}


@pytest.mark.parametrize("held", [{"strict": True}, {"tool_choice": "required"}])
def test_a_tool_that_would_kill_the_compiler_kills_no_server(server, held):
    schema = DEADLY["objects"]
    of_tool = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": schema}},
        "$defs": schema.get("$defs", {}),
    }
    body = with_tool(CHAT, of_tool, strict=held.get("strict", False))
    refused(
        post(server, CHAT, {**body, **{key: held[key] for key in held if key == "tool_choice"}}), "tools", "simplify"
    )


def fanned(levels, fan):
    """A kilobyte of unions, in which there are `fan` ** `levels` ways."""
    leads = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * fan} for at in range(levels)}
    return {**an_object({"$ref": "#/$defs/d0"}), "$defs": {**leads, f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES, "/v1/messages/count_tokens"])
def test_a_tool_whose_unions_fan_out_is_refused_by_name(server, path):
    answer = post(server, path, with_tool(path, fanned(11, 4)))
    refused(answer, "tools.0.parameters.properties", "'a'", "too many alternatives")
    assert post(server, path, with_tool(path, fanned(5, 4))).status_code == 200


def test_many_tools_of_many_parameters_that_share_definitions_make_no_endless_grammar(server):
    shared = {f"x{at}": {"enum": [f"{at}-{value}" for value in range(20)]} for at in range(100)}
    schema = {"type": "object", "properties": {f"p{at}": {"type": "array", "items": {"$ref": f"#/$defs/x{at}"}}
              for at in range(100)}, "$defs": shared}  # fmt: skip
    answer = post(server, CHAT, with_tool(CHAT, schema, strict=True))
    refused(answer, "tools", "odd", "too long")


def test_many_alternatives_are_no_long_grammar(server):
    schema = {"anyOf": [{"const": f"{at:03}"} for at in range(400)]}
    answer = post(server, CHAT, with_tool(CHAT, an_object(schema), strict=True))
    assert answer.status_code == 200, answer.text


NO_SCHEMAS = {
    "a type that is an object": ({"type": {"a": 1}}, None),
    "types within types": ({"type": [["string"]]}, "no word"),
    "a type that is a number": ({"type": 5}, "no word"),
    "a pattern that is a number": ({"type": "string", "pattern": 5}, "pattern"),
    "a length that is text": ({"type": "string", "minLength": "x"}, "minLength"),
    "a length that is negative": ({"type": "string", "maxLength": -1}, "maxLength"),
    "a union that is no list": ({"anyOf": {"type": "string"}}, "anyOf"),
    "a union of a number": ({"anyOf": [5]}, "5 is no schema"),
    "definitions that are a list": ({"type": "array", "items": {"$ref": "#/$defs/A"}}, "/$defs/A"),
}


@pytest.mark.parametrize("what", NO_SCHEMAS)
def test_what_is_no_schema_is_told_as_it_stands_and_never_enforced(server, what):
    schema, said = NO_SCHEMAS[what]
    parameters = {**an_object(schema), **({"$defs": [1]} if "definitions" in what else {})}
    assert post(server, CHAT, with_tool(CHAT, parameters)).status_code == 200
    refused(post(server, CHAT, with_tool(CHAT, parameters, strict=True)), "tools", "odd cannot be enforced", said or "")


@pytest.mark.parametrize("held", [{}, {"strict": True}])
def test_required_is_a_list_of_names(server, held):
    answer = post(server, CHAT, with_tool(CHAT, {**an_object({"type": "string"}), "required": [["a"]]}, **held))
    refused(answer, "tools.0.parameters.required", "names")


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [r'{"a": "\ud83d"}', r'{"\ud83d": 1}', r'{"a": ["\ud83d"]}', '{"a": NaN}'])
def test_arguments_of_earlier_calls_are_json_to_the_letter(server, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": arguments}}
    body = {**ASKED[CHAT], "messages": [*SAID, {"role": "assistant", "tool_calls": [call]}]}
    refused(post(server, CHAT, body), "messages.1.tool_calls.0.function.arguments", "not JSON")
    item = {"type": "function_call", "name": "t", "call_id": "c", "arguments": arguments}
    refused(post(server, RESPOND, {**ASKED[RESPOND], "input": [item]}), "input.0.arguments", "not JSON")


def test_a_text_may_hold_every_character_there_is(server):
    planes = (range(0xE000, 0xF900), range(0xF0000, 0xF0100), range(0x100000, 0x100100))
    text = "".join(chr(code) for plane in planes for code in plane)
    short = post(server, CHAT, {**ASKED[CHAT], "messages": [{"role": "user", "content": text[:100]}]})
    assert short.status_code == 200, short.text
    answer = post(server, CHAT, {**ASKED[CHAT], "messages": [{"role": "user", "content": text}]})
    refused(answer, None, "context", code="context_length_exceeded")


@pytest.mark.parametrize("block", [{"type": "thinking", "thinking": "x"}, {"type": "redacted_thinking", "data": "x"}])
def test_messages_of_nothing_but_thoughts_are_refused(server, block):
    said = {"messages": [{"role": "user", "content": [block]}]}
    for path in (MESSAGES, "/v1/messages/count_tokens"):
        refused(post(server, path, {**ASKED[path], **said}), "messages", "thoughts")
    refused(
        post(server, RESPOND, {**ASKED[RESPOND], "input": [{"type": "reasoning", "summary": []}]}), "input", "thoughts"
    )


LONG = {
    "one text": [{"role": "user", "content": "hello world " * 300_000}],
    "many messages": SAID * 30_000,
    "framing tokens": [{"role": "user", "content": "<|im_end|>" * 300_000}],
}


@pytest.mark.parametrize("what", LONG)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_what_cannot_fit_is_refused_before_it_is_tokenised(server, path, what, monkeypatch):
    tokenised = []
    encode = server.service.chat.encode
    monkeypatch.setattr(server.service.chat, "encode", lambda text: tokenised.append(len(text)) or encode(text))
    refused(
        post(server, path, {**ASKED[path], "messages": LONG[what]}), None, "context", code="context_length_exceeded"
    )
    assert sum(tokenised) < 10_000


def test_prompts_that_cannot_fit_are_refused_as_well(server):
    for body in ({"prompt": "x" * 4_000_000}, {"prompt": ["y", "x" * 4_000_000]}):
        refused(post(server, COMPLETE, {**ASKED[COMPLETE], **body}), None, code="context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        (COMPLETE, {"prompt": [[1]] * 20_000, "n": 128}, "2560000"),
        (COMPLETE, {"prompt": ["x" * 100] * 2_000}, "2000"),
        (CHAT, {"n": 100}, "100"),
        ("/generate", {"sampling_params": {"n": 100}}, "100"),
    ],
)
def test_more_choices_than_there_can_be_are_refused_before_they_are_made(server, path, given, said, monkeypatch):
    made = []
    choices = server.service.choices
    monkeypatch.setattr(
        server.service, "choices", lambda *all, **named: made.append(named["n"]) or choices(*all, **named)
    )
    refused(post(server, path, {**ASKED[path], **given}), "n", said)
    assert made == [2] or made == [1]  # the other's, by `post`


class Held:
    """A part of a tokenizer that changes nothing, and lets a text that says so wait until it is set free."""

    def __init__(self):
        self.met, self.free = threading.Event(), threading.Event()

    def pre_tokenize(self, text):
        if any("HOLD" in piece for piece, *_ in text.get_splits()):
            self.met.set()
            assert self.free.wait(HELD_UP_S)


@pytest.mark.parametrize("path", [CHAT, COMPLETE, RESPOND, MESSAGES, "/v1/messages/count_tokens"])
def test_others_are_answered_while_a_request_is_tokenised(path):
    tokenizer = shipped_tokenizer()
    held = Held()
    tokenizer.pre_tokenizer = Sequence([PreTokenizer.custom(held), tokenizer.pre_tokenizer])
    texts = json.loads(json.dumps(ASKED[path]).replace("Go.", "HOLD").replace('"x"', '"HOLD"'))

    async def scenario(server):
        async with asyncio.timeout(HELD_UP_S), server.http() as http:
            slow = asyncio.create_task(http.post(path, json=texts))
            await asyncio.to_thread(held.met.wait, HELD_UP_S)
            assert (await http.get("/health")).status_code == 200
            assert (await http.post("/generate", json=ASKED["/generate"])).status_code == 200
            assert not slow.done()
            held.free.set()
            assert (await slow).status_code == 200

    with serving(tokenizer=tokenizer) as server:
        asyncio.run(scenario(server))


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETE, b'{"prompt":[' + b"null," * 300_000 + b"null]}", "prompt"),
        (COMPLETE, b'{"prompt":[' + b"[]," * 300_000 + b"[]]}", "prompt"),
        (CHAT, b'{"messages":[' + b"0," * 300_000 + b"0]}", "messages.0"),
        (MESSAGES, b'{"max_tokens":1,"messages":[' + b"0," * 300_000 + b"0]}", "messages.0"),
        (RESPOND, b'{"input":[' + b"0," * 300_000 + b"0]}", "input"),
        ("/abort_requests", b'{"request_ids":[' + b"0," * 300_000 + b"0]}", "request_ids.0"),
        (CHAT, b'{"messages":[],' + b",".join(b'"k%d":1' % at for at in range(200_000)) + b"}", None),
    ],
)
def test_very_many_things_wrong_are_told_in_a_line(server, path, body, param):
    refused(post(server, path, body), param)


def nulled(schema, schemas, given):
    """A body with null for every field that it leaves out and may leave out, at every depth."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(given, list):
        return [nulled(schema["items"], schemas, each) for each in given]
    if not isinstance(given, dict) or "properties" not in schema:
        return given
    absent = {key: None for key in schema["properties"] if key not in schema.get("required", ())}
    return {**absent, **{key: nulled(schema["properties"][key], schemas, each) for key, each in given.items()}}


@pytest.mark.parametrize("path", ASKED)
def test_null_is_the_same_as_leaving_out(server, path):
    document = openapi()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = nulled(schema, document["components"]["schemas"], ASKED[path])
    assert sum(each is None for each in body.values()) > 4
    assert (answer := post(server, path, body)).status_code == 200, answer.text
    for key in ASKED[path]:
        if key not in ("max_tokens", "max_output_tokens", "sampling_params"):
            refused(post(server, path, {**ASKED[path], key: None}), key)  # what has to be there does


def test_null_leaves_the_checkpoints_own_sampling_in_place(server):
    """As a field that is not given does: what a checkpoint publishes holds for both."""
    absent, null = ({**ASKED[CHAT], "seed": 3, "max_tokens": 8, "n": 4}, {})
    null = {**absent, "temperature": None, "top_p": None, "stream": None, "parallel_tool_calls": None}
    server.service.generation.sampling["temperature"] = 0.0
    try:
        first, second = (post(server, CHAT, body).json()["choices"] for body in (absent, null))
    finally:
        del server.service.generation.sampling["temperature"]
    assert len({choice["message"]["content"] for choice in first}) == 1 and first == second
