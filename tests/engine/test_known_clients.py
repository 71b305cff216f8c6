"""Requests in the form that Claude Code, Codex and the SDKs send them: taken, honoured, or refused by name."""

import asyncio
import json

import pytest
from engine_serving import TOKEN, serving
from small_models import SHAPE, random_decoder
from structlog.testing import capture_logs

from etude.engine.config import EngineConfig

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
ROLE = {"type": "object", "properties": {"role": {"enum": ["reader"]}}, "required": ["role"]}
CLAUDE_CODE = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Go", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Agents: none."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"},
                                          {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"},
                                           "caller": {"type": "direct"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a.py"}]},
    ],
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "description": "Runs it.", "input_schema": BASH, "eager_input_streaming": True},
              {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
    "metadata": {"user_id": "u"}, "max_tokens": 5, "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"}, "service_tier": "auto",
}  # fmt: skip
CODEX = {
    "input": [
        {"type": "message", "id": "m", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go"}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "name": "spawn", "namespace": "agents", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"type": "message", "role": "developer", "content": "Hurry."},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": BASH},
        {"type": "namespace", "name": "agents", "description": "More of you.",
         "tools": [{"type": "function", "name": "spawn", "strict": False, "parameters": ROLE}]},
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": False,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"turn_id": "t"},
    "text": {"verbosity": "low"}, "stream_options": {"include_obfuscation": False}, "max_output_tokens": 5,
}  # fmt: skip
SDKS = {
    "messages": [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "Yes.", "audio": None, "function_call": None, "refusal": None,
         "annotations": None, "reasoning_content": "Hm.", "provider_specific_fields": {"a": 1}},
        {"role": "developer", "content": "Hurry."},
    ],
    "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s",
    "prompt_cache_key": "k", "prompt_cache_retention": "24h", "reasoning_effort": "low", "verbosity": "low",
    "modalities": ["text"], "stream_options": {"include_usage": True, "include_obfuscation": False}, "max_tokens": 5,
}  # fmt: skip
IGNORED = {
    MESSAGES: ["context_management", "messages.content.cache_control", "messages.content.caller",
               "messages.content[thinking]", "metadata", "output_config.effort", "service_tier",
               "system.cache_control", "thinking", "tools.eager_input_streaming", "tools[web_search_20250305]"],
    RESPONSES: ["client_metadata", "include", "input[reasoning]", "prompt_cache_key", "reasoning", "store",
                "stream_options.include_obfuscation", "text.verbosity", "tools[web_search]"],
    CHAT: ["messages.provider_specific_fields", "messages.reasoning_content", "metadata", "prompt_cache_key",
           "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store",
           "stream_options.include_obfuscation", "user", "verbosity"],
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    shape = SHAPE.model_copy(update={"max_context": 2048})
    with serving(random_decoder(shape=shape), engine=EngineConfig(cache_tokens=8192)) as made:
        yield made
        assert made.at_rest()


def post(server, path, body):
    async def asked():
        async with asyncio.timeout(60), server.http() as http:
            return await http.post(path, json=body)

    return asyncio.run(asked())


@pytest.mark.parametrize(("path", "body"), [(MESSAGES, CLAUDE_CODE), (RESPONSES, CODEX), (CHAT, SDKS)])
def test_what_no_answer_depends_on_is_taken_and_named_once(server, path, body):
    with capture_logs() as said:
        first, second = (post(server, path, body) for _ in range(2))
    assert first.status_code == second.status_code == 200, first.text
    told = [each["fields"] for each in said if each["event"] == "fields without effect here"]
    assert told == [IGNORED[path]]


def prompt_of(server, path, body):
    told = post(server, path, {**body, "return_token_ids": True}).json()
    return server.service.chat.tokenizer.decode(told["prompt_token_ids"], skip_special_tokens=False)


def test_a_system_message_stands_where_it_was_sent(server):
    prompt = prompt_of(server, MESSAGES, CLAUDE_CODE)
    order = ["Be brief.", "Bash(command)", "user\nGo", "system\nAgents: none.", "<function=Bash>", "a.py"]
    places = [prompt.index(each) for each in order]
    assert places == sorted(places) and "Hm." not in prompt and "web_search" not in prompt


def test_the_tools_of_a_namespace_are_known_by_both_names(server):
    prompt = prompt_of(server, RESPONSES, CODEX)
    assert "exec_command(command)" in prompt and "agents.spawn(role): More of you." in prompt
    assert "<function=agents.spawn>" in prompt and "web_search" not in prompt
    one = {"type": "function", "name": "agents.spawn"}
    body = {**CODEX, "tool_choice": one, "parallel_tool_calls": False, "max_output_tokens": 400}
    (call,) = post(server, RESPONSES, body).json()["output"]
    assert (call["namespace"], call["name"]) == ("agents", "spawn")
    assert json.loads(call["arguments"]) == {"role": "reader"}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (MESSAGES, {**CLAUDE_CODE, "tool_choice": {"type": "tool", "name": "web_search"}}, "no tool 'web_search'"),
        (RESPONSES, {**CODEX, "tools": CODEX["tools"][2:], "tool_choice": "required"}, "no tools to choose from"),
        (CHAT, {**SDKS, "web_search_options": {}}, "web_search_options: unknown"),
        (CHAT, {**SDKS, "modalities": ["audio"]}, "modalities"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(server, path, body, said):
    answer = post(server, path, body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(("given", "status"), [("", 200), ("Bearer other", 401)])
def test_the_token_may_come_as_a_key_where_no_other_is_given(server, given, status):
    async def asked(key):
        async with asyncio.timeout(60), server.http(**{"Authorization": given, "x-api-key": key}) as http:
            return (await http.get("/v1/models")).status_code

    assert asyncio.run(asked(TOKEN)) == status
    assert asyncio.run(asked("other")) == asyncio.run(asked("")) == 401


def test_a_message_may_ask_for_json_in_anthropics_words(server):
    shape = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    shape |= {"additionalProperties": False}
    body = {"messages": [{"role": "user", "content": "Is it?"}], "max_tokens": 100}
    body |= {"output_config": {"format": {"type": "json_schema", "schema": shape}}}
    (block,) = post(server, MESSAGES, body).json()["content"]
    assert isinstance(json.loads(block["text"])["ok"], bool)


def test_more_tokens_than_the_context_has_end_with_the_context(server):
    body = {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 32_000, "ignore_eos": True}
    told = post(server, MESSAGES, body).json()
    assert told["stop_reason"] == "model_context_window_exceeded"
    assert told["usage"]["input_tokens"] + told["usage"]["output_tokens"] == 2048
