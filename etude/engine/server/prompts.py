"""Messages and tools to the token ids of a prompt.

Owns `Turn`, the form in which every route's conversation is brought, and its rendering: through `models.chat` and
`harness.prompt`, so that a conversation with Etude's own tools is, byte for byte, what product and training render.
What the model itself said is not tokenised again where `turns` still has its ids. Samples nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from pydantic_core import from_json

from etude.engine.server.bodies import Content, Function
from etude.engine.server.bodies import Message as MessageBody
from etude.engine.server.errors import bad
from etude.engine.server.response_bodies import ItemCall, ItemMessage, ItemResult, ItemThought
from etude.engine.server.tool_schemas import Parts, TooMuch
from etude.engine.server.turns import Turns
from etude.errors import ContextOverflow
from etude.harness.prompt import PERSONA, explained_prompt, render_results, system_prompt, written_message
from etude.harness.schema import Parameter, ToolSchema
from etude.harness.tools import TOOLS, TOOLSETS
from etude.models.chat import ChatRenderer
from etude.models.chat_template import Message

_OWN = {tool.name: tool for tool in TOOLS}
_KNOWN = [(tool, tool.json_schema()) for tools in TOOLSETS.values() for tool in tools]
"""Etude's own, of both sets: a call of theirs is read, and they are told, as the harness does it."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation. `calls` are names and arguments, of an assistant's."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def conversation_ids(
    chat: ChatRenderer, turns: Sequence[Turn], tools: Sequence[ToolSchema], memory: Turns, context: int
) -> list[int]:
    """The prompt after which the assistant writes. Raises ContextOverflow where it is hopeless; else its length is the
    engine's to judge."""
    turns = _with_tools(turns, tools)
    check_length(chat, [message.content for message in _messages(turns)], context)
    known, ids = memory.longest([_key(turn) for turn in turns])
    messages = _messages(turns[known:])
    return [*ids, *chat.continuation(messages)] if known else chat.conversation(messages)


