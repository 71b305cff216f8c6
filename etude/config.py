"""The base of every config: frozen, typed, read from TOML, unknown keys refused with their path.

Owns `Config`, `load_recipe`, and the words in which a recipe is refused. Concrete configs live beside the class they
build; a recipe is one TOML file whose tables are those configs, or the dump of it that a run keeps (JSON). Never reads
the environment, never fills a key from anywhere but the file and its overrides.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from etude.errors import ConfigError
from etude.retired import RETIRED, RETIRED_KINDS

_QUOTED = re.compile(
    r"""#[^\n]*|\"{3}(?:[^"\\]|\\.|"{1,2}(?!"))*(?:"{3,5})?|'{3}(?:[^']|'{1,2}(?!'))*(?:'{3,5})?|"""
    r""""(?:[^"\\\n]|\\[^\n])*"?|'[^'\n]*'?""",
    re.DOTALL,
)
"""In TOML, a comment or a string; one without an end goes as far as the parser would look."""
_MOST_NESTED, _MOST_DOTS = 64, 32
"""Brackets in each other, and dots in one key."""
_MOST_IDLE = 100
"""Keys of a dump that change nothing: recipes have some dozens."""


class Config(BaseModel):
    """A frozen, strict config. Construct it directly in Python, or from TOML with `load_recipe`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _none_is_gone(cls, raw: Any) -> Any:
        """Refuse a key that there was by saying what became of it."""
        for each in cls.__mro__ if isinstance(raw, dict) else ():
            for key, said in RETIRED.get(each.__name__, {}).items():
                path, _, value = key.partition("=")
                table, _, name = path.rpartition(".")
                held = raw.get(table) if table else raw
                if not isinstance(held, dict) or name not in held:
                    continue
                was = str(held[name]).lower() if isinstance(held[name], bool) else held[name]
                if was == value if value else path not in cls.model_fields:
                    raise PydanticCustomError("gone", "key {key} is gone: {said}", {"key": key, "said": said})
        return raw

    @model_validator(mode="after")
    def _none_is_ignored(self) -> Self:
        """Refuse a key that was given where it changes nothing."""
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")  # it tells this table from others, whoever made it
        for path, why in self.idle().items():
            table, _, key = path.rpartition(".")
            if key in (attrgetter(table)(self) if table else self).model_fields_set:
                raise PydanticCustomError("idle", "{key} has no effect {why}; leave it out", {"key": path, "why": why})
        return self

    def idle(self) -> dict[str, str]:
        """Keys, of this table or of one in it, that change nothing beside the others; and beside which."""
        return {}

    def all_idle(self, above: str = "") -> set[str]:
        """The dotted paths of all keys, of this table and of those in it, that change nothing in this config."""
        found = {f"{above}{key}" for key in self.idle()}
        for name in type(self).model_fields:
            if isinstance(table := getattr(self, name), Config):
                found |= table.all_idle(f"{above}{name}.")
        return found


C = TypeVar("C", bound=Config)


def load_recipe(path: Path | None, schema: type[C], overrides: Sequence[str] = ()) -> C:
    """Read a recipe into `schema`, or start from the defaults; `overrides` are `table.key=value` with TOML values,
    or `table.key=` for a key that is to be left out.

    Raises ConfigError naming the file and the path of the first wrong key.
    """
    return _parsed(_read(path, overrides, schema), schema, path, overrides)


def load_part(path: Path, schema: type[C], overrides: Sequence[str] = ()) -> C:
    """As `load_recipe`, but of those keys alone that `schema` has: for whoever needs no more of a recipe, and should
    not load what the rest describes.
    """
    raw = {key: value for key, value in _read(path, overrides).items() if key in schema.model_fields}
    return _parsed(raw, schema, path, overrides)


def overridden(config: C, overrides: Sequence[str]) -> C:
    """The same config with other values for some keys, checked as a whole. Raises ConfigError, as `load_recipe`."""
    raw = config.model_dump(exclude_unset=True)
    for override in overrides:
        _apply_override(raw, override, type(config))
    return parse(raw, type(config), origin="the change")


def read_toml(path: Path) -> dict[str, Any]:
    """A user's TOML file as it stands. Raises ConfigError saying what it is instead."""
    try:
        return parse_toml(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; name the TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_dump(path: Path) -> dict[str, Any]:
    """A recipe that a run has written down. Raises ConfigError saying what it is instead."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: is no recipe that a run has written")
    return raw


def _is_dump(path: Path | None) -> bool:
    return path is not None and path.suffix == ".json"


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML text, which may come from anybody. Raises TOMLDecodeError also for one that is valid and that nobody
    writes: so many dots in a key take the parser minutes, and brackets in brackets more stack than there is."""
    bare = _QUOTED.sub(lambda found: "" if found[0].startswith("#") else '""', text)
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > _MOST_NESTED:
        raise tomllib.TOMLDecodeError(f"more than {_MOST_NESTED} brackets in each other")
    if any(run.count(".") > _MOST_DOTS for run in re.findall(r'[\w."-]+', re.sub(r"[ \t]", "", bare))):
        raise tomllib.TOMLDecodeError(f"more than {_MOST_DOTS} dots in a key")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)) from None


