"""What a recipe's keys mean, where their values come from, and the whole of a recipe as it is in effect.

    docstrings of the configs ──► Key ──► one key explained · docs/recipes.md and docs/configuration.md
    a recipe and its overrides ──► every value, with its source ──► TOML that loads again

Owns the reading of configs' docstrings; nothing is said of a key in a second place. Reads a recipe and changes nothing.
Talks to: `config`, whose schemas these are.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from etude import syntax
from etude.config import Config, load_recipe
from etude.errors import ConfigError

WIDTH = 96
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
_UNSET = re.compile(r"(; )?\bNone: ")
_ASSIGNED = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


@dataclass(frozen=True)
class Key:
    """One key of a recipe, or a table: the latter has a config of its own."""

    path: str
    owner: type[Config]
    field: FieldInfo
    kinds: tuple[str, ...] = ()
    """Of a table of which there are several kinds: those that have it. Empty: it is there in any case."""
    held: Config | None = None
    """The table as it is where nothing is said of it: its values may differ from its class's."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def tables(self) -> tuple[type[Config], ...]:
        """The configs it may hold; none for a value."""
        return tuple(_tables(self.field.annotation))

    @property
    def listed(self) -> type[Config] | None:
        """The config that each of its tables holds, where it is a list of such: `[[name]]`."""
        inside = get_args(self.field.annotation)[:1] if get_origin(self.field.annotation) is tuple else ()
        found = [config for each in inside for config in _tables(each)]
        return found[0] if len(found) == 1 else None

    @property
    def doc(self) -> str:
        """What its docstring says, or that of the table it holds."""
        said = _attribute(self.owner, self.name)
        if not said and len(self.tables) > 1:
            return f"A table of one of several kinds; `kind` says which: {', '.join(map(_kind, self.tables))}."
        return said or _said_of(self.tables[0]) if self.tables else said

    @property
    def default(self) -> Any:
        """None where it must be given, or is unset."""
        if self.held is not None:
            return getattr(self.held, self.name)
        return (
            None if self.field.is_required() else self.field.get_default(call_default_factory=True, validated_data={})
        )

    @property
    def holds(self) -> str:
        """The kind of value, in words."""
        return "table" if self.tables else _type(self.field.annotation)

    @property
    def said(self) -> tuple[str, ...]:
        """All that is said of it but for its kinds."""
        return self.holds, self.usual, self.doc

    @property
    def usual(self) -> str:
        """The default in words; of a path that differs by machine, its last part."""
        if self.field.is_required():
            return "must be given"
        by_machine = self.field.default_factory is not None and isinstance(self.default, Path)
        return or_unset(f"…/{self.default.name}" if by_machine else plain(self.default))


def keys_of(
    schema: type[Config], above: str = "", kinds: tuple[str, ...] = (), held: Config | None = None
) -> Iterator[Key]:
    """Every key and table below a config, a table before what is in it. What kinds of a table say differently of a key
    of one name is a key each."""
    for name, field in schema.model_fields.items():
        key = Key(f"{above}{name}", schema, field, kinds, held)
        yield key
        if not key.tables:
            continue
        alone = len(key.tables) == 1
        seen: dict[tuple[str, ...], Key] = {}
        for table in key.tables:
            its = kinds if alone else (*kinds, _kind(table))
            inside = key.default if type(key.default) is table else None
            for each in keys_of(table, f"{key.path}.", its, inside):
                one = (each.path,) if each.tables or each.name == "kind" else (each.path, *each.said)
                if (before := seen.get(one)) is not None:
                    each = replace(before, kinds=tuple(dict.fromkeys(before.kinds + each.kinds)))
                seen[one] = each
        everywhere = set() if alone else set(map(_kind, key.tables))
        for each in seen.values():
            if each.path == f"{key.path}.kind" and not alone:
                usual = FieldInfo(annotation=Literal[tuple(map(_kind, key.tables))], default=key.default.kind)  # ty: ignore
                each = replace(each, field=usual, held=None)
            common = bool(everywhere) and everywhere <= set(each.kinds)
            yield replace(each, kinds=() if common else each.kinds)


@dataclass(frozen=True)
class Value:
    """What a key is in a recipe."""

    key: Key
    value: Any
    default: Any
    source: str
    """The recipe's line, `--set`, or "default"."""

    @property
    def differs(self) -> bool:
        return self.value != self.default


