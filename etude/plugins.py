"""Finds by name what Etude is made of and what others add to it.

A name is an entry point of the group `etude.<group>`, which any installed package may offer, or an import path
`package.module:attribute`. Etude's own are entry points too (pyproject.toml), and are listed nowhere else. Owns the
search, and `named`, which checks a config key that holds such a name. Imports nothing before it is asked for;
docs/extending.md has one example of each group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import or_
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Tag

from etude.errors import ConfigError, EtudeError, MissingDependency

OURS = ("advantages", "backends", "engines", "families", "images", "losses", "sinks")
"""Groups in which Etude itself is; `tools` and `rewards` hold what others add."""


_no_paths: ContextVar[str | None] = ContextVar("no_paths", default=None)


@contextmanager
def without_paths(why: str) -> Generator[None]:
    """Meanwhile an import path is refused with ConfigError, which says `why`: of a config that somebody else may have
    written, wherever in it the path stands. To look a module up can be to run code of its package already.
    """
    token = _no_paths.set(why)
    try:
        yield
    finally:
        _no_paths.reset(token)


def _check_path(name: str) -> None:
    if (why := _no_paths.get()) is not None:
        raise ConfigError(f"{name}: {why}")


@cache
def _installed(path: tuple[str, ...]) -> Any:
    """Every entry point there is. To find them opens a file of each installed package, and each config that holds a
    name asks for it: so they are found once, or once more where `sys.path` is another."""
    return entry_points()


@cache
def _offered(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(_installed(path).select(group=f"etude.{group}"))


def _points(group: str) -> tuple[EntryPoint, ...]:
    return _offered(group, tuple(sys.path))


def names(group: str) -> tuple[str, ...]:
    """What is installed of a group, without the import paths that it takes as well."""
    found = sorted({point.name for point in _points(group)})
    if not found and group in OURS:  # an editable installation whose metadata are older than its code
        raise MissingDependency(f"no {group} are installed: run `pip install -e .` again in etude's directory")
    return tuple(found)


@cache
def find(group: str, name: str, kind: Any = Callable) -> Any:
    """What has this name. Raises ConfigError saying which names there are, or why this one cannot be had."""
    if ":" in name:
        _check_path(name)
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{group}: {name} cannot be imported: {error}") from error
    else:
        found = _load(group, name)
    if not isinstance(found, kind):
        raise ConfigError(f"{group}: {name} is {type(found).__name__}, and must be {kind.__name__}")
    return found


def loaded(group: str, kind: type) -> dict[str, Any]:
    """All of a group by its name, but for what cannot be had: whoever asks for that by name is told why."""
    found = {}
    for name in names(group):
        with suppress(ConfigError):
            found[name] = find(group, name, kind)
    return found


def _load(group: str, name: str) -> Any:
    """By its entry point. A name that two packages offer is refused: which of them came first would be chance."""
    points = [point for point in _points(group) if point.name == name]
    offered = sorted({point.dist.name if point.dist else "?" for point in points})
    if not points:
        raise ConfigError(f"{group}: {_unknown(group, name)}")
    if len(offered) > 1:
        raise ConfigError(f"{group}: {name!r} is offered by {' and '.join(offered)}; uninstall one, or have it renamed")
    try:
        return points[0].load()
    except EtudeError:
        raise
    except Exception as error:  # somebody else's module, which may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{group}: {name!r} of the package {offered[0]} cannot be loaded ({what}); repair that package, or "
            f"remove it: pip uninstall {offered[0]}"
        ) from error


def known(group: str, name: str, of: Sequence[str] = ()) -> str:
    """The name, if it can be one of the group: of an import path no more than its packages are imported. Raises
    ValueError saying what there is, what it may be `of` besides included.
    """
    if ":" in name:
        _check_path(name)
        try:
            found = find_spec(name.partition(":")[0]) is not None
        except ImportError:
            found = False
        if not found:
            raise ValueError(f"no module {name.partition(':')[0]} can be imported here")
    elif name not in names(group):
        raise ValueError(_unknown(group, name, of))
    return name


def named(group: str, kind: type | None = None) -> AfterValidator:
    """Of a config key that holds a name of that group: `Annotated[str, named("losses")]`. With a `kind`, it is imported
    at once, and must be of it; for what is quick to import.
    """

    def check(name: str) -> str:
        known(group, name)
        try:
            _ = kind and find(group, name, kind)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return name

    return AfterValidator(check)


def one_of(group: str, tables: Iterable[tuple[str, type]], kind: Callable[[Any], str]) -> Any:
    """The type of a table that is one of several of a group, each with its name; `kind` says of a table which it is
    meant for.
    """
    tables = [*tables]

    def which(table: Any) -> str:
        if (name := kind(table)) in names(group) and name not in dict(tables):
            find(group, name)  # says why it cannot be had
        return name

    annotated: Any = Annotated  # made as the program runs, so not one that a type checker could read
    return annotated[reduce(or_, (annotated[table, Tag(name)] for name, table in tables)), Discriminator(which)]


def _unknown(group: str, name: str, of: Sequence[str] = ()) -> str:
    return f"{name!r} is not known; there is {', '.join((*of, *names(group)))}, or package.module:attribute"
