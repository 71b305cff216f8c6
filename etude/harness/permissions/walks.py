"""Where a command that goes through all below something starts, and what it comes to.

Owns `starts`, `met` and `tells_ripgrep`. Looks at names and links, and opens no file: what ripgrep's own say is in
`permissions.ignoring`. What of it may be read is for the judge.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.harness.permissions.effort import Effort
from etude.harness.permissions.finding import finds, finds_links
from etude.harness.permissions.ignoring import CHOOSING, TakenBack
from etude.harness.permissions.paths import WorkspacePaths
from etude.harness.permissions.reading import passes_over, roots
from etude.harness.permissions.secret_files import PACKAGES, SECRET_DIRECTORIES, SECRET_NAMES
from etude.harness.permissions.shell import SimpleCommand
from etude.harness.permissions.unreadable import LinkedSecrets

_MOST_WALKED = 20_000
"""Directories looked at below one that a command goes through."""


def tells_ripgrep(commands: Sequence[SimpleCommand]) -> Iterator[str]:
    """The redirects of a line by which it writes what ripgrep passes over, where it runs that too."""
    if any(command.words and os.path.basename(command.words[0].text or "") == "rg" for command in commands):
        for redirect in (each for command in commands for each in command.redirects if each.writes):
            if os.path.basename(redirect.target.text or "") in map(os.path.basename, CHOOSING):
                yield redirect.target.raw


def starts(
    words: Sequence[str | None],
    names: Sequence[list[str] | None],
    directories: Sequence[str | None],
    place: WorkspacePaths,
) -> list[str]:
    """The real paths that a command could go through; its own directory, where its words name nothing that is there.
    `names` are what each word could stand for."""
    given = roots(words)
    if place.root is None or all(name.startswith(("\0<(", "\0>(")) for name in given):
        return []
    stands_for = {word: found or [] for word, found in zip(words, names, strict=True)}
    named = [name for word in given for name in stands_for.get(word, [word])]
    known = [directory for directory in directories if directory is not None]
    tops = {top for name in named or ["."] for directory in known for top in place.all_on_host(name, directory)}
    if not any(os.path.lexists(top) for top in tops):
        tops = {place.on_host(directory) for directory in known}
    return _outermost(sorted({os.path.realpath(top) for top in tops}))


def _outermost(tops: Sequence[str]) -> list[str]:
    """Without those that a walk from one before comes to anyway, as it does where no package lies between."""
    found = list[str]()
    for top in tops:
        above = f"{found[-1].rstrip('/')}/" if found else "\0"
        if not (top.startswith(above) and _reached(above, top)):
            found.append(top)
    return found


def _reached(above: str, top: str) -> bool:
    """Whether a walk from there comes here: through no package, and through directories that it may list alone."""
    steps = top.removeprefix(above).split("/")[:-1]
    between = itertools.accumulate(steps, os.path.join, initial=above)
    return PACKAGES.isdisjoint((*steps, os.path.basename(top))) and all(
        os.access(step, os.R_OK | os.X_OK) for step in between
    )


def met(
    top: str, words: Sequence[str | None], links: bool, secrets: LinkedSecrets | None, effort: Effort
) -> Iterator[str | None]:
    """What a command comes to from here, of the links that it may follow and, if it is given `secrets`, outside of
    packages of what has a secret's name, or is one by a hard link, and it may read; a None at the end where there may
    be more."""
    wanted = finds(words) if words[0] == "find" else re.compile("")
    links &= words[0] != "find" or finds_links(words)
    back = TakenBack(effort) if words[0] == "rg" else None
    if back:
        for above in Path(top).parents:
            back.look(above)
    for count, (directory, directories, files) in enumerate(os.walk(top)):
        if count > _MOST_WALKED:
            yield None
            return
        effort.spend(1 + len(directories) + len(files))
        if back:
            back.look(Path(directory))
        here = secrets is not None and PACKAGES.isdisjoint(directory.removeprefix(top).split("/"))
        for at, name in enumerate((*directories, *files)):
            path = os.path.join(directory, name)
            secret = here and (SECRET_DIRECTORIES if at < len(directories) else SECRET_NAMES).fullmatch(name)
            secret = secret or (here and secrets is not None and secrets.any and secrets.named(path))
            secret = secret and not (passes_over(words, name) and not (back and back.takes(name)))
            if secret or (links and wanted.match(name) and os.path.islink(path)):
                yield path
        directories[:] = [name for name in directories if name not in PACKAGES or (links and wanted.match(name))]
