"""The files of a workspace, known from one grep to the next without looking at each again.

Owns `Kept`. The directory is watched from this machine (`host.watch`), so between two questions only what has changed
is looked at; whatever is known was said by the sandbox, and what it hides stays hidden. What decides which files git
names and lies outside of the directory, or in git's own, is not watched: `check` is shell that looks at its stamps, and
at those of what it leads to where it is a link, and whoever searches puts it before the search. Where nothing can be
watched there is no `Kept`, and the files are looked at each time. Not noticed is what is written by a second name that
was made after all files were looked at, in a directory that is not watched.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from etude.environments.base import Sandbox
from etude.harness.tools.agent.listing import GIT, is_text, naming
from etude.harness.tools.agent.stamps import LISTING_BYTES, LOOK, MOST_FILES, Stamps, stamps_of, told_of
from etude.harness.tools.base import ToolConfig
from etude.host import beneath
from etude.host.watch import Watch

_MOST_NEW, _MOST_CHANGED, _MOST_LINKED = 50, 1000, 200
_UP = 12
OUTDATED, _SOME_GONE = 4, 123
_DECIDING = f"""
h="${{XDG_CONFIG_HOME:-$HOME/.config}}/git"
if top=$({GIT} rev-parse --show-cdup 2>/dev/null); then
  root="./$top"
  {GIT} ls-files -coz --exclude-standard | head -zn 1 | grep -qz . && printf 'git\\0' || printf 'empty\\0'
  while [ -n "$top" ]; do printf '%s\\0' "$top.gitignore" "$top.git"; top="${{top%../}}"; done
  for name in HEAD index info/exclude config config.worktree; do
    printf '%s\\0' "$({GIT} rev-parse --git-path $name)"
  done
  {GIT} config --path -z --get core.excludesfile | sed -z '/^$/d'
  {GIT} config --list --name-only --show-origin -z | sed -z 's/^file://;t;d'
  printf '%s\\0' /etc/gitconfig ~/.gitconfig "$h/config" "$h/ignore" '' "$root"
  {GIT} -C "$root" config --path --show-origin -z --get-regexp '^include(if\\..*)?\\.path$'
  printf '\\0'
  {GIT} ls-files -oiz --exclude-standard --directory | LC_ALL=C sed -nz 's|/$||p' | {GIT} check-ignore -z --stdin
else
  printf 'none\\0'
  up=; for _ in {" ".join(map(str, range(_UP)))}; do up="../$up"; printf '%s\\0' "$up.git"; done
