"""What a tool is called and takes, and what a call to it becomes once checked.

Owns `Parameter`, `ToolSchema` and the two items a parsed call can be: `ToolCall`, whose arguments fit the schema, or
`MalformedCall`, with a reason the model can act on. The prompt (`harness.prompt`), the parser (`harness.protocol`) and
the tools (`harness.tools`) all read the same schema, so what the model sees, what is accepted and what is executed
cannot drift apart. Reads values strictly; `harness.coerce` reads them leniently. Runs nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

Argument: TypeAlias = str | int | float | bool | list[Any] | dict[str, Any]
Kind: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "object"]
"""What a value is, in JSON Schema's words. A string is raw text; the others are written as JSON writes them."""


@dataclass(frozen=True)
class Parameter:
    """One value that a tool takes."""

    name: str
    description: str
    type: Kind = "string"
    required: bool = True
    items: Mapping[str, Any] | None = field(default=None, hash=False)
    """Of an array: the JSON schema of its members."""

    def json_schema(self) -> dict[str, Any]:
        members = {"items": dict(self.items or {})} if self.type == "array" else {}  # endpoints refuse it left out
        return {"type": self.type, "description": self.description, **members}


@dataclass(frozen=True)
class ToolSchema:
    """One tool as a model knows it."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    declared: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """The JSON schema a foreign tool came with: told as it stands, and its owner judges what does not fit it."""
    gone: bool = field(default=False, kw_only=True)
    """Whether its owner has taken it away: no model is told of it any more, and a call of it is answered so."""

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters if parameter.required)

    @cached_property
    def optional(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters if not parameter.required)

    @cached_property
    def types(self) -> Mapping[str, Kind]:
        return {parameter.name: parameter.type for parameter in self.parameters}

    @cached_property
    def details(self) -> Mapping[str, str]:
        """What a declared schema says of a parameter beyond its kind and description, as JSON."""
        properties = (self.declared or {}).get("properties")
        found = {}
        for parameter in self.parameters:
            schema = properties.get(parameter.name) if isinstance(properties, dict) else None
            more = {
                key: value
                for key, value in (schema.items() if isinstance(schema, dict) else ())
                if key not in ("description", "title") and (key, value) != ("type", parameter.type)
            }
            if more:
                found[parameter.name] = json.dumps(more, ensure_ascii=False, separators=(",", ":"))
        return found

    @cached_property
    def definitions(self) -> str:
        """What references in `details` lead to, as JSON; empty where there are none."""
        given = [(self.declared or {}).get(name) for name in ("$defs", "definitions")]
        found = {key: value for each in given if isinstance(each, dict) for key, value in each.items()}
        referred = found and any('"$ref"' in each for each in self.details.values())
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")) if referred else ""

    def signature(self) -> str:
        """`name(required, optional?)`, as the prompt and the error messages write it."""
        return f"{self.name}({', '.join([*self.required, *(f'{name}?' for name in self.optional)])})"

    def json_schema(self) -> dict[str, Any]:
        """The function description that OpenAI-compatible endpoints and MCP clients exchange."""
        if self.declared is not None:
            return {"name": self.name, "description": self.description, "parameters": dict(self.declared)}
        properties = {parameter.name: parameter.json_schema() for parameter in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": list(self.required)}
        return {"name": self.name, "description": self.description, "parameters": parameters}


@dataclass(frozen=True)
class ToolCall:
    """A call that fits its tool's schema; values are already of their types. `raw` is the text it was read from."""

    name: str
    arguments: Mapping[str, Argument]
    raw: str


@dataclass(frozen=True)
class MalformedCall:
    """A call that cannot be run. Answered with `error: <reason>`, and kept in the data like any other."""

    reason: str
    raw: str


