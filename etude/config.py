"""The base of every config: frozen, typed, read from TOML, unknown keys refused with their path.

Owns `Config` and `load_recipe`. Concrete configs live beside the class they build; a recipe is one TOML file whose
tables are those configs. Never reads the environment, never fills a key from anywhere but the file and its overrides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from etude.errors import ConfigError
from etude.retired import RETIRED


class Config(BaseModel):
    """A frozen, strict config. Construct it directly in Python, or from TOML with `load_recipe`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _none_is_gone(cls, raw: Any) -> Any:
        """Refuse a key that there was by saying what became of it."""
        for each in cls.__mro__ if isinstance(raw, dict) else ():
            for key, said in RETIRED.get(each.__name__, {}).items():
                if key in raw and key not in cls.model_fields:
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
                raise ValueError(f"{path} has no effect {why}; leave it out")
        return self

    def idle(self) -> dict[str, str]:
        """Keys, of this table or of one in it, that change nothing beside the others; and beside which."""
        return {}


C = TypeVar("C", bound=Config)


def load_recipe(path: Path | None, schema: type[C], overrides: Sequence[str] = ()) -> C:
    """Read a TOML recipe into `schema`, or start from the defaults; `overrides` are `table.key=value` with TOML values,
    or `table.key=` for a key that is to be left out.

    Raises ConfigError naming the file and the path of the first wrong key.
    """
    return parse(_read(path, overrides), schema, origin=str(path or "defaults"))


def load_part(path: Path, schema: type[C], overrides: Sequence[str] = ()) -> C:
    """As `load_recipe`, but of those keys alone that `schema` has: for whoever needs no more of a recipe, and should
    not load what the rest describes.
    """
    raw = {key: value for key, value in _read(path, overrides).items() if key in schema.model_fields}
    return parse(raw, schema, origin=str(path))


def overridden(config: C, overrides: Sequence[str]) -> C:
    """The same config with other values for some keys, checked as a whole. Raises ConfigError, as `load_recipe`."""
    raw = config.model_dump(exclude_unset=True)
    for override in overrides:
        _apply_override(raw, override)
    return parse(raw, type(config), origin="the change")


def _read(path: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        raw = tomllib.loads(path.read_text()) if path else {}
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    return raw


def parse(raw: dict[str, Any], schema: type[C], origin: str) -> C:
    """Validate a plain dictionary; errors are reported one line a key, with the key's dotted path."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(dict(item), schema) for item in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None


def _explain(item: dict[str, Any], schema: type[BaseModel]) -> str:
    table: Any = schema
    where = []
    for part in item["loc"]:
        if (member := _member(table, part)) is not None:
            table = member  # the part is not a key: it is the `kind` by which a table was told from others
            continue
        where.append(str(part))
        fields = getattr(table, "model_fields", {})
        if part in fields or item["type"] != "extra_forbidden":
            table = fields[part].annotation if part in fields else None
    path = ".".join(where)
    if item["type"] != "extra_forbidden":
        return f"{path}: {item['msg']}" if path else item["msg"]
    return f"{path}: unknown key; known here: {', '.join(sorted(getattr(table, 'model_fields', {})))}"


def _member(union: Any, kind: object) -> type[BaseModel] | None:
    """The table of a union of tables whose `kind` is this."""
    for member in get_args(union):
        table = get_args(member)[0] if get_origin(member) is Annotated else member
        field = getattr(table, "model_fields", {}).get("kind")
        if field is not None and field.default == kind:
            return table
    return None


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise ConfigError(f"override {override!r} is not of the form table.key=value")
    *tables, last = key.strip().split(".")
    for table in tables:
        if not value.strip() and table not in raw:
            return
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"override {override!r}: {table} is a value, not a table")
    if not value.strip():
        raw.pop(last, None)
        return
    try:
        raw[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        raw[last] = value  # a bare word is a string: `--set model.path=base` needs no quotes
