r"""The grammar of a message that calls tools.

Owns the form of a call as a grammar in llguidance's Lark: what it allows is what `harness.prompt` renders, and what
`harness.protocol` reads as a call that fits its tool. A tool's parameters come in the order of its schema, those that
are not required may be left out. The text of a value may hold anything but a line that the parser would take for a
call's structure. Values fit their schemas; a schema that no grammar can hold a value to raises `Unenforceable`
(`tool_schemas`). Compiles nothing (`grammar`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etude.engine.server.tool_schemas import Parts, TooMuch, Unenforceable, bare
from etude.harness.prompt import render_call
from etude.harness.protocol import parse_message
from etude.harness.schema import Kind, Parameter, ToolCall, ToolSchema

MOST_CALLS = 16
"""Of one message."""
LONGEST = 1 << 20
"""Characters of a grammar."""
_END = r"\n<\/parameter>\n"
_STRUCTURE = ("<parameter=", "</parameter>", "</function>", "<tool_call>", "</tool_call>", "<function=")
"""What no line of a value begins with."""


def _line(begun: str) -> str:
    """The rest of a line of a value, after what begins some structure. Put together letter by letter, and not as the
    complement of lines that begin so: of a complement and a length the compiler finds too much to follow.
    """
    following = sorted({each[len(begun)] for each in _STRUCTURE if each.startswith(begun)})
    escaped = {each: re.escape(each).replace("/", "\\/") for each in following}
    forms = [rf"[^{''.join(escaped.values())}\n][^\n]*"]
    forms += [escaped[each] + _line(begun + each) for each in following if begun + each not in _STRUCTURE]
    return f"({'|'.join(forms)})?"


_ANY_TEXT = rf"/{_line('')}(\n{_line('')})*{_END}/"
_WHITESPACE = r"[ \n\t\r]{0,16}"
"""Between the parts of JSON. Bounded, because a model that is forced into JSON may else write spaces for ever."""
_SCALARS: dict[Kind, str] = {
    "integer": r"-?(0|[1-9][0-9]{0,16})",
    "number": r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?",
    "boolean": "true|false",
}
_LARGEST = 10**17 - 1
"""The longest integer that a call is read with."""
_TOP = {"type", "properties", "required", "additionalProperties"}
"""What a tool's own schema may say: its parameters are written one by one, and no others are."""
_TEXT = {"type", "minLength", "maxLength", "pattern"}


def call_grammar(tools: Sequence[ToolSchema], several: bool) -> str:
    """Of a message that is one call of any of these tools, or `several`, and nothing else."""
    return "\n".join([f"start: call{_more(several)}", *_calls(tools, tools)])


def free_call_grammar(tools: Sequence[ToolSchema], strict: Sequence[ToolSchema], several: bool) -> str:
    """Of a message of words, which may end in calls. Those of tools that are not `strict` fit by kind alone."""
    opening = r"/(?s:.*)<tool_call>\n/ & ~/(?s:.*)<tool_call>[^\n](?s:.*)/ & ~/(?s:.*)<function=(?s:.*)/"
    rules = [
        f"start: WORDS? | opened called{_more(several)}",
        "WORDS: /(?s:.+)/ & ~/(?s:.*)(<tool_call>|<function=)(?s:.*)/",
        "opened[lazy]: OPENING",
        f"OPENING: {opening}",
    ]
    return "\n".join([*rules, *_calls(tools, strict)])


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, as part of a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': _WHITESPACE}})}"


def _more(several: bool) -> str:
    return f' ("\\n" call){{0,{MOST_CALLS - 1}}}' if several else ""


def _calls(tools: Sequence[ToolSchema], strict: Sequence[ToolSchema]) -> list[str]:
    rules = [
        'call: "<tool_call>\\n" called',
        f'called: ({" | ".join(f"tool{at}" for at in range(len(tools)))}) "</function>\\n</tool_call>"',
    ]
    for at, tool in enumerate(tools):
        values = _strict_values(tool) if tool in strict else {each.name: [each.type] for each in tool.parameters}
        parameters = ""
        for number, each in enumerate(tool.parameters):
            rules += [f"value{at}_{number}: {' | '.join(_named(values[each.name], f'{at}_{number}', rules))}"]
            parameters += f" {_parameter(each, f'value{at}_{number}')}"
        rules.append(f"tool{at}: {_quoted(f'<function={tool.name}>' + chr(10))}{parameters}")
    return [*rules, *_values()]


def _named(forms: Sequence[str], place: str, rules: list[str]) -> list[str]:
    """A terminal, which is a text that ends lazily, gets a rule of its own; all else stands as it is."""
    found = []
    for number, form in enumerate(forms):
        if form.startswith("/"):
            name = f"{place}_{number}"
            rules += [f"T{name}: {form}", f"text{name}[lazy]: T{name}"]
            form = f"text{name}"
        found.append(form)
    return found


def _parameter(parameter: Parameter, value: str) -> str:
    return f"({_quoted(f'<parameter={parameter.name}>' + chr(10))} {value}){'' if parameter.required else '?'}"


