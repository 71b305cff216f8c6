"""What a command runs besides itself: the command behind `env`, `xargs`, `find -exec`, `sh -c`, `eval` and their like.

Owns `unwrap`, which turns the commands a shell would start into the commands to be judged. A wrapper that does nothing
of its own (`nice`, `timeout`) is not among them, what it runs is. One that changes who runs it (`sudo`) is judged as
well. An option that is not known here could take the next word as its value, so that another word would be the command:
such a line is Unreadable.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etude.harness.permissions.literals import Word
from etude.harness.permissions.shell import FOUND, RESERVED, SimpleCommand, Unreadable, read_script

_MAX_DEPTH = 8
_SHELLS = {"sh", "bash", "dash", "ash"}
_OF_SHELLS = re.compile(r"[-+][ceuxlnrvfs]+|--(login|norc|noprofile|posix)")
"""Options of a shell that leave the meaning of its text alone. `-i` does not: history and prompts are expanded too."""
_SET_FOR_SHELLS = re.compile(r"errexit|nounset|pipefail|xtrace|verbose|noexec|noglob|noclobber")
"""What `-o` may set of one, for the same reason."""
_UNKNOWN = Word(None, "…")
_NO_OP = Word(":", ":")


@dataclass(frozen=True)
class _Wrapper:
    """How a wrapper's own words end and its command begins."""

    flags: str = ""
    """Short options without a value, a letter each."""
    valued: str = ""
    """Short options with one, in the same word or the next."""
    long: tuple[str, ...] = ()
    """Long options without a value, or with it behind `=`."""
    long_valued: tuple[str, ...] = ()
    """Long options whose value may be the next word."""
    operands: int = 0
    """Words between the options and the command."""
    variables: bool = False
    """Whether NAME=VALUE may stand before the command."""
    itself: bool = False
    """Whether the wrapper is judged too."""
    more: bool = False
    """Whether it adds words to the command that are not on the line."""


