"""Proposes bugs: one small change in a function that tests name, or several at once.

Owns `bugs`. The levels differ in what the instruction says, and in how much is broken:

    1  one bug; its function and file are named        4  two bugs; failing tests are named
    2  one bug; its file is named                      5  three bugs; nothing is named
    3  one bug; failing tests are named

Changes are those of `tasks.mutate`. Runs nothing.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass

from etude import syntax
from etude.tasks.generate.proposal import Proposal, Source
from etude.tasks.mutate import Mutation, mutations_of

BUGS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 3}
"""How many, by level."""


@dataclass(frozen=True)
class _Site:
    path: str
    function: str
    modules: tuple[str, ...]


def bugs(source: Source, level: int | None, rng: random.Random) -> Iterator[Proposal]:
    """Proposals of that level, or of all, one for every place that can be broken, in the order that `rng` says."""
    places = _sites(source)
    rng.shuffle(places)
    for number, first in enumerate(places):
        wanted = level or rng.choice([each for each, bugs in BUGS.items() if bugs <= len(places)])
        others = places[:number] + places[number + 1 :]
        if len(others) < BUGS[wanted] - 1:
            return
        chosen = [first, *rng.sample(others, BUGS[wanted] - 1)]
        broken = [(place, mutation) for place in chosen if (mutation := _bug(source, place, rng)) is not None]
        if len(broken) == len(chosen):
            yield _proposal(source, wanted, broken)


def _sites(source: Source) -> list[_Site]:
    """Every function and method that a test names."""
    found = []
    for path, text in source.modules.items():
        for item in syntax.parse(text).body:
            inner = item.body if isinstance(item, ast.ClassDef) else [item]
            for function in inner:
                if isinstance(function, ast.FunctionDef):
                    prefix = f"{item.name}." if isinstance(item, ast.ClassDef) else ""
                    names = [item.name] if isinstance(item, ast.ClassDef) else []
                    names += [function.name] if not function.name.startswith("__") else []
                    if names and (modules := source.naming(names)):
                        found.append(_Site(path, f"{prefix}{function.name}", modules))
    return found


def _bug(source: Source, place: _Site, rng: random.Random) -> Mutation | None:
    try:
        possible = mutations_of(source.modules[place.path], place.function)
    except StopIteration:  # defined twice, and first as something else
        return None
    return rng.choice(possible) if possible else None


def _proposal(source: Source, level: int, bugs: list[tuple[_Site, Mutation]]) -> Proposal:
    broken: dict[str, str] = {}
    for place, mutation in bugs:
        broken[place.path] = mutation.apply(broken.get(place.path, source.modules[place.path]))
    alone = [{place.path: mutation.apply(source.modules[place.path]).encode()} for place, mutation in bugs]
    [(first, mutation), *_] = bugs
    modules = sorted({module for place, _ in bugs for module in place.modules})
    return Proposal(
        kind="bug",
        name="-".join(f"{place.function.replace('.', '-')}-{bug.line}-{bug.bug}" for place, bug in bugs),
        instruction=_instruction(level, first),
        broken={path: text.encode() for path, text in broken.items()},
        answer={path: source.tree.files[path] for path in broken},
        modules=tuple(modules),
        level=level,
        names_tests=level in (3, 4),
        parts=tuple(alone) if len(alone) > 1 else (),
        about={
            "path": first.path, "function": first.function, "bug": mutation.bug, "old": mutation.wrong.strip(),
            "new": mutation.right.strip(), "bugs": [bug.bug for _, bug in bugs],
        },
    )  # fmt: skip


def _instruction(level: int, place: _Site) -> str:
    return {
        1: f"There is a bug in `{place.function}` in {place.path}. Find it and fix it.",
        2: f"There is a bug in {place.path}. Find it and fix it.",
        3: "A test fails that used to pass. Find out why, and fix it.",
        4: "Tests fail that used to pass, for two reasons that have nothing to do with each other. Fix both.",
        5: "Three things broke since the last release. Find them with the tests, and fix them.",
    }[level]
