"""The scripted server speaks what OpenAI's own client reads: both dialects, whole and streamed, and every break."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from scripted_openai import Reply, ScriptedServer

USER: Any = [{"role": "user", "content": "hello"}]
GOOD = Reply(
    "I look.", [("read_file", {"path": "a.py"}), ("grep", '{"pattern": "x"}')], reasoning="Hm.", cached_tokens=60
)


def client(server: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)


@pytest.fixture
def server() -> Any:
    with ScriptedServer([GOOD, Reply("Done.", finish="length")]) as server:
        yield server


def test_chat_whole(server: ScriptedServer) -> None:
    said = client(server).chat.completions.create(model="m", messages=USER)
    message = said.choices[0].message
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    assert calls == [("call_1", "read_file", {"path": "a.py"}), ("call_2", "grep", {"pattern": "x"})]
    assert message.content == "I look." and said.choices[0].finish_reason == "tool_calls"
    assert said.usage and said.usage.prompt_tokens_details and said.usage.prompt_tokens_details.cached_tokens == 60
    assert client(server).chat.completions.create(model="m", messages=USER).choices[0].finish_reason == "length"
    assert [body["messages"] for body in server.bodies] == [USER, USER]


def test_chat_streamed(server: ScriptedServer) -> None:
    stream = client(server).chat.completions.create(
        model="m", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    text, arguments, finish, usage = "", {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert (text, finish) == ("I look.", "tool_calls") and usage and usage.prompt_tokens == 100
    assert [json.loads(each) for each in arguments.values()] == [{"path": "a.py"}, {"pattern": "x"}]


def test_responses_whole(server: ScriptedServer) -> None:
    said = client(server).responses.create(model="m", input=USER)
    assert said.output_text == "I look." and [item.type for item in said.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    cut = client(server).responses.create(model="m", input=USER)
    assert cut.status == "incomplete" and cut.incomplete_details and cut.incomplete_details.reason


def test_responses_streamed(server: ScriptedServer) -> None:
    with client(server).responses.stream(model="m", input=USER) as stream:
        kinds = [event.type for event in stream]
        said = stream.get_final_response()
    assert said.output_text == "I look." and kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert kinds.count("response.function_call_arguments.done") == 2


def test_breaks() -> None:
    script = [Reply(status=429, headers={"retry-after": "1"}), Reply("x" * 70, drop_after=3)]
    with ScriptedServer(script) as server:
        with pytest.raises(openai.RateLimitError) as refused:
            client(server).chat.completions.create(model="m", messages=USER)
        assert refused.value.response.headers["retry-after"] == "1"
        stream = client(server).chat.completions.create(model="m", messages=USER, stream=True)
        with pytest.raises(openai.APIConnectionError):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="used up"):
            client(server).chat.completions.create(model="m", messages=USER)


def test_a_function_may_be_the_script() -> None:
    with ScriptedServer(lambda body: Reply(body["messages"][-1]["content"] + "!")) as server:
        said = client(server).chat.completions.create(model="m", messages=USER)
        assert said.choices[0].message.content == "hello!"
