"""What a `find` goes through, and what of it could reach the command that it runs.

Owns `roots_of_find`, `finds` and `finds_links`. Its words are read as find reads them: each test takes so many words,
and what an action takes is no test. Only tests before the first action that runs something choose what that is given.
Where a word is not known, everything is found.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator, Sequence

_ALONE = {
    "-a", "-and", "-daystart", "-depth", "-d", "-empty", "-executable", "-ls", "-mount", "-nogroup", "-noleaf",
    "-nouser", "-nowarn", "-print", "-print0", "-readable", "-true", "-warn", "-writable", "-xdev",
}  # fmt: skip
_TAKES_ONE = re.compile(
    r"-[acm](min|time)|-[ac]?newer|-newer[aBcm][aBcmt]|-i?(name|path|lname|regex|wholename)|-(max|min)depth|-x?type|"
    r"-fstype|-gid|-group|-inum|-links|-perm|-printf|-regextype|-samefile|-size|-uid|-used|-user"
)
_RUNS = {"-exec", "-execdir", "-ok", "-okdir"}


def roots_of_find(words: Sequence[str | None]) -> list[str]:
    """Where it starts."""
    return [word for word in _parts(words)[0] if word] or ["."]


def finds(words: Sequence[str | None]) -> re.Pattern[str]:
    """The names of what it could give to a command."""
    named = [value for test, value in _tests(words) if test == "-name"]
    # find takes a backslash in a pattern, classes in brackets, and by the locale more than one byte for a `?`
    plain = named and not set(named[0]) & set("\\[?\0")
    return re.compile(fnmatch.translate(named[0]) if plain else "", re.DOTALL)


def finds_links(words: Sequence[str | None]) -> bool:
    """Whether links are among it."""
    return not {("-type", "f"), ("-type", "d")} & set(_tests(words))


def _parts(words: Sequence[str | None]) -> tuple[list[str], list[str], list[str]]:
    """Of a find: its starts, the options before them, and its expression."""
    known, at = [word or "" for word in words[1:]], 0
    while at < len(known) and re.fullmatch(r"-[HLPD]|-O\d*|--", known[at]):
        at += 2 if known[at] == "-D" else 1
    starts = list(itertools.takewhile(lambda word: not re.match(r"[-(!]", word), known[at:]))
    return starts, known[:at], known[at + len(starts) :]


def _tests(words: Sequence[str | None]) -> list[tuple[str, str]]:
    """All that a file must pass to be given to a command, each with its word; none where that is not certain."""
    _, options, expression = _parts(words)
    found = list(_read(expression))
    return [] if None in found or "-L" in options else [each for each in found if each is not None]


def _read(expression: Sequence[str]) -> Iterator[tuple[str, str] | None]:
    at = 0
    while at < len(expression) and expression[at] not in _RUNS:
        word = expression[at]
        takes = 1 if _TAKES_ONE.fullmatch(word) else 0
        if not (takes or word in _ALONE) or at + takes >= len(expression):
            yield None  # an `or`, a `not`, a bracket, or what is not known
            return
        yield word, expression[at + 1] if takes else ""
        at += 1 + takes
