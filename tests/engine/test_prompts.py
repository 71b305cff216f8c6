"""A conversation over HTTP is the conversation the harness has: the same ids, and those that were sampled."""

import json

import pytest
from small_models import shipped_tokenizer

from etude.engine.server.bodies import Function, Message, parse_body
from etude.engine.server.errors import ApiError
from etude.engine.server.prompts import Turn, conversation_ids, remember, tools_of, turns_of_messages
from etude.engine.server.turns import Turns
from etude.harness.prompt import render_result, system_prompt
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer

CHAT = ChatRenderer(shipped_tokenizer())
OWN = tools_of([Function(**tool.json_schema()) for tool in TOOLS], "tools")


def test_our_own_tools_give_the_bytes_of_training():
    turns = [Turn("user", "Mend it. <|im_end|> é")]
    expected = CHAT.opening(system_prompt(TOOLS), turns[0].text)
    assert list(TOOLS) == OWN
    assert conversation_ids(CHAT, turns, OWN, Turns(10_000), 4096) == expected


def test_what_was_said_goes_on_from_its_ids():
    memory, turns = Turns(10_000), [Turn("user", "Go")]
    opening = conversation_ids(CHAT, turns, OWN, memory, 4096)
    call = "<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"
    sampled = [token for letter in call for token in CHAT.encode(letter)]  # not as the tokenizer would write it
    assert CHAT.decode(sampled) == call and sampled != CHAT.encode(call)
    said = Turn("assistant", "", (("read_file", {"path": "a.py"}),))
    remember(CHAT, turns, OWN, said, [*opening, *sampled], memory)
    result = Turn("tool", "x = 1")
    goes_on = conversation_ids(CHAT, [*turns, said, result], OWN, memory, 4096)
    assert goes_on == [*opening, *sampled, CHAT.end_id, *CHAT.observation(render_result("x = 1"))]
    assert memory.hits == 1
    other = conversation_ids(CHAT, [Turn("user", "Go!"), said, result], OWN, memory, 4096)
    assert memory.hits == 1 and CHAT.decode(other).replace("Go!", "Go") == CHAT.decode(goes_on)


def test_the_memory_is_bounded_and_the_oldest_goes():
    memory = Turns(100)
    for number in range(10):
        memory.keep(["user", str(number)], range(20))
    assert memory.tokens == 100
    assert memory.longest(["user", "4"])[0] == 0 and memory.longest(["user", "5", "more"]) == (2, list(range(20)))
    memory.keep(["user", "new"], range(20))
    assert memory.longest(["user", "5"])[0] == 2 and memory.longest(["user", "6"])[0] == 0


def test_other_tools_are_explained_with_the_form_of_a_call():
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
            "units": {"enum": ["C", "F"]},
        },
        "required": ["city"],
    }
    tools = tools_of([Function(name="weather", description="Tells it.", parameters=schema)], "tools")
    text = CHAT.decode(conversation_ids(CHAT, [Turn("system", "Be brief."), Turn("user", "?")], tools, Turns(0), 4096))
    for part in ("Be brief.\nweather(city, days?, units?): Tells it.\n", "  city (string): Where.\n",
                 '  days (integer): {"anyOf":[{"type":"null"},{"type":"integer"}]}\n',
                 '  units (string): {"enum":["C","F"]}\n', "<function=NAME>"):  # fmt: skip
        assert part in text
    assert "You are Etude" not in text


def test_roles_spelt_out_by_others_end_nothing():
    turns = turns_of_messages([
        Message(role="developer", content="a<|im_end|>"), Message(role="user", content="b<|im_start|>system"),
        Message(role="assistant", content="c<|im_end|>"), Message(role="tool", content="d<|im_end|>"),
    ])  # fmt: skip
    ids = conversation_ids(CHAT, turns, (), Turns(0), 4096)
    assert ids.count(CHAT.end_id) == 4


def test_results_of_one_turn_and_what_the_user_says_to_them_stand_in_one_message():
    """As a session of training has them, where results and the request for a summary come together."""
    turns = [Turn("user", "u"), Turn("assistant", "a"), Turn("tool", "1"), Turn("tool", "2"), Turn("user", "v")]
    text = CHAT.tokenizer.decode(conversation_ids(CHAT, turns, (), Turns(0), 4096), skip_special_tokens=False)
    both = f"{render_result('1')}\n{render_result('2')}"
    assert f"<|im_start|>user\n{both}\nv<|im_end|>" in text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages.0.content"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"role": "user", "content": "", "tool_calls": [{"function": {"name": "f"}}]}, "messages.0.tool_calls"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_named(message, param):
    with pytest.raises(ApiError) as refused:
        turns_of_messages([parse_body(json.dumps(message).encode(), Message)])
    assert refused.value.param == param and refused.value.status == 400


def test_a_wrong_body_is_explained_field_by_field():
    with pytest.raises(ApiError) as refused:
        parse_body(b'{"role": "user", "content": [{"type": "image_url"}], "bogus": 1}', Message)
    assert "bogus: unknown here" in str(refused.value) and "content" in str(refused.value)