def _values() -> list[str]:
    """A rule for each kind of value, its closing tag included."""
    text = ["string[lazy]: TEXT", f"TEXT: {_ANY_TEXT}"]
    scalars = [f"{kind}: /({expression}){_END}/" for kind, expression in _SCALARS.items()]
    json_kinds = [f"{kind}: {json_rule({'type': kind})} /{_END}/" for kind in ("array", "object")]
    return [*text, *scalars, *json_kinds]


# --- values that fit their schema -------------------------------------------------------------------------------------


def _strict_values(tool: ToolSchema) -> dict[str, list[str]]:
    """The forms that a value of each parameter may have, as parts of a rule. Raises Unenforceable."""
    root = tool.json_schema()["parameters"]
    if beyond := [key for key in bare(root) if key not in _TOP]:
        raise Unenforceable(f"{', '.join(beyond)} beside its properties")
    properties = root.get("properties", {})
    known = {parameter.name for parameter in tool.parameters}
    if missing := [key for key in root.get("required", ()) if key not in known]:
        raise Unenforceable(f"{missing[0]} is required, and no property")
    found: dict[str, list[str]] = {}
    parts, left = Parts(root), LONGEST
    for parameter in tool.parameters:
        forms = found[parameter.name] = []
        try:
            for each in parts.alternatives(properties[parameter.name]):
                if each["type"] == parameter.type:
                    more = _forms(tool, parameter, each, root)
                    forms += more
                    left -= sum(map(len, more))  # each of them holds all definitions
                    if left < 0:
                        raise Unenforceable("with its definitions, the tool's schema is too long")
        except (Unenforceable, TooMuch) as error:
            raise Unenforceable(f"{parameter.name}: {error}") from None
        if not forms:
            raise Unenforceable(f"{parameter.name}: no value of it can be written in a call")
    return found


def _forms(tool: ToolSchema, parameter: Parameter, schema: dict[str, Any], root: Mapping[str, Any]) -> list[str]:
    if set(schema) == {"type"}:
        return [parameter.type]
    if parameter.type == "string":
        if "enum" in schema:
            return [_literal(tool, parameter.name, value) for value in schema["enum"]]
        return [_limited(schema)]
    if parameter.type == "integer" and "enum" not in schema:
        schema = {"minimum": -_LARGEST, "maximum": _LARGEST, **schema}
    return [f"{json_rule(_with_definitions(schema, root))} /{_END}/"]


def _literal(tool: ToolSchema, name: str, value: str) -> str:
    """A text as it stands. It must be read as what it is."""
    probe = ToolSchema(tool.name, "", (Parameter(name, ""),))
    match parse_message(render_call(tool.name, {name: value}), {tool.name: probe}):
        case [ToolCall(arguments=said)] if said == {name: value}:
            return _quoted(f"{value}\n</parameter>\n")
    raise Unenforceable(f"the value {value[:40]!r} cannot be written in a call")


_ENDS = re.compile(r"(?<!\\)(\\\\)*\$$")
_SLASHES = re.compile(r"\\.|/", re.DOTALL)
"""A slash ends a regular expression of a grammar. What is escaped is read whole: it may be a backslash before one."""


def _limited(schema: Mapping[str, Any]) -> str:
    """A text of a length, or of a pattern, which may stand anywhere in it unless it is anchored."""
    if beyond := [key for key in schema if key not in _TEXT]:
        raise Unenforceable(f"{', '.join(beyond)} of a text")
    for key in ("minLength", "maxLength"):
        if key in schema and (type(schema[key]) is not int or schema[key] < 0):
            raise Unenforceable(f"its {key} is no whole number from 0 up")
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    found = _ANY_TEXT
    if least or most != "":
        found += rf" & /(?s:.{{{least},{most}}}){_END}/"
    if (pattern := schema.get("pattern")) is not None:
        if not isinstance(pattern, str):
            raise Unenforceable("its pattern is no text")
        anchored = _ENDS.search(pattern) is not None
        begin, end = "" if pattern.startswith("^") else "(?s:.*)", "" if anchored else "(?s:.*)"
        inner = pattern.removeprefix("^")
        inner = _SLASHES.sub(
            lambda found: "\\/" if found[0] in ("/", "\\/") else found[0], inner[: len(inner) - anchored]
        )
        found += rf" & /{begin}({inner}){end}{_END}/"
    return found


def _with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that stands alone, with what its references lead to. `format` is told, and not enforced."""
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    whole = _without_formats({**schema, **definitions})
    for reference in _references(schema):
        if not str(reference).startswith(("#/$defs/", "#/definitions/")):
            raise Unenforceable(f"$ref {str(reference)[:60]!r} leads to no definition")
    return whole


def _without_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_formats(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    named = {key: value for key, value in schema.items() if key != "format" or not isinstance(value, str)}
    return {key: value if key in ("enum", "const") else _without_formats(value) for key, value in named.items()}


def _references(schema: Any) -> list[Any]:
    if isinstance(schema, list):
        return [found for each in schema for found in _references(each)]
    if not isinstance(schema, Mapping):
        return []
    here = [schema["$ref"]] if "$ref" in schema and not isinstance(schema["$ref"], Mapping) else []
    inner = [each for key, each in schema.items() if key not in ("enum", "const")]
    return [*here, *(found for each in inner for found in _references(each))]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
