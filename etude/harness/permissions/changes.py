"""Which words of a command name what it changes. Owns `written_words`; what may be changed is the judge's to say."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from etude.harness.permissions.literals import Word
from etude.harness.permissions.shell import SimpleCommand

_WRITES_ALL = {"rm", "rmdir", "mkdir", "touch", "tee", "truncate", "chmod", "chown", "chgrp", "shred", "unlink", "mv"}
_WRITES_LAST = {"cp", "ln", "install", "rsync", "scp"}


def parent_of_pattern(raw: str) -> str | None:
    """The directory below which every match of a pattern lies; None where that is not certain."""
    found = re.fullmatch(r"([\w./-]*/)?[\w.-]*[*?][\w./*?-]*", raw)
    if found is None or ".." in raw.split("/") or re.search(r"(^|/)\.[^/]*[*?]", raw):  # `.*` matches `..`
        return None
    return found[1] or "."


def written_words(command: SimpleCommand) -> Sequence[Word]:
    """The words of a command that name what it changes."""
    name = posixpath.basename(command.words[0].text or "")
    operands = [word for word in command.words[1:] if word.text is None or not word.text.startswith("-")]
    if name in _WRITES_ALL:
        return operands
    if name in _WRITES_LAST:
        targets = [word for word in command.words if (word.text or "").startswith("--target-directory=")]
        after = [b for a, b in zip(command.words, command.words[1:], strict=False) if a.text in ("-t",)]
        return [*operands[-1:], *targets, *after]
    if name == "dd":
        return [word for word in operands if (word.text or "of=").startswith("of=")]
    if name == "sed" and any((word.text or "").startswith(("-i", "--in-place")) for word in command.words):
        return operands[1:]
    return []