def check_length(chat: ChatRenderer, texts: Sequence[str], context: int) -> None:
    """Refuse what no tokenisation could make short enough, before the work of it. Raises ContextOverflow."""
    characters = sum(map(len, texts))
    if max(len(texts), characters // chat.longest_token) > context:
        said = f"{characters:,} characters in {len(texts):,} messages"
        raise ContextOverflow(f"{said} do not fit a context of {context} tokens")


def remember(
    chat: ChatRenderer,
    turns: Sequence[Turn],
    tools: Sequence[ToolSchema],
    said: Turn,
    ids: Sequence[int],
    memory: Turns,
) -> None:
    """Keep the ids of a conversation that the assistant has just said something in. `ids` are prompt and sampled."""
    whole = [*_with_tools(turns, tools), said]
    memory.keep([_key(turn) for turn in whole], ids if ids[-1] in chat.stop_ids else [*ids, chat.end_id])


def _with_tools(turns: Sequence[Turn], tools: Sequence[ToolSchema]) -> list[Turn]:
    if not tools:
        return list(turns)
    own = all(tool is _OWN.get(tool.name) for tool in tools)
    given = turns[0].text if turns and turns[0].role == "system" else None
    persona = PERSONA if own and given is None else given or ""
    system = system_prompt(tools, persona) if own else explained_prompt(tools, persona)
    return [Turn("system", system), *(turns if given is None else turns[1:])]


def _messages(turns: Sequence[Turn]) -> list[Message]:
    """As a chat template takes them: the results of one turn's calls, with what the user says to them, are one
    message."""
    made: list[Message] = []
    after_results = False
    for is_result, run in groupby(turns, lambda turn: turn.role == "tool"):
        if is_result:
            made.append(Message("user", render_results(turn.text for turn in run)))
            after_results = True
            continue
        for turn in run:
            if after_results and turn.role == "user":
                made[-1] = Message("user", f"{made[-1].content}\n{turn.text}")
            elif turn.role != "tool":
                made.append(Message(turn.role, written_message(turn.text, turn.calls)))
            after_results = False
    return made


def _key(turn: Turn) -> str:
    """What makes two messages the same, whatever the spacing of their JSON."""
    return json.dumps([turn.role, turn.text, turn.calls], sort_keys=True)


# --- from bodies ------------------------------------------------------------------------------------------------------


def turns_of_messages(messages: Sequence[MessageBody]) -> list[Turn]:
    """The conversation of a chat request. Raises ApiError for what could not be rendered faithfully."""
    turns = []
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        role = "system" if message.role == "developer" else message.role
        calls = tuple(
            (call.function.name, _arguments(f"{where}.tool_calls.{at}.function.arguments", call.function.arguments))
            for at, call in enumerate(message.tool_calls or ())
        )
        if calls and role != "assistant":
            raise bad(f"{where}.tool_calls", f"only an assistant calls tools, not {role}")
        if message.content is None and not calls:
            raise bad(f"{where}.content", "is missing")
        turns.append(Turn(role, text_of(message.content), calls))
    return turns


def turns_of_items(
    instructions: str | None, items: str | Sequence[ItemMessage | ItemCall | ItemResult | ItemThought]
) -> list[Turn]:
    """The conversation of a responses request: calls that follow one another, or an assistant's words, are one turn."""
    turns = [] if instructions is None else [Turn("system", instructions)]
    if isinstance(items, str):
        return [*turns, Turn("user", items)]
    for number, item in enumerate(items):
        if isinstance(item, ItemResult):
            turns.append(Turn("tool", text_of(item.output)))
        elif isinstance(item, ItemMessage):
            turns.append(Turn("system" if item.role == "developer" else item.role, text_of(item.content)))
        elif isinstance(item, ItemCall):
            name = item.name if item.namespace is None else f"{item.namespace}.{item.name}"
            call = (name, _arguments(f"input.{number}.arguments", item.arguments))
            if turns and turns[-1].role == "assistant":
                turns[-1] = Turn("assistant", turns[-1].text, (*turns[-1].calls, call))
            else:
                turns.append(Turn("assistant", "", (call,)))
    if not turns:
        raise bad("input", "there is nothing in it but thoughts, and no model here is told those")
    return turns


def text_of(content: Content | None) -> str:
    """The text of a message's content, parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _arguments(where: str, text: str) -> dict[str, Any]:
    try:
        said = from_json(text or "{}", allow_inf_nan=False)  # as strict as a body: a lone surrogate has no tokens
    except ValueError as error:
        raise bad(where, f"is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise bad(where, "is not a JSON object")
    return said


def tools_of(functions: Sequence[Function], where: str) -> list[ToolSchema]:
    """The tools of a request as the harness knows tools; Etude's own, where they are just those."""
    tools = [_tool(function, f"{where}.{number}") for number, function in enumerate(functions)]
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise bad(where, f"{name} is given twice")
    return tools


def _tool(function: Function, where: str) -> ToolSchema:
    for own, told in _KNOWN:
        said = function.description in (None, own.description)
        if own.name == function.name and said and told["parameters"] == function.parameters:
            return own
    given = function.parameters or {}
    properties, required = given.get("properties", {}), given.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise bad(f"{where}.parameters", "must be the JSON schema of an object")
    if not all(isinstance(name, str) for name in required):
        raise bad(f"{where}.parameters.required", "must be a list of names")
    parameters, parts, needed = [], Parts(given), set(required)
    for name, schema in properties.items():
        if not isinstance(schema, dict) or not name or set(name) & set("<>\n"):
            raise bad(f"{where}.parameters.properties", f"{name[:40]!r} must name a parameter and hold its schema")
        try:
            kind, may_be_null = parts.read_as(schema)
        except TooMuch as error:
            raise bad(f"{where}.parameters.properties", f"{name[:40]!r}: {error}") from None
        description = schema.get("description", "")
        described = description if isinstance(description, str) else ""
        parameters.append(Parameter(name, described, kind, name in needed and not may_be_null))
    declared = {"type": "object", **given}
    return ToolSchema(function.name, function.description or "", tuple(parameters), declared=declared)
