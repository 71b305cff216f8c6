"""What the JSON schema of a tool's parameter allows.

Owns the taking apart of such a schema into alternatives of one kind each: references, unions and lists of literals are
resolved. From them come the kind that a value is read as, whether it may be left out, and what `call_grammar` enforces.
What it cannot take apart is `Unenforceable`, and says why. Knows neither bodies nor grammars.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any

from etude.harness.schema import Kind, ToolSchema, kind_of

_DEEPEST = 24
"""References and unions within one another, at the top of a parameter's schema."""
_MOST_WORK = 50_000
"""Keys and literals met behind the references and unions of one tool. A kilobyte of those can lead to millions."""
_ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "format",
    "$schema", "$id", "$comment", "$defs", "definitions", "contentEncoding", "contentMediaType",
}  # fmt: skip
"""Words that say something of a value and forbid none. JSON Schema reads `format` so too."""
_OF_KIND = {
    "properties": "object", "required": "object", "additionalProperties": "object", "patternProperties": "object",
    "items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array",
    "minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number",
}  # fmt: skip
"""What a schema without a type is of, by its words."""
_KINDS: Mapping[type, Kind] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
Schema = Mapping[str, Any]


class Unenforceable(Exception):
    """Why no grammar can hold a value to its schema."""


class TooMuch(Exception):
    """Why a schema is not even read."""


def bare(schema: Schema) -> dict[str, Any]:
    """Without the words that forbid nothing."""
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS and not key.startswith("x-")}


class Parts:
    """The schemas within one tool's, at whose `root` references begin."""

    def __init__(self, root: Schema) -> None:
        self._root, self._left = root, _MOST_WORK

    def alternatives(self, schema: Any, depth: int = 0) -> list[dict[str, Any]]:
        """Schemas of one `type` each, of which a value fits one. Raises Unenforceable or TooMuch."""
        if depth > _DEEPEST:
            raise Unenforceable("its references lead in circles")
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise Unenforceable(f"{reprlib.repr(schema)} is no schema")
        if depth:  # what stands at the top is met once; what it leads to may be met again and again
            self._spend(schema)
        rest = bare(schema)
        if "$ref" in rest:
            return self.alternatives(_joined(_pointed(self._root, rest.pop("$ref")), rest), depth + 1)
        if isinstance(parts := rest.get("allOf"), list) and len(parts) == 1:
            del rest["allOf"]
            return self.alternatives(_joined(parts[0], rest), depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in rest:
                return self._of_members(word, rest.pop(word), rest, depth)
        if isinstance(types := rest.get("type"), list):
            return [each for kind in types for each in self.alternatives({**rest, "type": _word(kind)}, depth + 1)]
        if "const" in rest or "enum" in rest:
            return _literals(rest)
        of_words = next((kind for word, kind in _OF_KIND.items() if word in rest), "string")
        return [{**rest, "type": _word(rest.get("type", of_words))}]

    def _of_members(self, word: str, members: Any, rest: Schema, depth: int) -> list[dict[str, Any]]:
        if not isinstance(members, list):
            raise Unenforceable(f"its {word} is no list")
        found = [each for member in members for each in self.alternatives(_joined(member, rest), depth + 1)]
        if word == "oneOf":
            _check_apart(found)
        return found

    def _spend(self, schema: Schema) -> None:
        values = schema.get("enum")
        self._left -= 1 + len(schema) + (len(values) if isinstance(values, list) else 0)
        if self._left < 0:
            raise TooMuch("its references and unions lead to too many alternatives; write fewer, or out in full")

    def read_as(self, schema: Any) -> tuple[Kind, bool]:
        """What a value is read as, which is text where it may be text, else the first kind that is not null; and
        whether null is among other values: a call leaves such a parameter out to say so. Raises TooMuch.
        """
        try:
            kinds = [each["type"] for each in self.alternatives(schema)]
        except Unenforceable:
            return kind_of(schema if isinstance(schema, Mapping) else {}), False
        known = (kind for each in kinds for kind in _KINDS.values() if kind == each)
        return "string" if "string" in kinds else next(known, "string"), "null" in kinds and len(set(kinds)) > 1


def completed(tool: ToolSchema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are told: what was left out and has to be there is null."""
    wanted = (tool.declared or {}).get("required")
    known = {parameter.name for parameter in tool.parameters}
    missing = [key for key in wanted if key in known and key not in arguments] if isinstance(wanted, list) else []
    return {**arguments, **dict.fromkeys(missing)}


# --- parts ------------------------------------------------------------------------------------------------------------


def _pointed(root: Schema, reference: Any) -> Any:
    """What a reference within the same schema leads to."""
    found: Any = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise Unenforceable(f"$ref {str(reference)[:60]!r} does not begin with #/")
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            raise Unenforceable(f"$ref {reference[:60]!r} leads nowhere")
        found = found[key]
    return found


def _joined(schema: Any, more: Schema) -> Any:
    """Both at once."""
    if not more or not (schema is True or isinstance(schema, Mapping)):
        return schema
    first = {} if schema is True else bare(schema)
    if clash := next((key for key in more if key in first and first[key] != more[key]), None):
        raise Unenforceable(f"{clash} is given twice, inside a union or reference and beside it")
    return {**first, **more}


def _literals(schema: dict[str, Any]) -> list[dict[str, Any]]:
    values = schema.pop("enum", None)
    values = [schema.pop("const")] if "const" in schema else values
    wanted = schema.pop("type", None)
    if not isinstance(values, list) or schema:
        raise Unenforceable(f"a list of values together with {', '.join(schema) or 'nothing in it'}")
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        kind = "null" if value is None else _KINDS[type(value)]
        if wanted in (None, kind) or (wanted == "number" and kind == "integer"):
            by_kind.setdefault(wanted or kind, []).append(value)
    if not by_kind:
        raise Unenforceable("none of its values is of its type")
    return [{"type": kind, "enum": values} for kind, values in by_kind.items()]


def _check_apart(found: list[dict[str, Any]]) -> None:
    """A value that fits two members of a oneOf fits none."""
    open_kinds: set[str] = set()
    literals: dict[str, set[str]] = {}
    for each in found:
        kind = "number" if each["type"] == "integer" else each["type"]
        said = literals.setdefault(kind, set())
        values = {_written(value) for value in each.get("enum", ())}
        if kind in open_kinds or (said and "enum" not in each) or not said.isdisjoint(values):
            raise Unenforceable("two members of its oneOf may fit the same value; write anyOf")
        if "enum" not in each:
            open_kinds.add(kind)
        said |= values


def _written(value: Any) -> str:
    """The same of equal literals; 1 and 1.0 are equal."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True)


def _word(kind: Any) -> str:
    if not isinstance(kind, str):
        raise Unenforceable(f"its type {reprlib.repr(kind)} is no word")
    return kind
