"""Reads calls leniently: values that are not quite of their type, and arguments that are not quite JSON.

Owns `read_leniently` (a value from text, for `harness.protocol`), `check_json_call` (a native function call) and
`check_named_call` (the same as one object, name and all). What can mean one thing only is read as that: `12.0` and
`"12"` are the integer 12, `['a']` is an array, `null` for a parameter that may be left out leaves it out. Nothing is
completed: arguments that end in the middle are malformed, since half a file must not be written. A foreign tool's owner
checks its arguments itself: they are read to the letter, and what does not fit its schema, which may say more than a
kind, is passed on as it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from etude import syntax
from etude.harness.schema import (
    Argument,
    Kind,
    MalformedCall,
    ToolCall,
    ToolSchema,
    checked,
    no_such_parameter,
    no_such_tool,
    read_value,
    wrong_type,
)

_NOTHING = {"", "null", "none", "undefined"}
_BOOLEANS = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
_FENCE = re.compile(r"```[a-z]*\n(.*)\n```$", re.DOTALL)
_LITERAL_MAX = 20_000
"""Longest text that is tried as a Python literal: its parser takes far more memory than the text."""
_NAMESPACE = re.compile(r"^(?:functions|function|tools|tool|default_api)[.:/]")
_LEAKED = "<|"
"""Begins a template's own token; some servers let one slip into a call's name."""


def read_leniently(tool: ToolSchema, key: str, text: str) -> Argument | None:
    """A value as text; None if it says that there is none. Raises ValueError where it can be none of its kind."""
    kind = tool.types[key]
    if kind == "string":
        return text
    try:
        return read_value(kind, text)
    except ValueError:
        pass
    bare = text.strip()
    if bare.lower() in _NOTHING and key in tool.optional:
        return None
    if tool.declared is not None:
        return text
    return _READERS[kind](_unquoted(bare))


def check_json_call(
    tools: Mapping[str, ToolSchema], name: str, arguments: object, raw: str
) -> ToolCall | MalformedCall:
    """A native function call: `arguments` is JSON text, as the protocol has it, or what some servers send instead."""
    tool = tools.get(name) or tools.get(_NAMESPACE.sub("", name.partition(_LEAKED)[0].strip()))
    if tool is None:
        return no_such_tool(tools, name, raw)
    try:
        given = json_object(arguments)
    except ValueError as error:
        return MalformedCall(f"the arguments of {tool.name} are not a JSON object ({error}); write the call again", raw)
    fitting: dict[str, Any] = {}
    for key, value in given.items():
        if value is None and key not in tool.required:
            continue
        if tool.declared is not None and (value is None or key not in tool.types):
            fitting[key] = value
            continue
        if key not in tool.types:
            return no_such_parameter(tool, key, raw)
        try:
            fitted = _fit(tool, key, value)
        except ValueError:
            return wrong_type(key, tool.types[key], value, raw)
        if fitted is not None:
            fitting[key] = fitted
    return checked(tool, fitting, raw)


def check_named_call(tools: Mapping[str, ToolSchema], text: str, raw: str) -> ToolCall | MalformedCall:
    """A call written as one JSON object, of its name and its arguments."""
    try:
        said = json_object(text)
    except ValueError as error:
        return MalformedCall(f"the call is not a JSON object ({error}); write it again", raw)
    name = said.get("name")
    arguments = next((said[key] for key in ("arguments", "parameters") if key in said), None)
    return check_json_call(tools, name if isinstance(name, str) else "", arguments, raw)


def json_object(said: object) -> dict[str, Any]:
    """The object that arguments are meant to be. Raises ValueError, which says where it is none."""
    if said is None:
        return {}
    if isinstance(said, dict):
        return said
    if not isinstance(said, str):
        raise ValueError(f"it is {type(said).__name__}")
    text = said.strip()
    if not text:
        return {}
    if fenced := _FENCE.match(text):
        text = fenced.group(1).strip()
    try:
        # a newline inside a string is written raw by many
        value = json.loads(text, strict=False, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        value = _several(text)
        if value is None:
            value = _literal(text)
        if value is None:
            raise ValueError(f"{error.msg}, at character {error.pos} of {len(text)}") from None
    if isinstance(value, str) and value.strip().startswith("{"):
        return json_object(value)  # encoded twice
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"it is {type(value).__name__}")
    return value


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _several(text: str) -> dict[str, Any] | None:
    """Objects one after another, all empty but one: a server's placeholder and what came after it."""
    decoder, at, found = json.JSONDecoder(strict=False, parse_constant=_no_number), 0, []
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        if value:
            found.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return found[0] if len(found) == 1 else None


def _literal(text: str) -> Any:
    """Python's form of an object or array; None if it is neither."""
    if len(text) > _LITERAL_MAX or not text.startswith(("{", "[")):
        return None
    try:
        value = syntax.literal(text)
        json.dumps(value)  # a set, bytes or a complex number is a literal too
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


def _fit(tool: ToolSchema, key: str, value: object) -> Any:
    """A JSON value as one of its parameter's kind; None if it says that there is none."""
    kind = tool.types[key]
    if _is(kind, value):
        return value
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "boolean" and isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        return read_leniently(tool, key, value)
    if tool.declared is not None:
        return value
    if kind == "string" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    if kind == "array" and value is not None:
        return [value]
    raise ValueError


def _is(kind: Kind, value: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'`" and not text.startswith("```")
    return text[1:-1].strip() if quoted else text


def _integer(text: str) -> int:
    number = read_value("number", text)
    if not isinstance(number, float) or not number.is_integer() or abs(number) > 1e15:
        raise ValueError
    return int(number)


def _boolean(text: str) -> bool:
    if (found := _BOOLEANS.get(text.lower())) is not None:
        return found
    return bool(read_value("boolean", text))


def _array(text: str) -> list[Any]:
    """JSON, a Python list, or else lines: one entry each."""
    value = _literal(text)
    if isinstance(value, list):
        return value
    if not text or text[0] in "[{":
        raise ValueError
    return [line.strip() for line in text.split("\n") if line.strip()]


def _object(text: str) -> dict[str, Any]:
    if not text:
        raise ValueError
    return json_object(text)


_TYPES: Mapping[Kind, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
}  # fmt: skip
_READERS: Mapping[Kind, Any] = {
    "integer": _integer,
    "number": lambda text: read_value("number", text),
    "boolean": _boolean,
    "array": _array,
    "object": _object,
}
