"""Whether the commands that run of a line are those that the judge has read, word for word.

Owns `unread`. A parser that takes a line otherwise than a shell does leaves words that nobody judges, whatever they do:
delete, run a program, open a file. So this asks neither what a line opens nor what rules say of it. bash tells its
commands, those of every bash below it too, and the kernel each program that a shell, `env`, `xargs`, `find` or another
that only starts commands has started. What other programs start of their own accord (git its pager) is no word of the
line: it is counted as not compared.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from denied_reads.trial import Traced, Trial
from etude.harness.permissions.literals import Word
from etude.harness.permissions.shell import SimpleCommand, Unreadable, read_script
from etude.harness.permissions.unwrap import unwrap

_ASSIGNS = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=.*", re.DOTALL)
_LIST = re.compile(r"[A-Za-z_]\w*\+?=\(")
"""How bash tells a list, which runs nothing by itself."""
_DECLARES = ("declare", "export", "local", "readonly", "typeset")
_STARTERS = {
    "bash", "sh", "dash", "env", "xargs", "find", "timeout", "time", "nice", "ionice", "nohup", "setsid", "stdbuf",
    "taskset", "chrt", "flock", "chronic", "unshare",
}  # fmt: skip
"""Programs that start what they are told to."""
_SHELLS = {"bash", "sh", "dash"}
"""Alone they read a script: its commands are compared, each by itself."""
_HEADS = ("for", "case", "select", "[[", "((")
"""What bash tells beside commands."""
_PIECE = r"\$'(?:[^'\\]|\\.)*'|'[^']*'|\\."
_COMMAND = re.compile(rf"^\++ ((?:{_PIECE}|\$(?!')|[^'\n\\$])*)$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(rf"((?:{_PIECE}|\$(?!')|[^' \n\\$])+)", re.DOTALL)
_HOME = re.compile(r"(?:^|(?<=[=:]))~[^/:]*")
"""bash puts a home in place of it in what looks like a variable that is set, too: `git status a=~/x`."""
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t",
            b"v": b"\v"}  # fmt: skip


def unread(trial: Trial, lines: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """The lines, and a command of each that ran and the judge has not read; and how many commands were not compared."""
    found, not_compared = [], 0
    for line, traced in zip(lines, trial.traced(lines), strict=True):
        read = [_pattern(command) for command in _commands(line)]
        ran, others = _ran(traced)
        not_compared += others
        odd = next((words for words in ran if not any(_known(form, read) for form in words)), None)
        if odd is not None:
            found.append((line, _joined(odd[0])))
    return found, not_compared


def _known(words: Sequence[str], read: Sequence[re.Pattern[str]]) -> bool:
    """Whether these are the words of a command that was judged, or of one that starts others, of which all were: what
    stands behind `env` or `time` is taken apart at once."""
    if _read(_joined(words), read) or (len(words) == 1 and words[0] in _SHELLS):
        return True
    try:
        inner = unwrap([SimpleCommand(tuple(Word(word, word) for word in words))])
    except Unreadable:
        return False
    started = [_joined([word.raw if word.text is None else word.text for word in each.words]) for each in inner]
    return bool(started) and all(_read(each, read) for each in started)


def _read(words: str, read: Sequence[re.Pattern[str]]) -> bool:
    return any(each.fullmatch(words) for each in read)


def _commands(line: str) -> Iterator[SimpleCommand]:
    commands = read_script(line)
    yield from commands
    for command in unwrap(commands):
        yield command
        if command.words and command.words[0].text == "xargs":  # which, told of no command, runs this
            yield SimpleCommand((Word("echo", "echo"), Word(None, "…")))


def _joined(words: Sequence[str]) -> str:
    return "".join(f"{word}\0" for word in words)


def _pattern(command: SimpleCommand) -> re.Pattern[str]:
    """The words, each with a NUL behind it; one that only a run would tell may be any number of words, but for one in
    quotes, and a `~` a home."""
    return re.compile("".join(map(_word, command.words)), re.DOTALL)


def _word(word: Word) -> str:
    if word.text is None:
        one = (word.quoted and "@" not in word.raw) or re.fullmatch(r"\$'(?:[^'\\]|\\.)*'", word.raw, re.DOTALL)
        return r"[^\0]*\0" if one else r"(?:[^\0]*\0)*"
    known = r"[^\0]*".join(map(re.escape, _HOME.split(word.text)))
    return known + "[\0]"


def _ran(traced: Traced) -> tuple[list[list[list[str]]], int]:
    """The commands, each in the forms that it may have been judged in, and how many more there were."""
    ran, others = [], traced.unread
    for by, path, words in traced.started:
        if not by:
            continue  # bash itself
        if posixpath.basename(by) in _STARTERS:
            # `exec -a NAME` gives a program another name than its own
            renamed = (
                [] if not words or posixpath.basename(path) == posixpath.basename(words[0]) else [path, *words[1:]]
            )
            ran.append([words, *([[posixpath.basename(path), *words[1:]], renamed] if renamed else [])])
        else:
            others += 1
    commands = _COMMAND.findall(traced.told)
    others += len(re.findall(r"^\++ ", _COMMAND.sub("", traced.told), re.MULTILINE))
    for command in commands:
        words = [_unquoted(word) for word in _WORD.findall(command)]
        if words and words[0] in _DECLARES:
            words = [word for word in words if not _ASSIGNS.fullmatch(word)]
        if words == ["eval"]:
            continue  # of nothing: the judge has no command for it
        if words and words[0] not in _HEADS and not _LIST.match(words[0]) and not all(map(_ASSIGNS.fullmatch, words)):
            ran.append([words])
    return ran, others


def _unquoted(word: str) -> str:
    return re.sub(_PIECE, lambda found: _piece(found[0]), word, flags=re.DOTALL)


def _piece(piece: str) -> str:
    if piece.startswith("\\"):
        return piece[1:]
    if piece.startswith("'"):
        return piece[1:-1]
    plain = _ESCAPE.sub(
        lambda found: bytes([int(found[1], 8) & 255]) if found[1] else _ESCAPES.get(found[2], found[2]),
        piece[2:-1].encode(errors="surrogateescape"),
    )
    return plain.decode(errors="surrogateescape")
