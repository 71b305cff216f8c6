"""When each file of a workspace was changed, as its sandbox says.

Owns `Stamps`, `TooMany` and `stamps_of`: one command that looks at all files that are to be searched.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from functools import cached_property

from etude.environments.base import Sandbox
from etude.harness.tools.agent.listing import listing
from etude.harness.tools.base import ToolConfig, ToolError, overdue
from etude.search import settled, way_of_taking_in
from etude.search.content import MOST_BYTES, too_long

MOST_FILES = 60_000
LISTING_BYTES = 16_000_000
LOOK = "xargs -0r stat --printf '%s %.9Y %.9Z %i\\t%Z %h %f\\t%n\\0' -- 2>/dev/null"
"""Shell that prints of each file it is told its stamp, when its status was changed, how many names it has, what it is,
and its own."""


class TooMany(ToolError):
    """They cannot be looked at in one go, or not in time."""


@dataclass(frozen=True)
class Stamps:
    """Of the files that were listed: those that can be indexed, with their stamps, as `search.workspace` makes them,
    and in `others` what is too long for that or no plain file; which of the first have a second name; and what of all
    is too long for pieces."""

    files: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    linked: frozenset[str] = frozenset()
    long: frozenset[str] = frozenset()

    @cached_property
    def folders(self) -> set[str]:
        """The directories they are in."""
        found = {path.rpartition("/")[0] for path in (*self.files, *self.others)}
        for folder in list(found):
            while (folder := folder.rpartition("/")[0]) and folder not in found:
                found.add(folder)
        return found


async def stamps_of(sandbox: Sandbox, config: ToolConfig, path: str = ".", glob: str | None = None) -> Stamps:
    """Of the files below a path, or of those that a glob names. Raises ToolError where they cannot be had, TooMany
    where that is so whatever is asked."""
    looked = f"date +%s; {listing(path, glob)} | {LOOK}"
    done = await sandbox.exec(looked, timeout_s=config.command_timeout_s, max_output_bytes=LISTING_BYTES)
    if done.exit_code == 3:
        raise ToolError(f"no such file or directory: {path}")
    if done.timed_out:
        overdue()
    if done.timed_out or done.log_path:
        raise TooMany("there are too many files here to be indexed; use grep")
    return told_of(done.output)


def told_of(output: bytes) -> Stamps:
    """What `date +%s` and `LOOK` have printed."""
    now, _, rows = output.decode("utf-8", "surrogateescape").partition("\n")
    files, others, linked, long = {}, [], [], []
    way = way_of_taking_in()
    for row in filter(None, rows.split("\0")):
        stamp, more, name = row.split("\t", 2)
        changed, names, mode = more.split(" ")
        size = int(stamp[: stamp.index(" ")])
        plain = stat.S_ISREG(int(mode, 16))
        if plain and too_long(name, size):
            long.append(name)
        if plain and size <= MOST_BYTES and len(files) < MOST_FILES:
            files[name] = stamp + way if settled(int(now) - int(changed) - 1) else ""
            if names != "1":
                linked.append(name)
        else:
            others.append(name)
    return Stamps(files, others, frozenset(linked), frozenset(long))
