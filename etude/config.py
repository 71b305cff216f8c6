"""The base of every config: frozen, typed, read from TOML, unknown keys refused with their path.

Owns `Config` and `load_recipe`. Concrete configs live beside the class they build; a recipe is one TOML file whose
tables are those configs. Never reads the environment, never fills a key from anywhere but the file and its overrides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from etude.errors import ConfigError


class Config(BaseModel):
    """A frozen, strict config. Construct it directly in Python, or from TOML with `load_recipe`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)


C = TypeVar("C", bound=Config)


def load_recipe(path: Path, schema: type[C], overrides: Sequence[str] = ()) -> C:
    """Read a TOML recipe into `schema`; `overrides` are `table.key=value` with TOML values.

    Raises ConfigError naming the file and the path of the first wrong key.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe; the shipped ones are in recipes/") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    return parse(raw, schema, origin=str(path))


def parse(raw: dict[str, Any], schema: type[C], origin: str) -> C:
    """Validate a plain dictionary; errors are reported one line a key, with the key's dotted path."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(dict(item), schema) for item in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None


def _explain(item: dict[str, Any], schema: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg']}"
    table: Any = schema
    for part in item["loc"][:-1]:
        field = getattr(table, "model_fields", {}).get(part)
        table = field.annotation if field is not None else None
    known = ", ".join(sorted(getattr(table, "model_fields", {})))
    return f"{where}: unknown key; known here: {known}"


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise ConfigError(f"override {override!r} is not of the form table.key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string: `--set model.path=base` needs no quotes
    *tables, last = key.strip().split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"override {override!r}: {table} is a value, not a table")
    raw[last] = parsed
