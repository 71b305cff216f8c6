"""What the words of a command line could stand for: variables, patterns and braces put in, as a shell would.

Owns `Values`. It is asked about a whole line at once and does not follow its course: a variable holds, for all that is
known here, anything that any command of the line gives it, what it had before, or nothing. A reading is a pattern: `*`,
`?` and `[` in it match names of files, and a backslash takes that from them. None means that only a run would tell.
Opens nothing: which files a pattern matches is `paths.WorkspacePaths`'s to say.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etude.harness.permissions.literals import Part, Word
from etude.harness.permissions.reading import ONE_WORD, chooses
from etude.harness.permissions.shell import SimpleCommand
from etude.harness.permissions.variables import named

_MANY = 64
_OWN = re.compile(
    r"BASH.*|COMP_.*|COPROC|DIRSTACK|EPOCH.*|EUID|FUNCNAME|GROUPS|HIST.*|HOSTNAME|HOSTTYPE|LINENO|MACHTYPE|MAPFILE|"
    r"OLDPWD|OPTARG|OPTIND|OSTYPE|PIPESTATUS|PPID|RANDOM|READLINE_.*|REPLY|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_|IFS|"
    r"PS\d|LINES|COLUMNS"
)
"""Variables that a shell itself gives a value."""
_NUMBERS = "?#!$"
_A_NUMBER = "[0-9]*"
_MOST_DEEP = 50
"""Variables that one is made of, one in the other."""
_SETS = {"read", "mapfile", "readarray", "getopts", "printf", "wait", "unset", "let"}
"""Commands that set variables by their names."""
_NAMED_OPTION = re.compile(r"--\w[\w-]*=")
_ACTIVE = re.compile(r"(?<!\\)(?:\\\\)*[*?\[]")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


@dataclass(frozen=True)
class Reading:
    """What a word could be: a path, or a pattern of paths."""

    pattern: str
    split: bool = False
    """Whether a name that the pattern matches would be taken apart at its blanks."""
    looped: tuple[str, ...] = ()
    """Patterns that loops have put names in the place of: with `split` such a name is taken apart, whatever is joined
    to it."""

    @property
    def literal(self) -> str | None:
        """The word itself, unless it is a pattern."""
        return None if _ACTIVE.search(self.pattern) else self._bare

    @property
    def could_be_option(self) -> bool:
        """Whether it begins as one; a pattern that matches nothing stands for itself. A number is none: `head -$N`."""
        return re.match(r"-(?!\d*\Z)", self._bare) is not None

    @property
    def _bare(self) -> str:
        return re.sub(r"\\(.)", r"\1", self.pattern, flags=re.DOTALL)


def escaped(text: str) -> str:
    """A pattern that matches this text alone."""
    return re.sub(r"([*?\[\\])", r"\\\1", text)


class Values:
    """The variables of one line. `env` is what commands find in their environment, `places` the directories that they
    may run in, with None for one that only a run would tell."""

    def __init__(
        self, line: str, commands: Sequence[SimpleCommand], env: Mapping[str, str], places: Collection[str | None]
    ) -> None:
        self._env, self.places = env, places
        self._given: dict[str, list[tuple[Word, bool]]] = {}
        self._unknown: set[str] = set()
        self._nothing_known = False
        self._held_by: dict[str, _Readings] = {}
        self._open: list[str] = []
        for text in (line, *(command.raw for command in commands)):
            self._unknown.update(re.findall(r"\$\\?\{\\?(\w+):?=", text))
        for command in commands:
            self._collect(command)

    def readings(self, word: Word) -> list[Reading] | None:
        """Everything a word could be, or None."""
        if word.text is not None:
            return [Reading(escaped(word.text))]
        return self._joined(word.parts, splits=True)

    def _collect(self, command: SimpleCommand) -> None:
        for name, word in command.variables:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self._given.setdefault(name, []).append((word, command.loops))
            else:
                self._unknown.add(re.split(r"\W", name)[0])
        if command.words and (command.words[0].text or "").rpartition("/")[2] in _SETS:
            for word in command.words[1:]:
                self._nothing_known |= word.text is None and command.words[0].text != "printf"
                for name in named(word.text or ""):
                    self._unknown.update(re.findall(r"[A-Za-z_]\w*", name))

    def _joined(self, parts: Sequence[Part] | None, splits: bool) -> _Readings:
        """A word's readings from its parts; with `splits` as an argument, otherwise as a value to assign."""
        if not parts:
            return None
        choices: list[Iterable[Reading]] = []
        for at, part in enumerate(parts):
            found = self._variable(part, at == 0, splits) if part.variable else _plain(part, at, parts, splits)
            if found is None:
                return None
            choices.append(found)
        joined = itertools.islice(itertools.product(*choices), _MANY + 1)
        all_of = dict.fromkeys(map(_one_behind_another, joined))
        expanded = [found for reading in all_of for found in _braces(reading, parts, splits)]
        return None if len(expanded) > _MANY or None in expanded else [one for one in expanded if one is not None]

    def _variable(self, part: Part, first: bool, splits: bool) -> _Readings:
        """What a variable could hold, where it stands."""
        name = part.text
        if name in _NUMBERS:
            return [Reading(_A_NUMBER)]
        if self._nothing_known or name in self._unknown or _OWN.fullmatch(name):
            return None
        if name == "PWD" and name not in self._given:
            return [Reading(".")] if first else None
        held = self._held_by_name(name)
        return held if held is None or part.quoted or not splits else _split(held)

    def _held_by_name(self, name: str) -> _Readings:
        """Everything that a variable could hold; None as well for one that is made of itself."""
        if name in self._open or len(self._open) > _MOST_DEEP:
            return None
        if name not in self._held_by:
            self._open.append(name)
            self._held_by[name] = self._all_held(name)
            self._open.pop()
        return self._held_by[name]

    def _all_held(self, name: str) -> _Readings:
        given = self._given.get(name, [])
        if name not in self._env and not given:
            return None
        held = [Reading(escaped(self._env.get(name, ""))), Reading("")]
        for word, loops in given:
            found = self._held(word, loops)
            if found is None or len(held) > _MANY:
                return None
            held += found
        return held

    def _held(self, word: Word, loops: bool) -> _Readings:
        """What is assigned: `for` gives what a word expands to, a plain assignment the text as it is."""
        if word.text is not None:
            tilde = [Reading(escaped(posixpath.expanduser(word.text)))] if word.text.startswith("~") else []
            return None if ":~" in word.text else [Reading(escaped(word.text)), *tilde]
        found = self._joined(word.parts, loops)
        if found is None or not loops:
            return found
        return [one if one.literal is not None else replace(one, looped=(*one.looped, one.pattern)) for one in found]


