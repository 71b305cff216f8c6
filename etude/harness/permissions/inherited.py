"""What a rule that was written for a directory says in one below it.

Owns `inherited`. A rule's relative paths begin where it was written; the judge and the sandbox read every path from the
workspace. So `read(infra/**)` of `/engine` is, for a workspace `/engine/infra/aws`, both `read(/engine/infra/**)` and
`read(**)`: by what a path leads to, and by what it is called in the workspace, or in a copy of it. Only for rules that
ask or deny: where two patterns are close, the one that matches more is taken. Looks at no file.
"""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Iterator, Sequence

from etude.harness.permissions.globs import Glob
from etude.harness.permissions.rules import READS, RUNS, Rule


def inherited(rule: Rule, above: str, project: str) -> list[str]:
    """What a rule of the directory `above` is, as texts, for a `project` below it."""
    pattern = rule.pattern
    if pattern is None or pattern.startswith(("/", "~")):
        return [rule.text]
    if rule.names(RUNS[0]):
        return [f"{rule.tools}({each})" for each in _commands(rule.words, above, project)]
    below = posixpath.relpath(project, above)
    # `**/x` speaks of whatever lies outside of the workspace: by name, for nobody can look through all of it
    found = [pattern if pattern.startswith("**/") else posixpath.join(above, pattern)]
    if rule.names(READS[0]) and any(rule.matches_path(project, each) for each in (below, *_directories(below))):
        found.append("**")  # nothing can be read in a directory that cannot
    found += _suffixes(pattern, f"{below}/")
    return [f"{rule.tools}({each})" for each in dict.fromkeys(found)]


def _commands(words: Sequence[str], above: str, project: str) -> Iterator[str]:
    """A command that is a relative path is another word from below, and may be named by its whole path."""
    name, rest = words[0], [_quoted(word) for word in words[1:]]
    yield " ".join([_quoted(name), *rest])
    if "/" in name and not name.startswith(("/", "~")):
        whole = posixpath.normpath(posixpath.join(above, name))
        yield " ".join([_quoted(posixpath.relpath(whole, project)), *rest])
        yield " ".join([_quoted(glob.escape(above) + whole.removeprefix(above)), *rest])


def _quoted(word: str) -> str:
    """For `shlex`; a pattern's own signs stay as they are, so that it reads as it was written."""
    return word if re.fullmatch(r"[\w@%+=:,./*?\[\]!-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _directories(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _suffixes(pattern: str, prefix: str) -> Iterator[str]:
    """What of a pattern is left to be matched once it has matched `prefix`, which ends with a slash."""
    for left in Glob(pattern).left_after(prefix):
        named = left if left == pattern else re.sub(r"^(\*\*/)+", "", left)
        # with `**/` first it would speak of paths outside as well, and with `~` of a home
        for each in [left] if left == named else [named, f"*/**/{named}"]:
            if each and not each.startswith("/"):
                yield "?" + each[1:] if each.startswith("~") else each