class Explained:
    """A recipe with its overrides, checked as a run checks it. Raises ConfigError as `load_recipe` does."""

    def __init__(self, recipe: Path, schema: type[Config], overrides: Sequence[str] = ()) -> None:
        self.recipe, self.schema, self.overrides = recipe, schema, overrides
        self.config, self.text = load_recipe(recipe, schema, overrides), recipe.read_text()
        self.rows: dict[str, list[Key]] = {}
        for key in keys_of(schema):
            self.rows.setdefault(key.path, []).append(key)

    def values(self) -> Iterator[Value]:
        """Of every key that has a value in this recipe, and changes something there."""
        yield from self._values(self.config, "", self.config.all_idle())

    def _values(self, config: Config, above: str, idle: set[str]) -> Iterator[Value]:
        names = [name for name in type(config).model_fields if f"{above}{name}" not in idle]
        held = {name: getattr(config, name) for name in names}
        for name, value in held.items():
            if not isinstance(value, Config):
                yield self._value(Key(f"{above}{name}", type(config), type(config).model_fields[name]), value)
        for name, value in held.items():  # a TOML table says its own values before the tables below it
            if isinstance(value, Config):
                yield from self._values(value, f"{above}{name}.", idle)

    def _value(self, key: Key, value: Any) -> Value:
        return Value(key, value, self._default(key), self.source(key.path))

    def _default(self, key: Key) -> Any:
        """What it would be if the recipe said nothing of it: a table's own default may differ from its class's."""
        *tables, name = key.path.split(".")
        at: Any = None
        for depth, table in enumerate(tables):
            field = self.schema.model_fields[table] if depth == 0 else None
            at = field.get_default(call_default_factory=True, validated_data={}) if field else getattr(at, table, None)
        return getattr(at, name) if isinstance(at, key.owner) else key.default

    def source(self, path: str) -> str:
        """Where its value is from."""
        for override in reversed(self.overrides):
            named, _, value = override.partition("=")
            if path == named.strip() or path.startswith(f"{named.strip()}."):
                return f"--set {override}" if value.strip() else "default"
        table = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := _HEADER.match(line):
                table = f"{header[1]}."
            elif assigned := _ASSIGNED.match(line):
                named = f"{table}{assigned[1]}"
                if path == named or path.startswith(f"{named}."):
                    return f"{self.recipe} line {number}"
        return "default"

    def explain(self, path: str) -> dict[str, Any]:
        """All that is known of a key, or of a table and its keys. Raises ConfigError naming what is like it."""
        rows = self.rows.get(path) or self._refused(path)
        key = replace(rows[0], kinds=tuple(dict.fromkeys(kind for row in rows for kind in row.kinds)))
        holder, value = None, self.config
        for part in path.split("."):
            holder, value = value, getattr(value, part, None)
        here = isinstance(holder, Config) and key.name in type(holder).model_fields
        if here and holder is not None and key.name != "kind":  # of several kinds, what this one's own config says
            key = Key(path, type(holder), type(holder).model_fields[key.name], key.kinds)
        own = type(value) if isinstance(value, Config) else None
        holds, doc = (key.holds, key.doc) if here else (_of_kinds(rows, "holds"), _of_kinds(rows, "doc"))
        said = {"key": path, "type": holds, "doc": doc, "kinds": list(key.kinds), "here": here}
        if key.tables:
            if own is not None and len(key.tables) > 1:
                said["doc"] = f"{key.doc} Here: {_said_of(own)}"
            inside = {each: rows for each, rows in self.rows.items() if each.rpartition(".")[0] == path}
            has = {
                each: _of_kinds(rows, "doc") if own is None else Key(each, own, own.model_fields[rows[0].name]).doc
                for each, rows in inside.items()
                if own is None or rows[0].name in own.model_fields
            }
            return {**said, "set": own is not None, "keys": has}
        found = self._value(key, value)
        required = {"default": plain(found.default)} if not key.field.is_required() else {"required": True}
        return {**said, **required, "value": plain(value), "source": found.source}

    def _refused(self, path: str) -> NoReturn:
        table = path.rpartition(".")[0]
        if (table and table in self.rows) or not table:
            load_recipe(
                self.recipe, self.schema, [*self.overrides, f"{path}=1"]
            )  # says what became of one that is gone
        named = [each for each in self.rows if each.rpartition(".")[2] == path.rpartition(".")[2]]
        close = named or difflib.get_close_matches(path, self.rows, 3, 0.6)
        raise ConfigError(f"{path}: no such key{'; did you mean ' + ', '.join(close) + '?' if close else ''}")

    def toml(self) -> str:
        """The whole recipe. What is not its default says so; keys that are unset are left out."""
        lines, table = [f"# {self.recipe}, with every value in effect; what differs from the defaults is marked"], ""
        for each in self.values():
            above = each.key.path.rpartition(".")[0]
            if each.value is None:
                continue
            if above != table:
                lines += ["", f"[{above}]"]
                table = above
            mark = "" if not each.differs else f"  # {self._mark(each)}"
            lines.append(f"{each.key.name} = {toml_of(each.value)}{mark}")
        return "\n".join(lines) + "\n"

    def _mark(self, value: Value) -> str:
        if value.key.field.is_required():
            return value.source
        return f"{value.source}; default: {'unset' if value.default is None else toml_of(value.default)}"