_WRAPPERS: Mapping[str, _Wrapper] = {
    "env": _Wrapper("i0v", "uC", ("--ignore-environment", "--null", "--debug"), ("--unset", "--chdir"), variables=True),
    "command": _Wrapper("p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "nohup": _Wrapper(),
    "time": _Wrapper("pv", "", ("--portability", "--verbose"), variables=True),
    "nice": _Wrapper("", "n", (), ("--adjustment",)),
    "ionice": _Wrapper("t", "cn", ("--ignore",), ("--class", "--classdata")),
    "timeout": _Wrapper("v", "ks", ("--foreground", "--preserve-status", "--verbose"), ("--kill-after", "--signal"), 1),
    "stdbuf": _Wrapper("", "ioe", (), ("--input", "--output", "--error")),
    "setsid": _Wrapper("cfw", "", ("--ctty", "--fork", "--wait")),
    "chronic": _Wrapper("ev"),
    "taskset": _Wrapper("", "", (), (), 1),
    "sudo": _Wrapper("AbEHKkNnPS", "CDgpRTUu", ("--non-interactive", "--preserve-env"),
                     ("--user", "--group", "--chdir", "--host", "--prompt"), variables=True, itself=True),
    "doas": _Wrapper("nL", "Cu", itself=True),
    "xargs": _Wrapper("0oprtx", "adEILnPs", ("--null", "--no-run-if-empty", "--verbose", "--exit", "--open-tty",
                                             "--max-lines", "--replace"),
                      ("--arg-file", "--delimiter", "--max-args", "--max-procs", "--max-chars"), more=True),
    "unshare": _Wrapper("", "", itself=True),
    "chroot": _Wrapper("", "", (), (), 1, itself=True),
}  # fmt: skip
_MOVES = {"env", "sudo", "doas"}
"""Wrappers that can run a command in another directory."""
_NAMES_VARIABLES: Mapping[str, str] = {
    "printf": "-v", "test": "-v", "[": "-v", "read": "", "mapfile": "", "readarray": "", "getopts": "", "wait": "-p",
    "unset": "", "declare": "", "typeset": "", "local": "", "readonly": "", "export": "",
}  # fmt: skip
"""Builtins that take names of variables, with the option that says so: bash runs what stands in the index of one."""
_DECLARES = {"declare", "export", "local", "readonly", "typeset"}
_FIND_RUNS = {"-exec", "-execdir", "-ok", "-okdir"}
_BEYOND_READING = {
    "alias", "parallel", "busybox", "toybox", "script", "expect", "su", "runuser", "at", "batch", "watch", "let",
    "hash", "enable", "shopt", "bind", "complete", "compgen", "fc", "zsh", "ksh", "mksh", "fish", "csh", "tcsh",
}  # fmt: skip
"""Commands that run what they are told in ways not read here, or that change what later words mean."""


def unwrap(commands: Sequence[SimpleCommand], depth: int = 0) -> list[SimpleCommand]:
    """The commands to judge, in order. Raises Unreadable."""
    if depth > _MAX_DEPTH:
        raise Unreadable("commands are wrapped in each other too deeply")
    return [
        found if found is command else replace(found, chain=0)  # what runs it may fail, or go elsewhere, by itself
        for command in commands
        for found in _unwrap(command, depth)
    ]


def _unwrap(command: SimpleCommand, depth: int) -> Iterator[SimpleCommand]:
    if not command.words:
        yield command
        return
    first = command.words[0].text
    if not first:
        raise Unreadable(f"only a run would tell which command {command.words[0].raw} is")
    name = posixpath.basename(first)
    rest = command.words[1:]
    if name in _BEYOND_READING or first in RESERVED:
        raise Unreadable(f"{name} runs what cannot be read here")
    if name in _NAMES_VARIABLES:
        _check_names(name, rest)
    if name in _SHELLS:
        yield from _shell(command, rest, depth)
    elif name == "eval":
        yield from _script(" ".join(_known(word, "eval") for word in rest), command, depth)
    elif name == "trap" and rest and not (rest[0].text or "").startswith("-"):
        script = _script(_known(rest[0], "trap"), command, depth)
        yield from (replace(inner, again=True) for inner in script)
    elif name == "find":
        yield command
        yield from unwrap(list(_find(command, rest)), depth + 1)
    elif (wrapper := _WRAPPERS.get(name)) is not None:
        yield from _wrapped(command, name, wrapper, depth)
    elif first in _DECLARES:
        yield _declared(command)
    else:
        yield command


def _declared(command: SimpleCommand) -> SimpleCommand:
    """What `export` and its like set, where they stand as a command: behind `!`, `command` or `time`, or in quotes."""
    plain = not any(re.match(r"[-+].*[^-+xrgpft]", word.text or "") for word in command.words)
    words, variables = list[Word](), list(command.variables)
    for word in command.words:
        found = re.fullmatch(r"([A-Za-z_]\w*)(\+?)=(.*)", word.text or "", re.DOTALL)
        if found is None and not re.fullmatch(r"-[a-hj-mo-zA-Z]+|--|\w+", word.text or "", re.ASCII):
            raise Unreadable(f"{command.words[0].raw} {word.raw}: a name that is computed can run something")
        if found is None:
            words.append(word)
        else:  # in quotes a `~` is no home, and with an attribute a value is another
            known = plain and not found[2] and word.text == word.raw
            variables.append((found[1], Word(found[3] if known else None, word.raw)))
    return replace(command, words=tuple(words), variables=tuple(variables))


def _check_names(name: str, words: Sequence[Word]) -> None:
    option = _NAMES_VARIABLES[name]
    texts = [word.text for word in words]
    if option and not any(text is not None and text.startswith((option, "-R")) for text in texts):
        if _hides_option(words, 1 if name == "printf" else len(words)):
            raise Unreadable(f"{name} could be told the name of a variable here, and an index in one can run something")
        return
    if any(text is None or "[" in text for text in texts):
        raise Unreadable(f"{name} takes the name of a variable here, and an index in one can run something")


def _hides_option(words: Sequence[Word], most: int) -> bool:
    """Whether one of the first words could be an option with a name behind it, in the same word or the next."""
    for word, after in itertools.zip_longest(words[:most], words[1:], fillvalue=_NO_OP):
        if word.text is None and word.raw not in ("$?", "$#", "$$", "$!"):
            names = after.text is None or "[" in after.text
            split = word.parts is None or any(part.variable and not part.quoted for part in word.parts)
            if names or split or "@" in word.raw or word.raw[0] in "*?[{":
                return True
    return False


def _wrapped(command: SimpleCommand, name: str, wrapper: _Wrapper, depth: int) -> Iterator[SimpleCommand]:
    words, variables = _after_options(name, wrapper, command.words[1:])
    if wrapper.itself or not words:
        yield command
    if words:
        more = (_UNKNOWN,) if wrapper.more else ()
        if name == "xargs":
            words = _filled(words, command.words[1 : -len(words)])
        options = command.words[: -len(words)]
        if name == "xargs":
            yield replace(command, words=options, variables=(), redirects=())  # it opens a file of its own
        inner = replace(command, words=(*words, *more), variables=(*command.variables, *variables))
        if name in _MOVES and any(re.match(r"-[^-]*[CD]|--chd", option.text or "") for option in options):
            inner = replace(inner, astray=True)
        yield from unwrap([inner], depth + 1)


def _filled(words: Sequence[Word], options: Sequence[Word]) -> list[Word]:
    """What xargs puts in place of a mark is not known: neither is a word that holds it."""
    marks = {"{}"}
    for option, after in itertools.zip_longest(options, options[1:], fillvalue=_NO_OP):
        if found := re.fullmatch(r"-\w*?I(.*)|--replace=(.*)", option.text or "", re.DOTALL):
            marks.add(found[1] or found[2] or after.text or "")
    marks.discard("")
    return [_UNKNOWN if any(mark in (word.text or word.raw) for mark in marks) else word for word in words]


def _after_options(
    name: str, wrapper: _Wrapper, words: Sequence[Word]
) -> tuple[Sequence[Word], list[tuple[str, Word]]]:
    """The command behind a wrapper's own words, and the variables it is given."""
    at = 0
    while at < len(words):
        text = _known(words[at], name)
        if name == "command" and text in ("-v", "-V"):
            return (), []  # it says what a name means, and runs nothing
        if text == "--":
            at += 1
            break
        if not text.startswith("-") or text == "-":
            break
        width = _width(name, wrapper, text)
        _check_one(name, words[at + 1 : at + width])
        at += width
    _check_one(name, words[at : at + wrapper.operands])
    at += wrapper.operands
    variables = []
    while wrapper.variables and at < len(words):
        found = re.match(r"([A-Za-z_]\w*)=(.*)", words[at].text or words[at].raw, re.DOTALL)
        if found is None:
            break
        variables.append((found[1], Word(found[2] if words[at].text is not None else None, found[2])))
        at += 1
    return words[at:], variables


def _check_one(name: str, values: Sequence[Word]) -> None:
    """Each must be one word when it is run: what a pattern finds more of, or a variable splits into, would stand in
    the command's place."""
    for word in values:
        if word.text is None and not word.quoted:
            raise Unreadable(f"only a run would tell how many words {word.raw} is, and which of them {name} runs")


def _width(name: str, wrapper: _Wrapper, option: str) -> int:
    """How many words an option takes."""
    if option.startswith("--"):
        long = option.partition("=")[0]
        if long in wrapper.long or (long in wrapper.long_valued and "=" in option):
            return 1
        if long in wrapper.long_valued:
            return 2
        raise Unreadable(f"{name} {option}: what this option takes is not known here")
    if name == "nice" and re.fullmatch(r"-\d+", option):
        return 1
    for at, letter in enumerate(option[1:], 1):
        if letter in wrapper.valued:
            return 1 if at + 1 < len(option) else 2
        if letter not in wrapper.flags:
            raise Unreadable(f"{name} {option}: what this option takes is not known here")
    return 1


def _shell(command: SimpleCommand, words: Sequence[Word], depth: int) -> Iterator[SimpleCommand]:
    """A shell runs the text behind -c, a file, or what it reads."""
    runs_text, reads, at = False, False, 0
    while at < len(words) and (text := _known(words[at], "a shell")).startswith(("-", "+")) and text not in ("-", "--"):
        sets = re.fullmatch(r"[-+][eux]*o", text) is not None
        at += sets
        if not (_SET_FOR_SHELLS if sets else _OF_SHELLS).fullmatch(_known(words[at], "a shell") if words[at:] else ""):
            told = f"{text} {words[at]}" if sets and words[at:] else text
            raise Unreadable(f"{command.words[0].raw} {told}: what this option does is not known here")
        runs_text |= "c" in text and not text.startswith("--")
        reads |= "s" in text and not text.startswith("--")
        at += 1
    if at < len(words) and words[at].text in ("-", "--"):
        at += 1
    if runs_text:
        if at >= len(words):
            raise Unreadable("a shell is given -c and no command")
        yield replace(
            command, words=(_NO_OP, *words[at + 1 :])
        )  # its arguments: a pattern among them lists directories
        yield from _script(_known(words[at], "a shell"), command, depth)
    elif at < len(words) and not reads:
        yield command
    elif command.input is not None and command.input.text is not None:
        yield from _script(command.input.text, command, depth)
    else:
        raise Unreadable("a shell runs what it reads, and only a run would tell what that is")


def _script(text: str, command: SimpleCommand, depth: int) -> Iterator[SimpleCommand]:
    """What a text runs, with the variables and files of the command that runs it."""
    if command.redirects or command.variables:
        yield replace(command, words=(), input=None)
    for inner in unwrap(read_script(text), depth + 1):
        yield replace(inner, again=inner.again or command.again, astray=inner.astray or command.astray)


def _find(command: SimpleCommand, words: Sequence[Word]) -> Iterator[SimpleCommand]:
    """The commands that find starts for what it finds."""
    for word in words:
        if word.text is None and (re.search(r"[$`]", word.raw) or word.raw[0] in "*?["):
            raise Unreadable(f"find could be told to run something by {word.raw}")
    at = 0
    while at < len(words):
        option = words[at].text
        if option not in _FIND_RUNS:
            at += 1
            continue
        inner = []
        at += 1
        while at < len(words) and words[at].text not in (";", "+"):
            word = words[at]
            inner.append(FOUND if word.text == "{}" else _UNKNOWN if "{}" in (word.text or word.raw) else word)
            at += 1
        if not inner:
            raise Unreadable("find -exec without a command")
        astray = command.astray or option in ("-execdir", "-okdir")
        yield replace(command, words=tuple(inner), redirects=(), input=None, astray=astray, found_by=command.words)


def _known(word: Word, name: str) -> str:
    if word.text is None:
        raise Unreadable(f"only a run would tell what {name} is given by {word.raw}")
    return word.text
