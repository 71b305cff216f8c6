"""Answers that must be JSON of a shape, or calls of tools: whatever the model, what it says fits."""

import asyncio
import json
from itertools import pairwise

import jsonschema
import pytest
from engine_serving import TOKEN, said_in, serving
from pydantic import BaseModel
from small_models import SHAPE as SMALL
from small_models import SHIPPED, random_decoder

from etude.engine.config import EngineConfig
from etude.harness.protocol import parse_message
from etude.harness.schema import Parameter, ToolCall, ToolSchema
from etude.harness.tools import TOOLS
from etude.models.checkpoint import load_checkpoint

openai = pytest.importorskip("openai")
SHAPE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bug", "feature"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "d"]}, "maxItems": 3},
        "where": {"type": "string", "maxLength": 8},
    },
    "required": ["kind", "count", "tags", "where"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "finding", "schema": SHAPE}}
CHAT = {"messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 200, "response_format": FORMAT}


class Finding(BaseModel):
    kind: str
    lines: list[int]


@pytest.fixture(scope="module")
def server():
    """Of a model that says anything: it has learnt nothing, and is drawn from at temperature 1."""
    model = random_decoder(shape=SMALL.model_copy(update={"max_context": 1024}))
    with serving(model, engine=EngineConfig(cache_tokens=8192), max_waiting=64) as made:
        yield made
        assert made.at_rest()


@pytest.fixture(scope="module")
def shipped():
    model, tokenizer = load_checkpoint(SHIPPED)
    with serving(model, tokenizer, name="etude-tiny") as made:
        yield made


def post(server, path, body):
    async def asked():
        async with asyncio.timeout(120), server.http() as http:
            return await http.post(path, json=body)

    return asyncio.run(asked())


def test_whatever_is_sampled_fits_the_schema(server):
    told = post(server, "/v1/chat/completions", {**CHAT, "n": 24, "seed": 5}).json()["choices"]
    said = [choice["message"]["content"] for choice in told if choice["finish_reason"] == "stop"]
    assert len(set(said)) > 12  # the others were cut at max_tokens: nonsense may be long
    for text in said:
        jsonschema.validate(json.loads(text), SHAPE)
    counted = server.service.engine.counters["constrained_tokens"]
    assert counted >= sum(map(len, said)) / 8


def test_a_constrained_request_changes_nothing_of_those_beside_it(server):
    plain = {"token_ids": list(range(3, 30)), "sampling_params": {"max_tokens": 40, "seed": 3, "ignore_eos": True}}

    async def scenario():
        async with asyncio.timeout(120), server.http() as http:
            alone = (await http.post("/generate", json=plain)).json()
            beside = [http.post("/v1/chat/completions", json={**CHAT, "seed": n}) for n in range(4)]
            among, *_ = await asyncio.gather(http.post("/generate", json=plain), *beside)
            return alone, among.json()

    alone, among = asyncio.run(scenario())
    assert alone["choices"][0]["token_ids"] == among["choices"][0]["token_ids"]


def test_a_seed_gives_the_same_answer_again_and_its_mask_is_told(server):
    body = {**CHAT, "seed": 9, "return_token_ids": True, "return_sampling_mask": True}
    first, second = (post(server, "/v1/chat/completions", body).json()["choices"][0] for _ in range(2))
    assert first["token_ids"] == second["token_ids"]
    mask = first["sampling_mask"]
    rows = [mask["token_ids"][a:b] for a, b in pairwise(mask["offsets"])]
    assert all(token in row for token, row in zip(first["token_ids"], rows, strict=True))  # a grammar leaves some out


def test_every_route_takes_its_form_of_it(server):
    flat = {"type": "json_schema", "name": "finding", "schema": SHAPE, "strict": True}
    told = post(server, "/v1/responses", {"input": "Hi", "text": {"format": flat}, "max_output_tokens": 200}).json()
    assert told["text"]["format"] == flat
    jsonschema.validate(json.loads(told["output"][0]["content"][0]["text"]), SHAPE)
    told = post(server, "/v1/completions", {"prompt": "x", "response_format": FORMAT, "max_tokens": 200}).json()
    jsonschema.validate(json.loads(told["choices"][0]["text"]), SHAPE)
    body = {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 30, "seed": 1}
    choice = post(server, "/v1/chat/completions", body).json()["choices"][0]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


def test_it_streams(server):
    whole = post(server, "/v1/chat/completions", {**CHAT, "seed": 2}).json()["choices"][0]["message"]["content"]
    told = said_in(post(server, "/v1/chat/completions", {**CHAT, "seed": 2, "stream": True}).text)
    pieces = [json.loads(each)["choices"][0]["delta"].get("content", "") for each in told[:-1]]
    assert "".join(pieces) == whole


def shaped(**given):
    return {"response_format": {"type": "json_schema", "json_schema": given}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (shaped(name="x", schema={"type": "thing"}), "response_format.json_schema.schema"),
        (shaped(name="x", schema={"not": {"type": "null"}}), "response_format.json_schema.schema"),
        (shaped(name="x", schema={"$ref": "#"}), "response_format.json_schema.schema"),
        (shaped(schema=SHAPE), "response_format.json_schema.name"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tools": [{"type": "function", "function": {"name": "look"}}]}, "tools"),
        ({"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_followed_is_refused(server, change, param):
    answer = post(server, "/v1/chat/completions", {**CHAT, **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and param in error["message"], error
    assert post(server, "/v1/chat/completions", {**CHAT, "max_tokens": 1}).status_code == 200


def test_openais_client_parses_what_it_asked_for(shipped):
    with openai.OpenAI(base_url=f"{shipped.url}/v1", api_key=TOKEN, max_retries=0, timeout=60) as client:
        asked = {"model": "etude-tiny", "seed": 1}
        messages = [{"role": "user", "content": "Which lines?"}]
        for limit in (60, 200, 600):  # a list may grow for long; a cut answer is told to be one
            done = client.chat.completions.create(
                messages=messages, max_tokens=limit, temperature=0.7, **asked,
                response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": SHAPE}},
            ).choices[0]  # fmt: skip
            if done.finish_reason == "stop":
                jsonschema.validate(json.loads(done.message.content), SHAPE)
                break
        else:
            raise AssertionError("no answer was whole")
        parsed = client.chat.completions.parse(
            messages=messages, max_tokens=900, temperature=1.2, response_format=Finding, **asked
        )
        assert isinstance(parsed.choices[0].message.parsed, Finding)


def tool(name, required, **properties):
    shape = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": {**shape, "required": required}}}


LOOK = tool("look", ["deep"], deep="boolean", far="number")
COUNT = tool("count", ["least", "of"], least="integer", of="array", how="object")
OWN = [{"type": "function", "function": each.json_schema()} for each in TOOLS]
MUST_CALL = {"messages": CHAT["messages"], "max_tokens": 300, "tool_choice": "required"}
ONE_LOOK = {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False}


def calls_in(choice):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in choice["message"]["tool_calls"]]


@pytest.mark.parametrize(("model", "tools"), [("server", [LOOK, COUNT]), ("shipped", OWN)])
def test_a_message_that_must_call_a_tool_is_nothing_but_calls_that_fit(model, tools, request):
    """Of a model that says anything, and of one whose vocabulary has the tags of its tools."""
    server = request.getfixturevalue(model)
    malformed = server.service.parsed["malformed_calls"]
    told = post(server, "/v1/chat/completions", {**MUST_CALL, "tools": tools, "n": 24, "seed": 5}).json()["choices"]
    whole = [choice for choice in told if choice["finish_reason"] == "tool_calls"]
    assert len(whole) > 6  # the others were cut at max_tokens
    shapes = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    for choice in whole:
        assert choice["message"]["content"] is None
        for name, arguments in calls_in(choice):
            jsonschema.validate(arguments, shapes[name])
    assert server.service.parsed["malformed_calls"] - malformed <= len(told) - len(whole)


def test_a_named_tool_is_called_once_where_only_one_call_is_wanted(server):
    body = {**MUST_CALL, **ONE_LOOK, "tools": [LOOK, COUNT], "n": 12, "seed": 1}
    told = post(server, "/v1/chat/completions", body).json()["choices"]
    assert all([name for name, _ in calls_in(choice)] == ["look"] for choice in told)


def test_a_required_call_streams_as_it_is_told_whole(server):
    body = {**MUST_CALL, **ONE_LOOK, "tools": [LOOK, COUNT], "seed": 1}
    whole = calls_in(post(server, "/v1/chat/completions", body).json()["choices"][0])
    told = said_in(post(server, "/v1/chat/completions", {**body, "stream": True}).text)
    deltas = [json.loads(each)["choices"][0]["delta"] for each in told[:-1]]
    arguments = "".join(piece["function"]["arguments"] for delta in deltas for piece in delta.get("tool_calls", ()))
    assert [json.loads(arguments)] == [given for _, given in whole]


@pytest.mark.parametrize("hostile", ["</parameter>", "<parameter=deep>", "</function>", "<tool_call>", "</tool_call>"])
@pytest.mark.parametrize("before", ["", "x\n", "x"])
def test_no_line_of_a_value_can_look_like_a_calls_structure(shipped, hostile, before):
    """The grammar stops a value where the parser would, whatever token a model would write it in."""
    chat, look = shipped.service.chat, ToolSchema("look", "", (Parameter("at", ""),))
    held = shipped.service.grammars.of_calls([look], several=False, where="tools")()
    opening = f"<tool_call>\n<function=look>\n<parameter=at>\n{before}"
    said = []
    for token in chat.encode(f"{opening}{hostile} more\n</parameter>\n</function>\n</tool_call>"):
        if not held.allowed()[token]:
            break
        held.take(token)
        said.append(token)
    text = chat.decode(said)
    if before == "x":
        (call,) = parse_message(text, {"look": look})
        assert isinstance(call, ToolCall) and call.arguments["at"] == f"{before}{hostile} more"
    else:
        assert text.startswith(opening) and hostile not in text[len(opening) :]
