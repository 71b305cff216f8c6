"""OpenAI's own client against the shipped model: text, tool calls, streams and errors arrive as it expects them."""

import json

import pytest
from engine_serving import TOKEN, serving
from small_models import SHIPPED

from etude.engine.config import EngineConfig
from etude.harness.prompt import system_prompt
from etude.harness.tools import TOOLS
from etude.kernels.paged_attention import PAGE
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.tasks.ladder import ladder_task

openai = pytest.importorskip("openai")
TASK = ladder_task(3, "eval", 0)
GREEDY = {"temperature": 0, "model": "etude-tiny"}
FUNCTIONS = [{"type": "function", "function": tool.json_schema()} for tool in TOOLS]
FLAT = [{"type": "function", "strict": False, **tool.json_schema()} for tool in TOOLS]
ASKED = [{"role": "user", "content": TASK.instruction}]


@pytest.fixture(scope="module")
def shipped():
    model, tokenizer = load_checkpoint(SHIPPED)
    with serving(model, tokenizer, engine=EngineConfig(cache_tokens=8192), name="etude-tiny") as server:
        yield server


@pytest.fixture
def client(shipped):
    with openai.OpenAI(base_url=f"{shipped.url}/v1", api_key=TOKEN, max_retries=0, timeout=60) as made:
        yield made


def test_the_model_calls_our_tools_and_goes_on_from_its_own_ids(client, shipped):
    extra = {"return_token_ids": True}
    first = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, extra_body=extra, **GREEDY)
    chat = ChatRenderer(shipped.service.chat.tokenizer)
    assert first.prompt_token_ids == chat.opening(system_prompt(TOOLS), TASK.instruction)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    results = []
    for call in choice.message.tool_calls:
        assert call.function.name in {tool.name for tool in TOOLS} and json.loads(call.function.arguments)
        results.append({"role": "tool", "tool_call_id": call.id, "content": "no such file"})
    hits = shipped.service.memory.hits
    second = client.chat.completions.create(
        messages=[*ASKED, choice.message.model_dump(exclude_none=True), *results],
        tools=FUNCTIONS, extra_body=extra, **GREEDY,
    )  # fmt: skip
    assert shipped.service.memory.hits == hits + 1
    before = [*first.prompt_token_ids, *choice.token_ids]
    assert second.prompt_token_ids[: len(before)] == before
    assert second.usage.prompt_tokens_details.cached_tokens > len(before) - PAGE


def test_a_streamed_call_is_the_whole_ones(client):
    whole = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, **GREEDY).choices[0].message.tool_calls
    calls, pieces, reason = {}, 0, None
    for chunk in client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, stream=True, **GREEDY):
        reason = chunk.choices[0].finish_reason or reason
        for delta in chunk.choices[0].delta.tool_calls or ():
            call = calls.setdefault(delta.index, {"name": delta.function.name, "arguments": ""})
            call["arguments"] += delta.function.arguments
            pieces += 1
    assert reason == "tool_calls"
    assert list(calls.values()) == [{"name": c.function.name, "arguments": c.function.arguments} for c in whole]
    assert pieces > len(calls)


def test_a_tool_can_be_forced_and_calls_be_limited_to_one(client):
    choice = {"type": "function", "function": {"name": "read_file"}}
    forced = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, tool_choice=choice, **GREEDY)
    assert {call.function.name for call in forced.choices[0].message.tool_calls} == {"read_file"}
    some = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, tool_choice="required", **GREEDY)
    assert some.choices[0].message.tool_calls
    one = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, parallel_tool_calls=False, **GREEDY)
    assert len(one.choices[0].message.tool_calls) == 1
    none = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, tool_choice="none", max_tokens=40, **GREEDY)
    assert none.choices[0].message.tool_calls is None


def test_completions_and_their_logprobs(client):
    told = client.completions.create(prompt="def add(a, b):\n", max_tokens=8, logprobs=2, **GREEDY)
    (choice,) = told.choices
    assert choice.logprobs.tokens and len(choice.logprobs.top_logprobs[0]) == 2
    streamed = client.completions.create(prompt="def add(a, b):\n", max_tokens=8, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_chat_logprobs_and_choices(client):
    told = client.chat.completions.create(messages=ASKED, n=2, logprobs=True, top_logprobs=3, max_tokens=5, **GREEDY)
    for choice in told.choices:
        assert len(choice.logprobs.content) <= 5
        assert choice.logprobs.content[0].top_logprobs[0].token == choice.logprobs.content[0].token
    assert told.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in told.choices)


def test_responses_with_tools_and_a_second_turn(client, shipped):
    first = client.responses.create(input=TASK.instruction, tools=FLAT, **GREEDY)
    calls = [item for item in first.output if item.type == "function_call"]
    assert first.status == "completed" and calls
    chats = client.chat.completions.create(messages=ASKED, tools=FUNCTIONS, **GREEDY).choices[0].message.tool_calls
    assert [(c.name, c.arguments) for c in calls] == [(c.function.name, c.function.arguments) for c in chats]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "none"} for call in calls]
    history = [{"role": "user", "content": TASK.instruction}, *first.output, *results]
    hits = shipped.service.memory.hits
    second = client.responses.create(input=history, tools=FLAT, max_output_tokens=30, **GREEDY)
    assert second.usage.output_tokens <= 30 and shipped.service.memory.hits == hits + 1


def test_streamed_responses_grow_into_the_whole_one(client):
    whole = client.responses.create(input=TASK.instruction, tools=FLAT, **GREEDY)
    kinds = []
    with client.responses.stream(input=TASK.instruction, tools=FLAT, **GREEDY) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == len(whole.output)
    assert kinds.count("response.function_call_arguments.delta") > 1
    drop = {"id", "call_id"}
    ours, theirs = ([item.model_dump(exclude=drop, include={"type", "name", "arguments", "status"})
                     for item in each.output] for each in (whole, final))  # fmt: skip
    assert ours == theirs


def test_plain_words_stream_as_a_message(client):
    events = list(client.responses.create(input="Hello", max_output_tokens=6, stream=True, **GREEDY))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == f"response.{last.response.status}" and last.response.output_text == deltas
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_clients_errors_are_its_own_kinds(client, shipped):
    assert [model.id for model in client.models.list()] == ["etude-tiny"]
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(messages=ASKED, model="etude-tiny", temperature=7)
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.chat.completions.create(messages=ASKED, model="gpt-4")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="no").models.list()
