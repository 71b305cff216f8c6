r"""The grammar of a message that has to call a tool.

Owns the form of a call as a grammar in llguidance's Lark: what it allows is what `harness.prompt` renders, and what
`harness.protocol` reads as a call that fits its tool. A tool's parameters come in the order of its schema, those that
are not required may be left out. The text of a value may hold anything but a line that the parser would take for a
call's structure. Compiles nothing (`grammar`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from etude.harness.schema import Kind, Parameter, ToolSchema

MOST_CALLS = 16
"""Of one message."""
_END = r"\n<\/parameter>\n"
_STRUCTURE = r"<parameter=|<\/function>|<\/?tool_call>|<function=|<\/parameter>[^\n]"
"""What no line of a value begins with."""
_WHITESPACE = r"[ \n\t\r]{0,16}"
"""Between the parts of JSON. Bounded, because a model that is forced into JSON may else write spaces for ever."""
_SCALARS: dict[Kind, str] = {
    "integer": r"-?(0|[1-9][0-9]{0,16})",
    "number": r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?",
    "boolean": "true|false",
}


def call_grammar(tools: Sequence[ToolSchema], several: bool) -> str:
    """Of a message that is one call of any of these tools, or `several`, and nothing else."""
    more = f' ("\\n" call){{0,{MOST_CALLS - 1}}}' if several else ""
    rules = [
        f"start: call{more}",
        f'call: "<tool_call>\\n" ({" | ".join(f"tool{at}" for at in range(len(tools)))}) "</function>\\n</tool_call>"',
    ]
    for at, tool in enumerate(tools):
        parameters = "".join(f" {_parameter(each)}" for each in tool.parameters)
        rules.append(f"tool{at}: {_quoted(f'<function={tool.name}>' + chr(10))}{parameters}")
    return "\n".join([*rules, *_values()])


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, as part of a rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': _WHITESPACE}})}"


def _parameter(parameter: Parameter) -> str:
    return f"({_quoted(f'<parameter={parameter.name}>' + chr(10))} {parameter.type}){'' if parameter.required else '?'}"


def _values() -> list[str]:
    """A rule for each kind of value, its closing tag included."""
    text = [
        "string[lazy]: TEXT",
        rf"TEXT: /(?s:.*){_END}/ & ~/((?s:.*)\n)?({_STRUCTURE})(?s:.*)/ & ~/<\/parameter>(?s:.*)/",
    ]
    scalars = [f"{kind}: /({expression}){_END}/" for kind, expression in _SCALARS.items()]
    json_kinds = [f"{kind}: {json_rule({'type': kind})} /{_END}/" for kind in ("array", "object")]
    return [*text, *scalars, *json_kinds]


def _quoted(text: str) -> str:
    return json.dumps(text)
