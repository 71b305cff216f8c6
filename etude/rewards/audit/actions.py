"""What an agent did, read from its session's events: calls, the commands it ran, the code it wrote.

Owns `Actions` and its parts. A command line is taken apart by the reader that the product's permissions use, so that
what stands behind `&&`, in `sh -c` or in a substitution is a command of its own; one that this reader refuses is read
roughly instead, since evidence in it counts too. Judges nothing.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.environments.base import WORKSPACE
from etude.harness.permissions.literals import Word
from etude.harness.permissions.shell import Redirect, SimpleCommand, Unreadable, read_script
from etude.harness.permissions.unwrap import unwrap
from etude.records import Event

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_ROUGH_END = re.compile(r"\n|;|&&|\|\|?|&(?![>&])|\$\(|`|\)")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n(.*?)\n?\s*\2(?=\n|$)", re.DOTALL)
_ROUGH_HEAD = re.compile(
    r"[A-Za-z_]\w*=.*|if|then|else|elif|fi|for|do|done|while|until|!|\{|\(+|sudo|env|exec|time|nohup|command"
)
_HELD = re.compile(r"@here(\d+)@")


@dataclass(frozen=True)
class Call:
    """One tool call; `arguments` is None where it was malformed, and `result` what the model read."""

    turn: int
    index: int
    name: str
    arguments: Mapping[str, Any] | None
    result: str = ""
    error: bool = False

    @property
    def where(self) -> str:
        return f"turn {self.turn}, call {self.index + 1}"

    def text(self, name: str) -> str:
        value = (self.arguments or {}).get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Command:
    """One simple command of a terminal call. `words` are values where they are certain, else as they were written."""

    where: str
    words: tuple[str, ...]
    raw: str
    fed: str
    """What a here-document gives it to read."""
    writes: tuple[str, ...]
    """Absolute paths its output goes to."""
    reads: tuple[str, ...]
    cwd: str
    variables: Mapping[str, str]
    output: str
    """Of the whole call."""

    @property
    def name(self) -> str:
        return posixpath.basename(self.words[0]) if self.words else ""

    def path(self, word: str) -> str:
        """A word as an absolute path, the directory it was run in taken into account."""
        home = word.replace("~", "/home/agent", 1) if word.startswith("~") else word
        return posixpath.normpath(posixpath.join(self.cwd, home))


@dataclass(frozen=True)
class Script:
    """Code the agent wrote: into a file, or onto a command line. `path` is absolute; empty for a command line's."""

    where: str
    path: str
    text: str
    output: str = ""
    language: str = "python"


@dataclass(frozen=True)
class Actions:
    """A session, as the rules see it."""

    calls: tuple[Call, ...]
    commands: tuple[Command, ...]
    scripts: tuple[Script, ...]
    messages: tuple[str, ...]
    """What the model wrote, turn by turn, calls included."""
    cut: bool
    """Whether the last message was cut off by a limit."""
    stop: str
    prompt: str = ""


