"""From which directories each command of a line could be run.

Owns `run_from` and `leads_to`. A `cd` may fail, so that after it a relative path is meant from either directory; behind
`cd x &&` only from the new one. Where something may run twice or later than it stands (a loop, a function, a trap), any
`cd` of the line may come before it, and no chain is what it seems: a function can be named `cd`. Opens nothing, judges
nothing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from etude.environments.base import WORKSPACE
from etude.harness.permissions.shell import SimpleCommand

_MOST = 16
Directories = list[str | None]
"""Absolute, as commands name them; None is any."""


def run_from(commands: Sequence[SimpleCommand], env: Mapping[str, str]) -> Iterator[tuple[SimpleCommand, Directories]]:
    """Each command with its directories, in order."""
    anywhere: Directories = [WORKSPACE]
    for command in commands:
        anywhere = _either(anywhere, leads_to(command, anywhere, env))
    straight = not any(command.again for command in commands)
    running: Directories = [WORKSPACE]
    here, chain = running, 0
    for command in commands:
        if not (command.chain and command.chain == chain and straight):
            here, chain = running, command.chain
        yield command, [None] if command.astray else anywhere if command.again else here
        if (moved := leads_to(command, here, env)) is not None:
            running = _either(running, leads_to(command, running, env))
            here = moved if chain and straight else running


def _either(before: Directories, after: Directories | None) -> Directories:
    both = list(dict.fromkeys([*before, *(after or ())]))
    return both if len(both) <= _MOST else [None]


def leads_to(command: SimpleCommand, start: Directories, env: Mapping[str, str]) -> Directories | None:
    """Where a `cd` that succeeds leads to from these; None for any other command."""
    if not command.words or command.words[0].text not in ("cd", "pushd", "popd"):
        return None
    target = command.words[1].text if len(command.words) == 2 else None
    if target is None or target.startswith("-") or command.words[0].text == "popd":
        return [None]
    relative = not target.startswith(("/", "~"))
    if relative and (command.again or "CDPATH" in env):
        return [None, *start]
    moved: Directories = []
    for place in start if relative else [WORKSPACE]:
        for way in (posixpath.expanduser(target), target):
            full = None if place is None else posixpath.join(place, way)
            # a shell takes `link/..` for where the link lies, the kernel for what is above where it leads
            moved += [full, None if full is None else posixpath.normpath(full)]
    return list(dict.fromkeys(moved))
