"""Permission rules: how they are written, and what each of them matches.

Owns `Rule` and `PermissionConfig`. A rule names tools and, in parentheses, what of them it is about:

    read(docs/**)              the tools that read, for paths below docs
    edit(**/*.py)              the tools that write
    run(git push *)            commands, word by word; a last * stands for any further words
    mcp__github__*             any other tool, by name; * is any text
    run                        every command

Deny goes before ask, ask before allow; what no rule matches has the default of its kind. A rule that allows matches
only what it says: the same words in the same places. One that asks or denies looks harder, because there a word moved,
an option put between or a path in front must not help: `run(rm -rf *)` matches `/bin/rm x -f -r`, and `run(git push *)`
matches `git -C . push`. Knows nothing of shells: commands come as words.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from pydantic import ValidationInfo, field_validator

from etude.config import Config
from etude.harness.permissions.globs import Glob

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
Kind: TypeAlias = Literal["read", "edit", "run", "other"]
STRICTNESS: dict[Verdict, int] = {"allow": 0, "ask": 1, "deny": 2}

READS = ("read_file", "list_dir", "grep", "glob", "codebase_search", "read_lints")
EDITS = ("edit_file", "write_file")
RUNS = ("run_terminal_cmd",)
OWN = ("todo_write", "summarize")
"""Tools that touch nothing but the session itself: they need no permission."""
_GROUPS: dict[str, tuple[str, ...]] = {"read": READS, "edit": EDITS, "run": RUNS}
_LEFTOVER = r"(?:[~#]|[._-](?:backup|bak|copy|old|orig|save|sw[a-p]|te?mp|\d+))*"
_FORM = re.compile(r"([A-Za-z_][\w*.-]*)(?:\((.*)\))?", re.DOTALL)


def kind_of(tool: str) -> Kind:
    """What a tool does, as far as permissions go."""
    return next((kind for kind, tools in _KINDS.items() if tool in tools), "other")


_KINDS: dict[Kind, tuple[str, ...]] = {"read": READS, "edit": EDITS, "run": RUNS}


@dataclass(frozen=True)
class Rule:
    """One rule as it is written, and in which list it stands."""

    text: str
    verdict: Verdict
    leftovers: bool = field(default=False, kw_only=True)
    """Whether it means a name in letters of any size, and what is left beside such a file: `server.key.bak`."""

    def __str__(self) -> str:
        return f"{self.verdict} {self.text}"

    @cached_property
    def tools(self) -> str:
        return _parts(self.text)[0]

    @cached_property
    def pattern(self) -> str | None:
        """Of a path in its plain form. To forbid a directory is to forbid what lies in it."""
        name, pattern = _parts(self.text)
        if pattern is None or name in ("run", *RUNS):
            return pattern
        plain = _plain(pattern)
        if self.verdict == "allow" or self.leftovers or plain.endswith("**"):
            return plain
        return "**" if plain == "." else f"{plain}/**"

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.pattern or "*"))

    @cached_property
    def _paths(self) -> Glob:
        return Glob(posixpath.expanduser(self.pattern or ""))

    @cached_property
    def last_part(self) -> re.Pattern[str]:
        """What the last part of a pattern matches that is no `**`."""
        last = [part for part in (self.pattern or "").split("/") if part != "**"][-1]
        name = "".join({"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)) for letter in last)
        return re.compile(f"(?:[.#]?{name}{_LEFTOVER})" if self.leftovers else name, re.DOTALL | re.IGNORECASE)

    def names(self, tool: str) -> bool:
        """Whether it is about this tool at all."""
        return tool in _GROUPS.get(self.tools, ()) or fnmatch.fnmatchcase(tool, self.tools)

    def matches_path(self, path: str, relative: str | None) -> bool:
        """`path` is absolute, `relative` the same from the workspace, or None where it lies outside."""
        if self.pattern is None:
            return True
        if self.leftovers:  # a name, wherever it is
            return self.last_part.fullmatch(posixpath.basename(path)) is not None
        if self.pattern.startswith(("/", "~")):
            return self._paths.matches(path)
        if self.pattern.startswith("**/"):
            return self._paths.matches(relative if relative is not None else path.lstrip("/"))
        return relative is not None and self._paths.matches(relative)

    def matches_command(self, words: Sequence[str | None]) -> bool | None:
        """Whether these words of a command match; None where a word that only a run would tell decides it."""
        if self.pattern is None:
            return True
        return _exactly(self.words, words) if self.verdict == "allow" else _loosely(self.words, words)


class PermissionConfig(Config):
    """What an agent may do, ask for, and never do. The defaults are the product's."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    reads: Verdict = "allow"
    """For a path inside the workspace that no rule matches."""
    edits: Verdict = "allow"
    runs: Verdict = "ask"
    others: Verdict = "ask"
    outside: Verdict = "ask"
    """For reading outside the workspace. Writing there is denied whatever a rule says."""
    builtin: bool = True
    """Whether the rules of `permissions.builtin` stand behind these."""

    @field_validator("allow", "ask", "deny")
    @classmethod
    def _readable(cls, rules: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for text in rules:
            name, pattern = _parts(text)
            if name not in _GROUPS and name.lower() in _GROUPS:
                raise ValueError(f"{text!r}: write {name.lower()} in small letters")
            if pattern is not None and name not in _GROUPS and not any(name in tools for tools in _GROUPS.values()):
                raise ValueError(f"{text!r}: only read, edit and run (or their tools) take a pattern in parentheses")
            if pattern is not None and kind_of(_GROUPS.get(name, (name,))[0]) != "run":
                _check_path(text, pattern, info.field_name != "allow")
            if pattern is not None and kind_of(_GROUPS.get(name, (name,))[0]) == "run":
                try:
                    shlex.split(pattern)
                except ValueError as error:
                    raise ValueError(f"{text!r}: {str(error).lower()}") from None
                if meant := re.fullmatch(r"([^\s*?\[]+):\*", pattern):
                    raise ValueError(f"{text!r} names a program {meant[1]}:…; write run({meant[1]} *)")
        return rules

    def closed(self) -> tuple[str, ...]:
        """The patterns of what nothing may read, as they are written."""
        written = [_parts(text)[1] for text in self.deny if Rule(text, "deny").names("read_file")]
        return tuple(pattern.strip() for pattern in written if pattern is not None)

    def rules(self) -> list[Rule]:
        """Strictest first; the first that matches decides."""
        lists: tuple[tuple[Verdict, tuple[str, ...]], ...] = (
            ("deny", self.deny), ("ask", self.ask), ("allow", self.allow),
        )  # fmt: skip
        return [Rule(text, verdict) for verdict, texts in lists for text in texts]


def _parts(text: str) -> tuple[str, str | None]:
    found = _FORM.fullmatch(text.strip())
    if found is None or found[2] == "":
        raise ValueError(f"{text!r} is no rule; write TOOL or TOOL(PATTERN), for instance run(git push *)")
    return found[1], found[2]


def _plain(pattern: str) -> str:
    """`./DIR//x/` is `DIR/x/**`, and `.` is all of the workspace."""
    within = pattern.strip()
    plain = re.sub(r"^//+", "/", posixpath.normpath(within))
    if within.endswith("/"):
        plain = f"{plain.rstrip('/')}/**"
    return re.sub(r"^\./", "", plain)


def _check_path(text: str, pattern: str, forbids: bool) -> None:
    """Raises ValueError for a pattern that does not mean what it seems to."""
    if not forbids and ".." in pattern.split("/"):
        raise ValueError(f"{text[:200]!r}: what lies outside of the workspace is allowed by its path from / or ~")
    if forbids and set(pattern) & set("[{"):
        raise ValueError(
            f"{text[:200]!r}: no […] or {{…}} here; write a rule for each, and `?` for a bracket in a name"
        )


def _exactly(pattern: Sequence[str], words: Sequence[str | None]) -> bool:
    """Word by word. A word that is not known matches the open end of a pattern and nothing else."""
    head, open_end = (pattern[:-1], True) if pattern[-1] == "*" else (pattern, False)
    if len(words) < len(head) or (len(words) > len(head) and not open_end):
        return False
    pairs = zip(words[: len(head)], head, strict=True)
    return all(word is not None and fnmatch.fnmatchcase(word, part) for word, part in pairs)


def _loosely(pattern: Sequence[str], words: Sequence[str | None]) -> bool | None:
    """Whether a pattern that forbids could be meant: see the module. None: it depends on a word that is not known."""
    if words[0] is not None and posixpath.basename(words[0]) in _RUN_FILES:
        file = next((at for at, word in enumerate(words) if at and (word is None or not word.startswith("-"))), 0)
        if file and (found := _loosely(pattern, words[file:])) is not False:
            return found
    name, wanted = pattern[0], [part for part in pattern[1:] if part != "*"]
    first = words[0]
    if first is None:
        return None
    if not (fnmatch.fnmatchcase(first, name) or fnmatch.fnmatchcase(posixpath.basename(first), name)):
        return False
    options = [part for part in wanted if part.startswith("-") and part != "-"]
    ordered = _in_order([part for part in wanted if part not in options], words[1:])
    known = [word for word in words[1:] if word is not None]
    if ordered is False or all(_has_option(option, known) for option in options):
        return ordered
    return None if len(known) < len(words) - 1 else False


_RUN_FILES = {"sh", "bash", "dash", "zsh", "ksh", "ash", ".", "source"}
"""Commands whose first word is a command itself, a file: `bash ./deploy` is `./deploy`."""
_SPELT_OUT = (("r", "recursive"), ("R", "recursive"), ("f", "force"), ("n", "dry-run"))


def _has_option(option: str, words: Sequence[str]) -> bool:
    if option.startswith("--"):
        return any(
            fnmatch.fnmatchcase(word.partition("=")[0], option) or fnmatch.fnmatchcase(word, option) for word in words
        )
    given = {letter for word in words if re.match(r"-[^-]", word) for letter in word[1:]}
    for letter, name in _SPELT_OUT:
        if any(len(word) > 3 and f"--{name}".startswith(word) for word in words):
            given.add(letter)
    return set(option[1:]) <= given or option in words


def _in_order(parts: Sequence[str], words: Sequence[str | None]) -> bool | None:
    """The parts one after the other; between them only options, each with a word that may be its value. None where a
    word that is not known comes first."""
    at = 0
    for part in parts:
        behind_option = False
        while at < len(words) and (word := words[at]) is not None and not fnmatch.fnmatchcase(word, part):
            if not word.startswith("-") and not behind_option:
                return False
            behind_option = word.startswith("-")
            at += 1
        if at == len(words):
            return False
        if words[at] is None:
            return None
        at += 1
    return True