def check_call(
    tools: Mapping[str, ToolSchema],
    name: str,
    values: Sequence[tuple[str, str]],
    raw: str,
    read: Callable[[ToolSchema, str, str], Argument | None] | None = None,
) -> ToolCall | MalformedCall:
    """Fit the values of a call to its tool's schema, or say what is wrong in one line.

    `read(tool, key, text)` reads a value instead of `read_value`; None leaves it out.
    """
    tool = tools.get(name)
    if tool is None:
        return no_such_tool(tools, name, raw)
    arguments: dict[str, Argument] = {}
    for key, value in values:
        kind = tool.types.get(key)
        if kind is None:
            return no_such_parameter(tool, key, raw)
        if key in arguments:
            return MalformedCall(f"parameter {key} is given twice; one call does one thing", raw)
        try:
            given = read_value(kind, value) if read is None else read(tool, key, value)
        except ValueError:
            return wrong_type(key, kind, value, raw)
        if given is not None:
            arguments[key] = given
    return checked(tool, arguments, raw)


def checked(tool: ToolSchema, arguments: Mapping[str, Argument], raw: str) -> ToolCall | MalformedCall:
    """A call whose arguments are of their types, unless one is missing."""
    missing = [key for key in tool.required if key not in arguments]
    if missing:
        return MalformedCall(f"parameter {', '.join(missing)} is missing; it is {tool.signature()}", raw)
    return ToolCall(tool.name, arguments, raw)


def no_such_tool(tools: Mapping[str, ToolSchema], name: str, raw: str) -> MalformedCall:
    return MalformedCall(f"no tool {name or 'without a name'}; there are {', '.join(present(tools))}", raw)


def present(tools: Mapping[str, ToolSchema]) -> dict[str, ToolSchema]:
    """Those that are not gone."""
    return {name: tool for name, tool in tools.items() if not tool.gone}


def no_such_parameter(tool: ToolSchema, key: str, raw: str) -> MalformedCall:
    return MalformedCall(f"no parameter {key or 'without a name'}; it is {tool.signature()}", raw)


def wrong_type(key: str, kind: Kind, value: object, raw: str) -> MalformedCall:
    said = value if isinstance(value, str) else json.dumps(value)
    return MalformedCall(f"{key} must be {_ARTICLE[kind]} {kind}, not {said[:40]!r}", raw)


def kind_of(schema: Mapping[str, Any]) -> Kind:
    """Of a JSON schema: the first type it allows that is not null; what says none is text."""
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    for member in schema.get("anyOf", ()) if isinstance(schema.get("anyOf"), list) else ():
        types = [*types, member.get("type") if isinstance(member, dict) else None]
    return next((kind for each in types for kind in _READERS if kind == each), "string")


def foreign_schema(name: str, description: str, declared: Mapping[str, Any]) -> ToolSchema:
    """A tool that came with a JSON schema, which is told as it stands. Parameters whose names our own form of a call
    could not hold are left out of what is read of it."""
    properties, required = declared.get("properties"), declared.get("required")
    parameters = tuple(
        Parameter(key, _described(each), kind_of(each if isinstance(each, dict) else {}), key in _list(required))
        for key, each in (properties if isinstance(properties, dict) else {}).items()
        if key and not set(key) & set("<>\n")
    )
    return ToolSchema(name, description, parameters, declared={"type": "object", **declared})


def _described(schema: Any) -> str:
    said = schema.get("description") if isinstance(schema, dict) else None
    return said if isinstance(said, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def read_value(kind: Kind, text: str) -> Argument:
    """A value as a call writes it. Raises ValueError where it is not of its kind."""
    return _READERS[kind](text)


def _integer(text: str) -> int:
    """At most 18 characters: no call needs more, and int() takes its time over very long ones."""
    if len(text) > 18:
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _boolean(text: str) -> bool:
    if (word := text.strip().lower()) not in ("true", "false"):
        raise ValueError
    return word == "true"


def _json(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_number)
        except RecursionError:
            raise ValueError from None
        if not isinstance(value, kind):
            raise ValueError
        return value

    return read


_ARTICLE = {"integer": "an", "number": "a", "boolean": "a", "array": "an", "object": "an", "string": "a"}
_READERS: Mapping[Kind, Callable[[str], Argument]] = {
    "string": str,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _json(list),
    "object": _json(dict),
}
