"""Whether the commands that bash runs of a line are those that the judge has read, word for word.

Owns `unread`. A parser that takes a line otherwise than a shell does leaves words that nobody judges, whatever they do:
delete, run a program, open a file. So this asks neither what a line opens nor what rules say of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from denied_reads.trial import Trial
from etude.harness.permissions.literals import Word
from etude.harness.permissions.shell import SimpleCommand, read_script
from etude.harness.permissions.unwrap import unwrap

_ASSIGNS = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=.*", re.DOTALL)
_DECLARES = ("declare", "export", "local", "readonly", "typeset")
_STARTS = ("bash", "command", "dash", "env", "find", "nice", "sh", "timeout", "trap", "xargs")
_HEADS = ("for", "case", "select", "[[", "((")
"""What bash tells beside commands."""


def unread(trial: Trial, lines: Sequence[str]) -> list[tuple[str, str]]:
    """The lines, and a command of each that bash ran and the judge has not read."""
    found = []
    for line, told in zip(lines, trial.traced(lines), strict=True):
        read = [_pattern(command) for command in _commands(line)]
        ran = ("".join(f"{word}\0" for word in words) for words in _ran(told))
        odd = next((words for words in ran if not _known(words, read, line)), None)
        if odd is not None:
            found.append((line, odd))
    return found


def _known(words: str, read: Sequence[re.Pattern[str]], line: str) -> bool:
    """Behind `eval`, `time` and `trap` what starts another command is taken apart at once, and only that is judged."""
    inner = words.partition("\0")[0] in _STARTS and re.search(r"\b(eval|time|trap)\b", line) is not None
    return inner or any(each.fullmatch(words) for each in read)


def _commands(line: str) -> Iterator[SimpleCommand]:
    commands = read_script(line)
    yield from commands
    yield from unwrap(commands)


def _pattern(command: SimpleCommand) -> re.Pattern[str]:
    """The words, each with a NUL behind it; one that only a run would tell may be any number of words, and a `~` a
    home."""
    return re.compile("".join(map(_word, command.words)), re.DOTALL)


def _word(word: Word) -> str:
    if word.text is None:
        return r"(?:[^\0]*\0)*"
    home, slash, rest = word.text.partition("/")
    known = r"[^\0]*" + re.escape(slash + rest) if home.startswith("~") else re.escape(word.text)
    return known + "[\0]"


def _ran(told: str) -> Iterator[list[str]]:
    for line in told.splitlines():
        found = re.fullmatch(r"\++ (.*)", line)
        if found is None or "$'" in line:
            continue
        try:
            words = shlex.split(found[1])
        except ValueError:  # cut short
            continue
        words = words[1:] if words[:1] == ["exec"] else words  # which `unwrap` takes from what it runs
        if words and words[0] in _DECLARES:
            words = [word for word in words if not _ASSIGNS.fullmatch(word)]
        if words and words[0] not in _HEADS and not all(map(_ASSIGNS.fullmatch, words)):
            yield words