_Readings = list[Reading] | None


def _one_behind_another(each: Sequence[Reading]) -> Reading:
    looped = itertools.chain.from_iterable(one.looped for one in each)
    return Reading("".join(one.pattern for one in each), any(one.split for one in each), tuple(looped))


def _split(held: Sequence[Reading]) -> _Readings:
    """Without quotes a value is taken apart at blanks, and its pieces are patterns again."""
    out = []
    for one in held:
        if one.literal is None:
            out.append(replace(one, split=True))
        elif re.search(r"\s|\\", one.literal):
            return None
        else:
            out.append(Reading(one.literal))
    return out


def _plain(part: Part, at: int, parts: Sequence[Part], splits: bool) -> _Readings:
    if part.quoted:
        return [Reading(escaped(part.text))]
    text = part.text
    if at == 0 and text.startswith("~"):
        alone = text == "~" and len(parts) == 1
        if not (alone or text.startswith("~/")):
            return None
        text = posixpath.expanduser("~") + text[1:]
    return [Reading(text if splits else escaped(text))]


def _braces(reading: Reading, parts: Sequence[Part], splits: bool) -> list[Reading | None]:
    """`{a,b}`, for bash each and for dash as it stands; None where it is more than that."""
    bare = "".join("\0" if part.quoted or part.variable else part.text for part in parts)
    if not splits or not re.search(r"\{.*(?:,|\.\.)", bare, re.DOTALL):
        return [reading]
    found = _BRACES.search(reading.pattern)
    if "\0" in bare or bare.count("{") != 1 or found is None or ".." in found[1]:
        return [None]
    before, after = reading.pattern[: found.start()], reading.pattern[found.end() :]
    return [reading, *(replace(reading, pattern=before + middle + after) for middle in found[1].split(","))]


def could_be_option(word: Word, readings: Sequence[Reading]) -> bool:
    """Whether a word that only a run would tell could be an option, and only a run would tell which."""
    return word.text is None and not _NAMED_OPTION.match(word.raw) and any(each.could_be_option for each in readings)


def taken_apart(reading: Reading, matches: Iterable[str], looped: Iterable[Sequence[str] | None]) -> bool:
    """Whether one of these names, or of those that a loop went through in any of the line's directories (None where
    only a run would tell), is more than one word without quotes. A pattern that matches nothing stands for itself."""
    if any(re.search(r"\s|\\[*?\[\\]", pattern) for pattern in (reading.pattern, *reading.looped)):
        return True
    names = [*matches]
    for found in looped:
        if found is None:
            return True
        names += found
    return any(re.search(r"[\s*?\[\\]", name) for name in names)


def settled(command: SimpleCommand, names: Sequence[list[str] | None]) -> list[str | None]:
    """The words, and something in place of those that are certain to be no options, or at least one word each."""
    out: list[str | None] = []
    name = command.words[0].text
    for word, found in zip(command.words, names, strict=True):
        several = word.text is None and name in ("uniq", "xxd")
        sure = found is not None and not several and not any(name.startswith("-") for name in found)
        one = ONE_WORD if name in ("test", "[") and found is None and word.quoted else None
        if found is not None and (chooses([*out, word.raw], len(out)) or _NAMED_OPTION.match(word.raw)):
            one = word.raw  # no file has such a name: a shell leaves the pattern as it is
        out.append(word.text if word.text is not None else f"\0{word.raw}" if one is None and sure and out else one)
    return out


def pieces(text: str) -> list[str]:
    """A word and the paths that could be in it: behind `=`, `:` and `@`, and right behind a short option."""
    if re.match(r"-[^-]", text):
        return [text[at:] for at in range(2, len(text))]
    parts = [text, *(text[at + 1 :] for at, character in enumerate(text) if character in "=:@")]
    return [part for part in parts if part and not part.startswith("-")]