def read_recipe(path: Path | None) -> dict[str, Any]:
    """A recipe as it stands, or the dump of one; where there is no file, nothing. Raises ConfigError."""
    return {} if path is None else read_dump(path) if _is_dump(path) else read_toml(path)


def _read(path: Path | None, overrides: Sequence[str], schema: type[Config] | None = None) -> dict[str, Any]:
    """Without a schema, keys that are to be left out are not looked up: whoever reads the whole recipe does that."""
    raw = read_recipe(path)
    for override in overrides:
        _apply_override(raw, override, schema)
    return raw


def parse(raw: dict[str, Any], schema: type[C], origin: str, overrides: Sequence[str] = ()) -> C:
    """Validate a plain dictionary; errors are reported one line a key, with the key's dotted path, after where the key
    comes from: `origin`, or the override that has set it.
    """
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        lines = dict.fromkeys(_explain(item, schema) for item in _errors(error))
        by_set = [line for line in lines if _is_set(line, overrides)]
        of_origin = "; ".join(line for line in lines if line not in by_set)
        said = [f"--set {line}" for line in by_set] + ([f"{origin}: {of_origin}"] if of_origin else [])
        raise ConfigError("; ".join(said)) from None


def parse_dump(raw: dict[str, Any], schema: type[C], origin: str, overrides: Sequence[str] = ()) -> C:
    """As `parse`, of a whole dump: it has every key, those too that change nothing beside the others, which a user may
    not give.
    """
    raw = copy.deepcopy(raw)
    for _ in range(_MOST_IDLE):
        try:
            return schema.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] != "idle":
                break
            above, *_ = _located(dict(first), schema)
            path = [*above, *first["ctx"]["key"].split(".")]
            if _is_set(".".join(path), overrides):
                break
            _leave_out(raw, path)
    return parse(raw, schema, origin, overrides)


def _leave_out(held: Any, path: Sequence[str]) -> None:
    for name in path[:-1]:
        held = held[int(name) if isinstance(held, list) else name]
    held.pop(path[-1])


def _parsed(raw: dict[str, Any], schema: type[C], path: Path | None, overrides: Sequence[str]) -> C:
    read = parse_dump if _is_dump(path) else parse
    return read(raw, schema, str(path or "defaults"), overrides)


def check_names(raw: dict[str, Any], schema: type[Config], origin: str) -> None:
    """Raise ConfigError where a table has a key that `schema` does not know: for whoever reads one part of it, and
    must not take a part whose name is mistyped for one that is not there.
    """
    if wrong := next((key for key in raw if key not in schema.model_fields), None):
        raise ConfigError(f"{origin}: {wrong}: {_unknown(wrong, list(schema.model_fields))}")


def _is_set(line: str, overrides: Sequence[str]) -> bool:
    """Whether an override gave the key that a line begins with, a table above it or a key below."""
    wrong = line.partition(": ")[0].partition(" = ")[0].split(".")
    given = (override.partition("=")[0].strip().split(".") for override in overrides)
    return any(all(one == other for one, other in zip(key, wrong, strict=False)) for key in given)


def _apply_override(raw: dict[str, Any], override: str, schema: type[Config] | None) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise ConfigError(f"override {override!r} is not of the form table.key=value")
    path = key.strip().split(".")
    if not value.strip():
        if schema is not None:
            _check_known(raw, path, schema)
        _put(raw, path, override)
        return
    try:
        _put(raw, path, override, tomllib.loads(f"value = {value}")["value"])
    except tomllib.TOMLDecodeError:
        _put(raw, path, override, value)  # a bare word is a string: `--set model.path=base` needs no quotes


def _put(raw: dict[str, Any], path: Sequence[str], override: str, value: Any = None) -> None:
    """Set a key, or take it out: TOML has no None."""
    *tables, last = path
    for table in tables:
        if value is None and table not in raw:
            return
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"override {override!r}: {table} is a value, not a table")
    raw.pop(last, None)
    if value is not None:
        raw[last] = value