fi
"""
"""Shell that prints whether git names the files, and those that decide it; after an empty name where the repository is,
and what configuration includes, with the file that says so, whether it is there or not; after another the directories
that git ignores. It also lists those in which every file is ignored, and there what comes later may not be: asked by
its name without a slash, a pattern for what is inside does not match it."""


@dataclass(frozen=True)
class Listed:
    """`stamps` as they were, and the files that may have changed, come or gone since; all of those are to be read."""

    stamps: Stamps
    changed: frozenset[str]


class Kept:
    """Of a sandbox whose workspace is this directory."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where it cannot be watched."""
        self._directory = directory
        self._watch = Watch(directory)
        self._listed: Listed | None = None
        self._deciding: Sequence[str] = ()
        self._watches = False
        self._always: frozenset[str] = frozenset()
        self._named_by = ""
        self._expected = ""
        self.sweeps = 0
        """How often all files were looked at."""

    def close(self) -> None:
        self._watch.close()

    def forget(self) -> None:
        """What is known is not so: look at everything next time."""
        self._listed, self._watches = None, False

    @property
    def check(self) -> str:
        """Shell that exits with `OUTDATED` where git might name other files than it did."""
        return f'[ "$({_stamped(self._deciding)})" = {shlex.quote(self._expected)} ] || exit {OUTDATED}'

    async def listed(self, sandbox: Sandbox, config: ToolConfig) -> Listed:
        """The files as they are now, but for what `check` tells. Raises OSError where that cannot be known any more."""
        changed = self._watch.changed()
        if changed is None:
            self.forget()
        elif self._listed is not None:
            before, self._listed = self._listed, None  # whoever is stopped on the way has forgotten what was told
            self._listed = await self._brought_up(before, changed, sandbox, config)
            self._watches = self._listed is not None
        if self._listed is None:
            self._listed = await self._swept(sandbox, config)
        if not self._watch.in_place():  # a directory above it was renamed: paths lead elsewhere, and nothing tells
            raise OSError(f"{self._directory} is not the directory that is watched")
        return self._listed

    async def looked(self, listed: Listed, sandbox: Sandbox, config: ToolConfig) -> Stamps | None:
        """The stamps of what may have changed, as it is now; None where `listed` is not so any more, or a command
        cannot name it all. Raises OSError where it never can."""
        named = naming(sorted(listed.changed))
        if named is None and listed.changed <= self._always:
            raise OSError("too many files are always looked at, or a name is no text")
        if named is None:
            return None
        prints, env = named
        done = await sandbox.exec(
            f"{self.check}; date +%s; {{ {prints}; }} | {{ unset {' '.join(env)}; {LOOK}; }}",
            timeout_s=config.command_timeout_s, env=env, max_output_bytes=LISTING_BYTES,
        )  # fmt: skip
        if done.exit_code not in (0, _SOME_GONE) or done.log_path or not done.output[:1].isdigit():
            return None
        return told_of(done.output)

    async def watch(self, sandbox: Sandbox, config: ToolConfig) -> None:
        """Begin to watch, where that is yet to be done: `listed` does it as well, but who has other work for this
        process should do this before, for each of so many calls of the system would wait for that."""
        if self._watches:
            return
        said = await sandbox.exec(_DECIDING, timeout_s=config.command_timeout_s, max_output_bytes=LISTING_BYTES)
        if said.timed_out or said.log_path:
            raise OSError("what git ignores is too much to be known")
        told = iter(said.output.decode("utf-8", "surrogateescape").split("\0"))
        self._named_by, *files = takewhile(bool, told)
        files += _included(list(takewhile(bool, told)))
        self._deciding = sorted({posixpath.normpath(each) for each in files})
        self._listed = None  # what happens before all is watched is told by a look at all files alone
        await asyncio.to_thread(self._watch.cover, {each for each in told if each})
        deciding = _stamped(self._deciding)
        first = await sandbox.exec(deciding, timeout_s=config.command_timeout_s, max_output_bytes=LISTING_BYTES)
        self._expected = first.output.decode("utf-8", "surrogateescape").rstrip("\n")
        if not is_text(self.check):
            raise OSError("a file that decides has a name that is no text")
        self._watches = True

    async def _swept(self, sandbox: Sandbox, config: ToolConfig) -> Listed:
        self.sweeps += 1
        await self.watch(sandbox, config)
        stamps = await stamps_of(sandbox, config)
        if len(stamps.linked) > _MOST_LINKED or len(stamps.files) >= MOST_FILES:
            raise OSError("too many files, or with a second name")
        self._always = self._unwatched(stamps) | stamps.linked
        return Listed(stamps, self._always)

    def _unwatched(self, stamps: Stamps) -> frozenset[str]:
        """Files of directories that git ignores and that were watched only after they were looked at."""
        late = stamps.folders - self._watch.covered
        for folder in late:
            self._watch.add(folder)
        return frozenset(path for path in stamps.files if posixpath.dirname(path) in late) if late else frozenset()

    async def _brought_up(
        self, listed: Listed, changed: set[str], sandbox: Sandbox, config: ToolConfig
    ) -> Listed | None:
        """With what has changed since; None where everything is to be looked at."""
        if not changed:
            return listed
        there = {path: beneath.lstat(self._directory, path) for path in changed}
        gone = {path for path, found in there.items() if found is None}
        if any(found and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1) for found in there.values()):
            return None  # what is under its other name is not told
        known = listed.stamps.files.keys() | listed.changed | set(listed.stamps.others)
        if gone and self._named_by == "git" and not any(beneath.lstat(self._directory, path) for path in known):
            return None  # where git names no file, others are listed
        new = sorted(changed - gone - known)
        if len(new) > _MOST_NEW or len(listed.changed) + len(changed) > _MOST_CHANGED:
            return None
        if new and self._named_by != "none":
            names = " ".join(map(shlex.quote, new))
            command = f"{GIT} --literal-pathspecs ls-files -coz --exclude-standard -- {names}"
            if self._named_by != "git" or not is_text(command):
                return None
            done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=LISTING_BYTES)
            if done.exit_code != 0 or done.log_path:
                return None
            new = [os.fsdecode(name) for name in done.output.split(b"\0") if name]
        return Listed(listed.stamps, (listed.changed | (changed & known)).union(new))


def _stamped(paths: Sequence[str]) -> str:
    names = " ".join(map(shlex.quote, paths))
    printed = "--printf '%i %s %.9Y %.9Z %n\\n'"
    return f"{{ stat {printed} -- {names}; stat -L {printed} -- {names}; }} 2>/dev/null"


def _included(told: Sequence[str]) -> list[str]:
    """What `_DECIDING` says of that: after the repository's place pairs of an origin and a key with its value."""
    root, *pairs = told or [""]
    found = []
    for origin, said in zip(pairs[::2], pairs[1::2], strict=False):
        folder = posixpath.dirname(origin.removeprefix("file:"))
        found.append(posixpath.join(root, folder, said.partition("\n")[2]))
    return found
