"""When each file of a workspace was changed, as its sandbox says.

Owns `Stamps`, `TooMany` and `stamps_of`: one command that looks at all files that are to be searched.
"""

from __future__ import annotations

import posixpath
import stat
from dataclasses import dataclass, field, replace
from functools import cached_property

from etude.environments.base import Sandbox
from etude.harness.tools.agent.listing import listing
from etude.harness.tools.base import ToolConfig, ToolError, overdue
from etude.search import stamp_of
from etude.search.content import MOST_BYTES, too_long

_MAX_FILES = 60_000
LISTING_BYTES = 16_000_000


class TooMany(ToolError):
    """They cannot be looked at in one go, or not in time."""


@dataclass(frozen=True)
class Stamps:
    """Of the files that were listed: those that can be indexed, with their stamps (`search.stamp_of`), and in `others`
    what is too long for that or no plain file; which of the first have a second name; and what of all is too long for
    pieces."""

    files: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    linked: frozenset[str] = frozenset()
    long: frozenset[str] = frozenset()

    @cached_property
    def folders(self) -> set[str]:
        """The directories they are in."""
        found = {posixpath.dirname(path) for path in (*self.files, *self.others)}
        for folder in list(found):
            while (folder := posixpath.dirname(folder)) and folder not in found:
                found.add(folder)
        return found


async def stamps_of(sandbox: Sandbox, config: ToolConfig, path: str = ".", glob: str | None = None) -> Stamps:
    """Of the files below a path, or of those that a glob names. Raises ToolError where they cannot be had, TooMany
    where that is so whatever is asked."""
    listed = listing(path, glob)
    command = f"date +%s; {listed} | xargs -0r stat --printf '%s %.9Y %.9Z %i %h %f %n\\0' -- 2>/dev/null"
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=LISTING_BYTES)
    if done.exit_code == 3:
        raise ToolError(f"no such file or directory: {path}")
    if done.timed_out:
        overdue()
    if done.timed_out or done.log_path:
        raise TooMany("there are too many files here to be indexed; use grep")
    now, _, rows = done.output.decode("utf-8", "surrogateescape").partition("\n")
    found, linked, long = Stamps(), [], []
    for row in filter(None, rows.split("\0")):
        size, changed, status_changed, inode, names, mode, name = row.split(" ", 6)
        plain = stat.S_ISREG(int(mode, 16))
        long += [name] if plain and too_long(name, int(size)) else []
        if plain and int(size) <= MOST_BYTES and len(found.files) < _MAX_FILES:
            age_s = float(now) - float(status_changed)
            found.files[name] = stamp_of(int(size), changed, status_changed, int(inode), age_s)
            linked += [name] if names != "1" else []
        else:
            found.others.append(name)
    return replace(found, linked=frozenset(linked), long=frozenset(long))