def explanation_text(said: dict[str, Any]) -> str:
    """What `Explained.explain` found, for a terminal."""
    head = f"{said['key']}  ({said['type']})"
    lines = [head, *textwrap.wrap(said["doc"], WIDTH, initial_indent="  ", subsequent_indent="  ")]
    if said["kinds"]:
        lines.append(f"  Only where kind = {' or '.join(json.dumps(each) for each in said['kinds'])}.")
    if "keys" in said:
        lines += [
            "",
            *(f"  {path}: {textwrap.shorten(doc, WIDTH, placeholder=' …')}" for path, doc in said["keys"].items()),
        ]
        return "\n".join(lines)
    default = "none: it must be given" if said.get("required") else or_unset(said["default"])
    value = (
        f"{or_unset(said['value'])}  ({said['source']})"
        if said["here"]
        else "nothing; this recipe has no such table, or one of another kind"
    )
    return "\n".join([*lines, "", f"  here:    {value}", f"  default: {default}"])


# --- values and types -------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """As JSON and TOML have it."""
    if isinstance(value, Config):
        return {
            name: plain(getattr(value, name)) for name in type(value).model_fields if getattr(value, name) is not None
        }
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def toml_of(value: Any) -> str:
    """One value, in one line."""
    value = plain(value)
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {toml_of(each)}" for key, each in value.items())
        return "{" + (f" {inside} " if inside else "") + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def or_unset(value: Any) -> str:
    return "unset" if value is None else toml_of(value)


def _type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inside[0])
    if origin is Literal:
        return " or ".join(json.dumps(each) for each in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in inside if each is not type(None))
    if origin in (tuple, list):
        if tables := list(_tables(inside[0])):
            return "list of tables" + (f" of kind {' or '.join(map(_kind, tables))}" if len(tables) > 1 else "")
        return f"list of {_type(inside[0])}"
    if origin in (dict, Mapping):
        return "table of your own"
    names = {str: "text", float: "number", int: "whole number", bool: "true or false"}
    is_path = isinstance(annotation, type) and issubclass(annotation, PurePath)
    return names.get(annotation) or ("path" if is_path else str(getattr(annotation, "__name__", annotation)))


def _of_kinds(rows: Sequence[Key], what: Literal["holds", "doc"]) -> str:
    """What several kinds of a table say of a key of one name: each its own."""
    found = [str(getattr(row, what)) for row in rows]
    return found[0] if len(set(found)) == 1 else " ".join(
        f"{' or '.join(row.kinds)}: {said}" for row, said in zip(rows, found, strict=True)
    )  # fmt: skip


def _kind(table: type[Config]) -> str:
    return str(table.model_fields["kind"].default)


def _tables(annotation: Any) -> Iterator[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _tables(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _tables(each)


# --- docstrings -------------------------------------------------------------------------------------------------------


def _said_of(table: type[Config]) -> str:
    """A table's own docstring."""
    return " ".join((table.__doc__ or "").split())


def _attribute(config: type, name: str) -> str:
    """The docstring below a key, in the class that has it first."""
    for each in config.__mro__:
        if each.__module__.startswith("etude") and (said := _docstrings(each.__module__).get((each.__name__, name))):
            return said
    return ""


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for node in ast.walk(syntax.parse(inspect.getsource(importlib.import_module(module)))):
        if not isinstance(node, ast.ClassDef):
            continue
        for key, said in zip(node.body, node.body[1:], strict=False):
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(said, ast.Expr):
                text = said.value.value if isinstance(said.value, ast.Constant) else None
                if isinstance(text, str):
                    found[node.name, key.target.id] = _UNSET.sub(
                        lambda unset: f"{'. ' if unset[1] else ''}Without it: ", " ".join(text.split())
                    )
    return found