def _check_known(raw: dict[str, Any], path: list[str], schema: type[Config]) -> None:
    """Raise ConfigError where no recipe could have this key beside the others: with it, the recipe would be refused for
    the key's name and not for its value.
    """
    trial = copy.deepcopy(raw)
    _put(trial, path, f"{'.'.join(path)}=", object())
    try:
        schema.model_validate(trial)
    except ValidationError as error:
        for item in _errors(error):
            where, *_ = _located(item, schema)
            if item["type"] == "gone":
                where += item["ctx"]["key"].split(".")
            of_name = item["type"] in ("extra_forbidden", "gone") or "[key]" in item["loc"]
            of_table = item["type"].endswith("_type") and len(where) < len(path)
            if (of_name or of_table) and where == path[: len(where)]:
                raise ConfigError(_explain(item, schema)) from None


# --- errors in our words ----------------------------------------------------------------------------------------------


def _errors(error: ValidationError) -> list[dict[str, Any]]:
    """Without those that only follow from others: pydantic counts what is in a list without what is wrong there."""
    found: list[dict[str, Any]] = [
        dict(item) for item in error.errors() if item["type"] != "default_factory_not_called"
    ]
    inside = {each["loc"][:depth] for each in found for depth in range(len(each["loc"]))}
    return [item for item in found if item["type"] != "too_short" or item["loc"] not in inside]


def _explain(item: dict[str, Any], schema: type[BaseModel]) -> str:
    """One line: the path of the key, and what is wrong with it."""
    where, table, at = _located(item, schema)
    context = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            said = _unknown(where[-1], sorted(getattr(table, "model_fields", {})))
        case "missing":
            said = "must be given"
        case "idle":
            where += [context["key"]]
            said = f"has no effect {context['why']}; leave it out"
        case "union_tag_invalid" if isinstance(item["input"], Mapping):
            where += ["kind"]
            gone = RETIRED_KINDS.get(context["tag"])
            said = f"{context['tag']!r} is {f'gone: {gone}' if gone else 'not known'}; there is "
            said += context["expected_tags"].replace("'", "")
        case "union_tag_invalid" | "union_tag_not_found" | "model_type":
            said = "must be a table"
        case "too_short" if not context["actual_length"]:
            said = "must not be empty"
        case "tuple_type" | "list_type":
            said = f"must be a list, like {_as_list(item['input'])}"
        case "value_error":
            said = str(context["error"])
            named = re.match(r"(\w+)[\w.]*( = [^:]*)?: ", said)
            if where and named and named[1] in getattr(at, "model_fields", {}):
                return f"{'.'.join(where)}.{said}"
        case _:
            said = item["msg"]
    return ": ".join(each for each in (".".join(where), said) if each)


def _as_list(given: Any) -> str:
    """In TOML, with what was given as its one value where it can be that."""
    one = isinstance(given, str | int | float)
    return json.dumps([given if one else "..."], ensure_ascii=False)


def _unknown(key: str, known: Sequence[str]) -> str:
    meant = difflib.get_close_matches(key, known, 1)
    return f"unknown key{f' (did you mean {meant[0]}?)' if meant else ''}; known here: {', '.join(known)}"


def _located(item: dict[str, Any], schema: type[BaseModel]) -> tuple[list[str], Any, Any]:
    """The keys that lead to what is wrong, the table that has the last of them, and the type of its value.

    Parts of pydantic's location that are no keys are left out: the kind of a table, and which of several types.
    """
    where: list[str] = []
    table: Any = schema
    at: Any = schema
    for part in item["loc"]:
        fields, inside = getattr(at, "model_fields", None), get_args(at)
        if fields is not None:
            table, at = at, _bare(fields[part].annotation) if part in fields else None
        elif get_origin(at) in (dict, Mapping, list, tuple) or at is None:
            at = _bare(inside[-1 if get_origin(at) in (dict, Mapping) else 0]) if inside else None
        else:
            at = next((_bare(each) for each in inside if _is_called(each, part)), None) if inside else at
            continue
        where.append(str(part))
    return where, table, at


def _bare(annotation: Any) -> Any:
    """Without what is said of it, and without "or none"."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    inside = [each for each in get_args(annotation) if each is not NoneType]
    return _bare(inside[0]) if NoneType in get_args(annotation) and len(inside) == 1 else annotation


def _is_called(member: Any, part: object) -> bool:
    """Whether pydantic means this one of several types: by its `kind`, or by its own name."""
    member = _bare(member)
    kind = getattr(member, "model_fields", {}).get("kind")
    return part in (str(member), getattr(member, "__name__", None)) or (kind is not None and kind.default == part)
