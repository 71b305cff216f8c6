"""Finds by name what Etude is made of and what others add to it.

A name is an entry point of the group `etude.<group>`, which any installed package may offer, or an import path
`package.module:attribute`. Etude's own are entry points too (pyproject.toml), and are listed nowhere else. Owns the
search, and `named`, which checks a config key that holds such a name. Imports nothing before it is asked for;
docs/extending.md has one example of each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import or_
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Tag

from etude.errors import ConfigError, MissingDependency

OURS = ("advantages", "backends", "engines", "families", "images", "losses")
"""Groups in which Etude itself is; `tools` and `rewards` hold what others add."""


def names(group: str) -> tuple[str, ...]:
    """What is installed of a group, without the import paths that it takes as well."""
    found = sorted({point.name for point in entry_points(group=f"etude.{group}")})
    if not found and group in OURS:  # an editable installation whose metadata are older than its code
        raise MissingDependency(f"no {group} are installed: run `pip install -e .` again in etude's directory")
    return tuple(found)


@cache
def find(group: str, name: str) -> Any:
    """What has this name. Raises ConfigError saying which names there are."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{group}: {name} cannot be imported: {error}") from error
    for point in entry_points(group=f"etude.{group}", name=name):
        return point.load()
    raise ConfigError(f"{group}: {_unknown(group, name)}")


def known(group: str, name: str, of: Sequence[str] = ()) -> str:
    """The name, if it can be one of the group: nothing is imported. Raises ValueError saying what there is, what it may
    be `of` besides included.
    """
    if ":" in name:
        try:
            found = find_spec(name.partition(":")[0]) is not None
        except ImportError:
            found = False
        if not found:
            raise ValueError(f"no module {name.partition(':')[0]} can be imported here")
    elif name not in names(group):
        raise ValueError(_unknown(group, name, of))
    return name


def named(group: str) -> AfterValidator:
    """Of a config key that holds a name of that group: `Annotated[str, named("losses")]`."""
    return AfterValidator(lambda name: known(group, name))


def one_of(tables: Iterable[tuple[str, type]], kind: Any) -> Any:
    """The type of a table that is one of several, each with its name; `kind` says of a table which it is meant for."""
    annotated: Any = Annotated  # made as the program runs, so not one that a type checker could read
    return annotated[reduce(or_, (annotated[table, Tag(name)] for name, table in tables)), Discriminator(kind)]


def _unknown(group: str, name: str, of: Sequence[str] = ()) -> str:
    return f"{name!r} is not known; there is {', '.join((*of, *names(group)))}, or package.module:attribute"
