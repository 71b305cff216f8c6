"""Reading a Dockerfile: text in, stages of instructions out, each with its line.

Owns the syntax: directives, comments, continued lines, here-documents, flags, the JSON and the shell form. Knows which
instructions and flags Etude builds; any other is an error that names its line, since a step left out in silence makes
another image. Expands no variable (see `expand`) and runs nothing (see `build`).
Source: the Dockerfile reference, syntax version 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from etude.errors import ConfigError

_FLAGS: dict[str, set[str]] = {
    "FROM": {"platform"},
    "COPY": {"from", "chown", "chmod"},
    "ADD": {"chown", "chmod"},
    "RUN": {"network"},
    **{name: set() for name in ("ARG", "ENV", "WORKDIR", "USER", "SHELL", "ENTRYPOINT", "CMD", "LABEL", "EXPOSE")},
}
_REFUSED = {
    "ONBUILD": "write the step into the Dockerfiles that build on this one",
    "VOLUME": "a sandbox has no volumes; remove it",
    "HEALTHCHECK": "nothing here would run it; remove it",
    "STOPSIGNAL": "sandboxes are ended with SIGKILL; remove it",
    "MAINTAINER": "use LABEL org.opencontainers.image.authors",
}
_FLAG_ADVICE = {
    "mount": "COPY what the step needs, and delete it in the same step if it must not stay",
    "link": "remove it; every step is a layer of its own anyway",
}
_HEREDOC_IN = ("RUN", "COPY", "ADD")
_JSON_FORM = ("RUN", "CMD", "ENTRYPOINT", "SHELL", "COPY", "ADD")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"""(\d*)<<(-?)(?:"([^"\s]+)"|'([^'\s]+)'|([^\s"'<]+))""")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


class DockerfileError(ConfigError):
    """Something in a Dockerfile is wrong or not supported; the message starts with the file and the line."""


def at_line(origin: str, line: int, message: str) -> DockerfileError:
    return DockerfileError(f"{origin}:{line}: {message}")


