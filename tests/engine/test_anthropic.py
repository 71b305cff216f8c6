"""The engine in the words of Anthropic's clients: the same answers as elsewhere, in another form."""

import asyncio
import json

import pytest
from engine_serving import serving
from small_models import SHIPPED

from etude.engine.config import EngineConfig
from etude.harness.tools import TOOLS
from etude.models.checkpoint import load_checkpoint
from etude.tasks.ladder import ladder_task

MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
TASK = ladder_task(3, "eval", 0).instruction
SCHEMAS = [tool.json_schema() for tool in TOOLS]
OURS = [{"name": s["name"], "description": s["description"], "input_schema": s["parameters"]} for s in SCHEMAS]
FUNCTIONS = [{"type": "function", "function": schema} for schema in SCHEMAS]
ASKED = {"messages": [{"role": "user", "content": TASK}], "max_tokens": 300, "temperature": 0, "tools": OURS}


@pytest.fixture(scope="module")
def server():
    model, tokenizer = load_checkpoint(SHIPPED)
    with serving(model, tokenizer, engine=EngineConfig(cache_tokens=8192)) as made:
        yield made
        assert made.at_rest()


def post(server, path, body):
    async def asked():
        async with asyncio.timeout(60), server.http() as http:
            return await http.post(path, json=body)

    return asyncio.run(asked())


def events_of(answer):
    """The data of each event, whose name must be its type."""
    told = []
    for part in answer.text.strip().split("\n\n"):
        kind, data = part.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {told[-1]['type']}"
    return told


def joined(events):
    """The message that a client makes of a stream."""
    message, partial = None, ""
    for each in events:
        match each["type"]:
            case "message_start":
                message = each["message"]
            case "content_block_start":
                assert each["index"] == len(message["content"])
                message["content"].append(each["content_block"])
                partial = ""
            case "content_block_delta" if each["delta"]["type"] == "text_delta":
                message["content"][each["index"]]["text"] += each["delta"]["text"]
            case "content_block_delta":
                partial += each["delta"]["partial_json"]
            case "content_block_stop" if message["content"][each["index"]]["type"] == "tool_use":
                message["content"][each["index"]]["input"] = json.loads(partial)
            case "message_delta":
                message |= {**each["delta"], "usage": each["usage"]}
    assert [each["type"] for each in events[-2:]] == ["message_delta", "message_stop"]
    return message


def without_ids(content):
    return [{key: value for key, value in block.items() if key != "id"} for block in content]


def test_its_calls_are_those_of_chat_completions_and_the_next_turn_goes_on_from_its_ids(server):
    told = post(server, MESSAGES, ASKED).json()
    chat = {"messages": ASKED["messages"], "tools": FUNCTIONS, "temperature": 0, "max_tokens": 300}
    message = post(server, CHAT, chat).json()["choices"][0]["message"]
    calls = [block for block in told["content"] if block["type"] == "tool_use"]
    assert told["stop_reason"] == "tool_use" and calls
    theirs = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]
    assert [(each["name"], each["input"]) for each in calls] == theirs
    results = [{"type": "tool_result", "tool_use_id": each["id"], "content": "no such file"} for each in calls]
    hits = server.service.memory.hits
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": told["content"]},
        {"role": "user", "content": results},
    ]
    second = post(server, MESSAGES, {**ASKED, "messages": history, "max_tokens": 20}).json()
    assert server.service.memory.hits == hits + 1
    assert second["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tools": [], "max_tokens": 7},
        {"tool_choice": {"type": "tool", "name": "read_file"}},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"temperature": 1.0, "seed": 4, "max_tokens": 60, "return_token_ids": True},
    ],
)
def test_a_stream_joins_to_the_whole_answer(server, change):
    body = {**ASKED, **change}
    whole = post(server, MESSAGES, body).json()
    streamed = joined(events_of(post(server, MESSAGES, {**body, "stream": True})))
    for key in ("role", "type", "model", "stop_reason", "stop_sequence"):
        assert streamed[key] == whole[key]
    assert whole["usage"]["output_tokens"] == streamed["usage"]["output_tokens"] > 0
    if whole["stop_reason"] != "max_tokens":  # half a call is words in a whole answer, and half a call in a stream
        assert without_ids(streamed["content"]) == without_ids(whole["content"])
    if "tool_choice" in change:
        names = [block["name"] for block in whole["content"] if block["type"] == "tool_use"]
        assert names[0] == body["tool_choice"].get("name", names[0]) and len(names) >= 1


def test_a_prompt_is_counted_as_it_will_be(server):
    body = {**ASKED, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}
    used = post(server, MESSAGES, body).json()["usage"]
    counted = post(server, COUNT, {key: body[key] for key in ("messages", "tools", "system")}).json()
    assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}


def test_it_ends_at_a_stop_sequence(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "temperature": 0}
    text = post(server, MESSAGES, body).json()["content"][0]["text"]
    stop = text[3:5]
    told = post(server, MESSAGES, {**body, "stop_sequences": [stop]}).json()
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", stop)
    assert told["content"][0]["text"] == text[: text.index(stop)]


def block(**given):
    return {"messages": [{"role": "user", "content": [given]}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "going on"),
        (block(type="tool_use", id="x", name="grep", input={}), "only an assistant"),
        (block(type="image", source={}), "messages.0.content.0: is no block known here"),
        ({"thinking": {"type": "fierce"}}, "thinking"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0: is no tool known here"),
        ({"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers"),
        ({"tool_choice": {"type": "tool", "name": "fly"}}, "'fly'"),
        ({"model": "claude"}, "'claude'"),
    ],
)
def test_what_is_wrong_is_said_in_its_form(server, change, said):
    answer = post(server, MESSAGES, {**ASKED, **change})
    told = answer.json()
    assert answer.status_code in (400, 404) and told["type"] == "error" and said in told["error"]["message"]
    assert told["error"]["type"] in ("invalid_request_error", "not_found_error")


def test_an_error_in_a_stream_is_an_event_of_its_own():
    with serving(silence_s=0.2) as server:
        server.service.engine.pause()
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
        first, last = events_of(post(server, MESSAGES, body))
        assert (first["type"], last["type"], last["error"]["code"]) == ("message_start", "error", "deadline_exceeded")
