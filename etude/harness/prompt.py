"""The exact text a model sees and writes: system prompt, tool results, tool calls.

Owns the bytes that product, training and evaluation share; nothing else renders prompts or results. Tool calls have
Qwen3-Coder's form. Never decides what a tool does (`harness.tools`), never reads model output (`harness.protocol`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etude.harness.schema import ToolSchema
from etude.plain import plain_line

_FRAME = re.compile(r"<tool_response(?P<number> \d+)?>\n")

PERSONA = "You are Etude, a coding agent in /workspace."
_CLOSED = (
    "Nothing may read {}: that looks empty, or cannot be opened. Do not change, stage or restore it; give `git add`, "
    "`git commit`, `git stash push --` and test runners the paths that they need."
)
_CLOSED_TOLD = 20


def persona(rules: str, around: str = "", closed: Sequence[str] = ()) -> str:
    """The agent's name, what it is told of where it works and of what is closed to it, and the rules of the project."""
    more = f" and {len(closed) - _CLOSED_TOLD} more" if len(closed) > _CLOSED_TOLD else ""
    told = _CLOSED.format(", ".join(map(plain_line, closed[:_CLOSED_TOLD])) + more) if closed else ""
    return "\n\n".join(filter(None, (PERSONA, around, told, f"{rules}\n" if rules else "")))


def system_prompt(tools: Iterable[ToolSchema], persona: str = PERSONA) -> str:
    """Short on purpose: every token of it is paid for in every rollout."""
    return _with_tools(persona, [tool.signature() for tool in tools])


def explained_prompt(tools: Iterable[ToolSchema], persona: str) -> str:
    """What each tool is for, and the form of a call: for models that do not know them by heart."""
    lines = [line for tool in tools for line in _explained(tool)]
    return _with_tools(persona, [*lines, "Write a call in this form:", render_call("NAME", {"PARAMETER": "VALUE"})])


def tools_changed(new: Iterable[ToolSchema], gone: Iterable[str]) -> str:
    """What a model is told whose tools are not those it was told of; empty where nothing has changed."""
    lines = [line for tool in new for line in _explained(tool)]
    if lines:
        form = render_call("NAME", {"PARAMETER": "VALUE"})
        lines = ["[Tools that are new, or have changed; write a call of one in this form:]", form, *lines]
    if names := ", ".join(gone):
        lines.append(f"[Tools that are gone: {names}]")
    return "\n".join(lines)


def _explained(tool: ToolSchema) -> list[str]:
    lines = [f"{tool.signature()}: {tool.description}".rstrip(": ")]
    for each in tool.parameters:
        told = " ".join(filter(None, (each.description, tool.details.get(each.name))))
        lines.append(f"  {each.name} ({each.type}): {told}".rstrip(": "))
    return [*lines, f"  $defs: {tool.definitions}"] if tool.definitions else lines


def _with_tools(persona: str, lines: list[str]) -> str:
    closing = "Calls in one message run in parallel. To finish, answer without a call."
    return "\n".join([persona, *lines, closing] if persona else [*lines, closing])


def render_result(text: str) -> str:
    """One tool result, as the model reads it. What stands in it is data: a text that holds the frame's end gets a frame
    with a number, the first whose end it does not hold, so that nothing it says can seem to stand outside."""
    numbers = itertools.chain([""], (f" {number}" for number in itertools.count(1)))
    number = next(number for number in numbers if f"</tool_response{number}>" not in text)
    return f"<tool_response{number}>\n{text}\n</tool_response{number}>"


def render_results(texts: Iterable[str]) -> str:
    """The results of one turn, in call order."""
    return "\n".join(render_result(text) for text in texts)


def parse_results(text: str) -> list[str]:
    """The inverse of `render_results`, whatever stands around the blocks; for scripts that play the model."""
    found: list[str] = []
    at = 0
    while (frame := _FRAME.search(text, at)) is not None:
        close = f"\n</tool_response{frame['number'] or ''}>"
        end = text.find(close, frame.end())
        if end < 0:
            break
        found.append(text[frame.end() : end])
        at = end + len(close)
    return found


def render_call(name: str, arguments: Mapping[str, str]) -> str:
    """One tool call, as a model writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def render_calls(calls: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Several calls of one message; they run in parallel where they can."""
    return "\n".join(render_call(name, arguments) for name, arguments in calls)


def written_message(text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A message whose calls came apart from its words, as native function calls do, as our models write one."""
    if not calls:
        return text
    between = "" if not text or text.endswith("\n") else "\n"
    values = [(name, {key: _value(each) for key, each in said.items() if each is not None}) for name, said in calls]
    return text + between + render_calls(values)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