@dataclass(frozen=True)
class Heredoc:
    """`<<NAME` and the lines up to NAME. `literal` when the name was quoted: no variable in it is expanded."""

    name: str
    content: str
    literal: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction. `text` is what follows keyword and flags, continued lines joined, here-documents left out."""

    keyword: str
    line: int
    text: str
    flags: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] | None = None
    """The items of the JSON form; None in shell form."""
    heredocs: tuple[Heredoc, ...] = ()
    shell_text: str = ""
    """Of a RUN in shell form: what its shell is given, here-documents and all."""

    def flag(self, name: str) -> str | None:
        return dict(self.flags).get(name)


@dataclass(frozen=True)
class Stage:
    """What FROM begins. `base` may hold variables of the ARGs before the first FROM."""

    line: int
    base: str
    name: str | None
    platform: str | None
    steps: tuple[Instruction, ...]


@dataclass(frozen=True)
class Dockerfile:
    """`args` are the ARGs before the first FROM; `escape` is the character that escapes, a backslash or a backtick."""

    origin: str
    escape: str
    args: tuple[Instruction, ...]
    stages: tuple[Stage, ...]

    def error(self, line: int, message: str) -> DockerfileError:
        return at_line(self.origin, line, message)


def parse_dockerfile(text: str, origin: str = "Dockerfile") -> Dockerfile:
    """Raises DockerfileError for what is wrong and for what Etude does not build."""
    reader = _Reader(text, origin)
    instructions = reader.instructions()
    first = next((index for index, each in enumerate(instructions) if each.keyword == "FROM"), None)
    if first is None:
        raise at_line(origin, max(len(reader.lines), 1), "there is no FROM")
    for each in instructions[:first]:
        if each.keyword != "ARG":
            raise at_line(origin, each.line, f"{each.keyword} before the first FROM; only ARG may stand there")
    starts = [index for index, each in enumerate(instructions) if each.keyword == "FROM"]
    stages: list[Stage] = []
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        stages.append(_stage(instructions[start], instructions[start + 1 : end], stages, origin))
    return Dockerfile(origin, reader.escape, tuple(instructions[:first]), tuple(stages))


def _stage(start: Instruction, steps: Sequence[Instruction], before: Sequence[Stage], origin: str) -> Stage:
    words = start.text.split()
    name = words[2].lower() if len(words) == 3 and words[1].upper() == "AS" else None
    if len(words) != 1 and name is None:
        raise at_line(origin, start.line, "FROM takes `IMAGE` or `IMAGE AS NAME`")
    if name is not None and not _STAGE_NAME.fullmatch(name):
        raise at_line(origin, start.line, f"{name!r} is no name for a stage: letters, digits and `_.-`")
    if name is not None and name in {stage.name for stage in before}:
        raise at_line(origin, start.line, f"a stage named {name!r} is there already")
    return Stage(start.line, words[0], name, start.flag("platform"), tuple(steps))


class _Reader:
    """One pass over the lines of a file."""

    def __init__(self, text: str, origin: str) -> None:
        self.lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self.escape = "\\"
        self._origin = origin
        self._at = 0

    def instructions(self) -> list[Instruction]:
        self._directives()
        found = []
        while self._at < len(self.lines):
            line = self.lines[self._at]
            if not line.strip() or line.lstrip().startswith("#"):
                self._at += 1
                continue
            found.append(self._instruction())
        return found

    def _directives(self) -> None:
        seen: set[str] = set()
        for number, line in enumerate(self.lines, 1):
            match = _DIRECTIVE.fullmatch(line.strip())
            name = match[1].lower() if match else ""
            if match is None or name not in ("escape", "syntax", "check"):
                return
            if name in seen:
                raise at_line(self._origin, number, f"the directive {name} is there twice")
            seen.add(name)
            if name == "escape":
                if match[2] not in ("\\", "`"):
                    raise at_line(self._origin, number, f"escape is \\ or `, not {match[2]}")
                self.escape = match[2]
            elif name == "syntax" and not match[2].startswith("docker/dockerfile:"):
                raise at_line(self._origin, number, f"syntax {match[2]}: only docker/dockerfile is understood")

    def _instruction(self) -> Instruction:
        line = self._at + 1
        logical = self._logical_line()
        keyword, rest = [*logical.split(None, 1), "", ""][:2]
        keyword = keyword.upper()
        if keyword not in _FLAGS:
            advice = _REFUSED.get(keyword)
            said = f"{keyword} is not supported: {advice}" if advice else f"unknown instruction {keyword[:40]!r}"
            raise at_line(self._origin, line, said)
        flags, text = self._flags(keyword, rest.strip(), line)
        if not text:
            raise at_line(self._origin, line, f"{keyword} needs an argument")
        words = _json_words(text) if keyword in _JSON_FORM else None
        heredocs: list[Heredoc] = []
        shell_text = text
        if keyword in _HEREDOC_IN and words is None:
            start = self._at
            heredocs = [self._heredoc(match, line) for match in _heredoc_words(text)]
            shell_text = "\n".join([text, *self.lines[start : self._at]])
        if keyword == "SHELL" and not words:
            raise at_line(self._origin, line, 'SHELL takes a JSON list, such as ["/bin/bash", "-c"]')
        return Instruction(keyword, line, text, flags, words, tuple(heredocs), shell_text)

    def _logical_line(self) -> str:
        """Lines joined where the escape character ends them; comments and empty lines between them are left out."""
        ending = re.compile(rf"(?<!{re.escape(self.escape)}){re.escape(self.escape)}[ \t]*$")
        whole, begun = "", False
        while self._at < len(self.lines):
            line = self.lines[self._at]
            self._at += 1
            if begun and (not line.strip() or line.lstrip().startswith("#")):
                continue
            shortened = ending.sub("", line)
            whole += shortened
            begun = True
            if shortened == line:
                break
        return whole

    def _flags(self, keyword: str, text: str, line: int) -> tuple[tuple[tuple[str, str], ...], str]:
        flags: list[tuple[str, str]] = []
        while match := _FLAG.match(text):
            name, value = match[1], match[2]
            if name not in _FLAGS[keyword]:
                advice = _FLAG_ADVICE.get(name, "remove it")
                raise at_line(self._origin, line, f"{keyword} --{name} is not supported: {advice}")
            if not value:
                raise at_line(self._origin, line, f"{keyword} --{name} needs a value: --{name}=…")
            if name in dict(flags):
                raise at_line(self._origin, line, f"{keyword} --{name} is there twice")
            flags.append((name, value))
            text = text[match.end() :]
        return tuple(flags), text.strip()

    def _heredoc(self, match: re.Match[str], line: int) -> Heredoc:
        name = match[3] or match[4] or match[5]
        content = []
        while self._at < len(self.lines):
            here = self.lines[self._at]
            self._at += 1
            if match[2]:
                here = here.lstrip("\t")
            if here == name:
                return Heredoc(name, "".join(f"{each}\n" for each in content), match[5] is None)
            content.append(here)
        raise at_line(self._origin, line, f"the here-document {name} does not end")


def split_quoted(text: str, escape: str = "\\") -> list[str]:
    """Words as a shell would part them, quotes and escapes left in. A quote that does not end runs to the end."""
    words, word, quote = [], "", ""
    characters = iter(text)
    for character in characters:
        if character == escape and quote != "'":
            word += character + next(characters, "")
        elif quote:
            word += character
            quote = "" if character == quote else quote
        elif character in "'\"":
            word += character
            quote = character
        elif character.isspace():
            words += [word] if word else []
            word = ""
        else:
            word += character
    return [*words, word] if word else words


def is_heredoc(word: str) -> bool:
    """Whether this word of a COPY stands for a here-document."""
    return _HEREDOC.fullmatch(word) is not None


def _heredoc_words(text: str) -> list[re.Match[str]]:
    return [match for word in split_quoted(text) if (match := _HEREDOC.fullmatch(word))]


def _json_words(text: str) -> tuple[str, ...] | None:
    """A list of strings; anything else is no JSON form but a command for the shell, which may well begin with `[`."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tuple(found) if isinstance(found, list) and all(isinstance(item, str) for item in found) else None