@dataclass
class _Reader:
    calls: dict[tuple[int, int], Call] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    cut: bool = False
    stop: str = ""
    prompt: str = ""

    def take(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "prompt":
                self.prompt = self.prompt or str(data["user"])
            case "completion":
                self.messages.append(str(data["text"]))
                self.cut = data.get("finish", "stop") != "stop"
            case "tool_call":
                key = data["turn"], data["index"]
                self.calls[key] = Call(*key, str(data["name"]), data.get("arguments"))
            case "tool_result":
                key = data["turn"], data["index"]
                call = self.calls[key]
                self.calls[key] = Call(*key, call.name, call.arguments, str(data["text"]), bool(data["error"]))
            case "end":
                self.stop = str(data["stop"])


def actions_of(events: Sequence[Event]) -> Actions:
    """What a log says was done."""
    reader = _Reader()
    for event in events:
        reader.take(event)
    calls = tuple(reader.calls[key] for key in sorted(reader.calls))
    commands = tuple(command for call in calls for command in _commands(call))
    scripts = [script for call in calls for script in _written(call)]
    scripts += [script for command in commands for script in _scripts(command)]
    return Actions(calls, commands, tuple(scripts), tuple(reader.messages), reader.cut, reader.stop, reader.prompt)


def shell_commands(line: str, where: str, output: str = "") -> Iterator[Command]:
    """The simple commands a line would run, each in the directory that the `cd`s before it lead to."""
    try:
        simple = unwrap(read_script(line))
    except Unreadable:
        simple = list(_rough(line))
    cwd = WORKSPACE
    known: dict[str, str] = {}
    for each in simple:
        if [word.text for word in each.words] == [":"] and not each.redirects:
            continue  # what is left of `sh -c`
        words = tuple(word.text if word.text is not None else _known(word.raw, known) for word in each.words)
        if not words:
            known |= {name: word.text for name, word in each.variables if word.text is not None}
        place = posixpath.normpath(posixpath.join(cwd, "."))
        yield Command(
            where,
            words,
            each.raw or " ".join(words),
            (each.input.text or each.input.raw) if each.input else "",
            tuple(_file(cwd, redirect.target) for redirect in each.redirects if redirect.writes),
            tuple(_file(cwd, redirect.target) for redirect in each.redirects if not redirect.writes),
            place,
            {name: word.text if word.text is not None else word.raw for name, word in each.variables},
            output,
        )
        if words[:1] == ("cd",):
            cwd = posixpath.normpath(posixpath.join(cwd, words[1])) if len(words) > 1 else "/home/agent"


def _known(raw: str, known: Mapping[str, str]) -> str:
    """A word whose variables the line itself has set."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known.get(found[1], found[0]), raw)


def _file(cwd: str, word: Word) -> str:
    return posixpath.normpath(posixpath.join(cwd, word.text if word.text is not None else word.raw))


def _rough(line: str) -> Iterator[SimpleCommand]:
    """What a line that cannot be read exactly seems to hold: here-documents apart, split where commands end."""
    fed: list[str] = []

    def keep(match: re.Match[str]) -> str:
        fed.append(match[4])
        return f" @here{len(fed) - 1}@ {match[3]}"

    for piece in _ROUGH_END.split(_HERE.sub(keep, line)):
        if piece.strip():
            yield _rough_one(piece, fed)


def _rough_one(piece: str, fed: Sequence[str]) -> SimpleCommand:
    held = _HELD.search(piece)
    piece = _HELD.sub("", piece).strip()
    try:
        words = shlex.split(piece, comments=True)
    except ValueError:
        words = piece.split()
    while words and _ROUGH_HEAD.fullmatch(words[0]):
        words = words[1:]
    given = tuple(Word(word, word) for word in words)
    text = fed[int(held[1])] if held else None
    return SimpleCommand(given, (), tuple(_rough_files(words)), Word(text, text) if text is not None else None, piece)


def _rough_files(words: Sequence[str]) -> Iterator[Redirect]:
    for at, word in enumerate(words):
        if match := re.fullmatch(r"\d?(>>?|<)(.*)", word):
            target = match[2] or (words[at + 1] if at + 1 < len(words) else "")
            yield Redirect(Word(target, target), writes=">" in match[1])


def _commands(call: Call) -> Iterator[Command]:
    if call.name == "run_terminal_cmd" and (line := call.text("command")):
        yield from shell_commands(line, call.where, call.result)


def _written(call: Call) -> Iterator[Script]:
    """The text that a call put into a file."""
    if call.error or call.name not in ("write_file", "edit_file"):
        return
    path = posixpath.normpath(posixpath.join(WORKSPACE, call.text("path")))
    pieces = [call.text("content"), call.text("new")]
    pieces += [str(hunk.get("new", "")) for hunk in _hunks(call) if isinstance(hunk, dict)]
    for text in pieces:
        if text:
            yield Script(call.where, path, text, language=language_of(path))


def _hunks(call: Call) -> list[Any]:
    hunks = (call.arguments or {}).get("hunks")
    if isinstance(hunks, str):
        try:
            hunks = json.loads(hunks)
        except (ValueError, RecursionError):
            return []
    return hunks if isinstance(hunks, list) else []


def language_of(path: str) -> str:
    """By the name's ending; what has none is a shell's."""
    ending = posixpath.splitext(path)[1]
    return {".py": "python", ".pyi": "python", ".sh": "shell", "": "shell"}.get(ending, ending)


def _scripts(command: Command) -> Iterator[Script]:
    """Python given on the command line, and what `cat` or `echo` wrote into a file."""
    if _PYTHON.fullmatch(command.words[0] if command.words else ""):
        code = _after(command.words, "-c")
        if code is not None:
            yield Script(command.where, "", code, command.output)
        elif command.fed and (len(command.words) == 1 or command.words[1] == "-"):
            yield Script(command.where, "", command.fed, command.output)
    elif command.name in ("cat", "tee", "echo", "printf"):
        text = command.fed or " ".join(command.words[1:])
        places = command.writes or (tuple(map(command.path, command.words[1:])) if command.name == "tee" else ())
        for path in places:
            yield Script(command.where, path, text, language=language_of(path))


def _after(words: Sequence[str], option: str) -> str | None:
    """The word behind a short option, which may stand in a bundle such as -Ic."""
    for at, word in enumerate(words[1:-1], 1):
        if not word.startswith("-"):
            return None
        if word == option or (re.fullmatch(r"-[A-Za-z]+", word) and word.endswith(option[1:])):
            return words[at + 1]
    return None
