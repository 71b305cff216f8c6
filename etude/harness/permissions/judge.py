"""Judges one call of a tool by the rules, and says which rule decided.

Owns `Judge`. A command line is taken apart (`permissions.shell`, `permissions.unwrap`). Each simple command, each file
a redirection opens, each variable set for a command and each path among its words is judged by itself, and the
strictest verdict is the line's. What cannot be taken apart is asked about, with the reason. Asks nobody, runs nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.config import parse
from etude.environments.base import WORKSPACE
from etude.harness.permissions import builtin
from etude.harness.permissions.paths import Place, Target
from etude.harness.permissions.rules import OWN, STRICTNESS, Kind, PermissionConfig, Rule, Verdict, kind_of
from etude.harness.permissions.shell import Redirect, Simple, Unreadable, Word, read_script
from etude.harness.permissions.unwrap import unwrap

_WRITES_ALL = {"rm", "rmdir", "mkdir", "touch", "tee", "truncate", "chmod", "chown", "chgrp", "shred", "unlink", "mv"}
_WRITES_LAST = {"cp", "ln", "install", "rsync", "scp"}
_MAX_DIRECTORIES = 16
_SHOWN = 400
_RULING_VARIABLE = re.compile(
    r"PATH|LD_.*|DYLD_.*|GIT_.*|BASH_ENV|ENV|IFS|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|CDPATH|PYTHON(HOME|STARTUP|"
    r"INSPECT|BREAKPOINT)|PERL5?(LIB|OPT|DB)|RUBY(OPT|LIB)|NODE_OPTIONS|NODE_PATH|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|"
    r".*PAGER|.*EDITOR|VISUAL|BROWSER|SSH_ASKPASS|HOME|XDG_CONFIG_HOME|GCONV_PATH|.*_PROXY|.*_proxy|LESSOPEN|MANPATH"
)
"""Variables by which a harmless command runs, or obeys, something else."""

_DONE = {"allow": "allowed", "ask": "asked about", "deny": "denied"}


@dataclass(frozen=True)
class Reason:
    """What one piece of a call was judged, and by what."""

    verdict: Verdict
    piece: str
    """The command, path or variable, as it stands in the call."""
    by: str
    """The rule as it is written, or the words for why there is none."""
    remember: str = ""
    """The narrowest rule that would allow this and its like from now on; empty where none should."""

    def __str__(self) -> str:
        return f"{self.piece}: {self.by}"


@dataclass(frozen=True)
class Decision:
    """The verdict on a call, and every reason, the strictest first."""

    verdict: Verdict
    reasons: tuple[Reason, ...]

    @property
    def remember(self) -> tuple[str, ...]:
        """The rules that together would allow it; empty where even they would not."""
        asked = [reason for reason in self.reasons if reason.verdict != "allow"]
        rules = tuple(dict.fromkeys(reason.remember for reason in asked))
        return rules if all(rules) else ()

    def explain(self) -> str:
        """The pieces that made it so strict, a line each."""
        return "\n".join(dict.fromkeys(str(reason) for reason in self.reasons if reason.verdict == self.verdict))


class Judge:
    """The rules of one session, over one workspace. Rules added meanwhile hold from then on."""

    def __init__(self, config: PermissionConfig, place: Place | None = None) -> None:
        self._config = config
        self._place = place or Place()
        self._rules = config.rules()

    def allow(self, rule: str) -> None:
        """Add a rule that allows, as the user chose it when asked. Raises ConfigError for what is none."""
        parse({"allow": [rule]}, PermissionConfig, "permissions")
        self._rules.append(Rule(rule, "allow"))

    def judge(self, tool: str, arguments: Mapping[str, Any]) -> Decision:
        """Whether this call may be made."""
        kind = kind_of(tool)
        if tool in OWN:
            return _decide([Reason("allow", tool, "it touches nothing but the session")])
        if kind == "run":
            return _decide(list(self._line(tool, str(arguments.get("command", "")))))
        if kind == "other":
            unruled = Reason(self._config.others, tool, "no rule names it", remember=tool)
            return _decide([self._ruled(tool, tool, None) or unruled])
        paths = arguments.get("paths", arguments.get("path", "."))
        names = [str(path) for path in paths] if isinstance(paths, list) else [str(paths)]
        return _decide([reason for name in names for reason in self._path(tool, name, kind == "edit")])

    def _ruled(self, tool: str, piece: str, target: Target | None) -> Reason | None:
        """What the first rule that matches says, a user's rules going before the built-in ones."""
        more = builtin.ASK if self._config.builtin else ()
        for rule in (*self._rules, *more):
            if rule.names(tool) and (target is None or rule.matches_path(target.path, target.relative)):
                built_in = rule not in self._rules
                remember = _for_good(kind_of(tool), target) if built_in and target else ""
                return Reason(rule.verdict, piece, f"rule {rule}{', which is built in' * built_in}", remember)
        return None

    # --- paths ----------------------------------------------------------------------------------------------------

    def _path(
        self, tool: str, name: str, writes: bool, directories: Sequence[str | None] = (WORKSPACE,)
    ) -> list[Reason]:
        """A path, from each directory that it could be meant from."""
        absolute = name.startswith(("/", "~"))
        if None in directories and not absolute:
            return [Reason("ask", name, "only a run would tell from which directory it is meant")]
        places = [WORKSPACE] if absolute else [place for place in directories if place is not None]
        targets = [target for place in places for target in self._place.targets(name, place)]
        return [self._target(tool, name, target, writes) for target in dict.fromkeys(targets)]

    def _target(self, tool: str, name: str, target: Target, writes: bool) -> Reason:
        ruled = self._ruled(tool, name, target)
        if writes and target.relative is None and not target.scratch:
            return Reason("deny", name, f"it is {target.path}, and only the workspace may be written")
        if ruled is not None:
            return ruled
        if target.scratch:
            return Reason("allow", name, "it is not kept")
        if target.relative is None:
            said = f"it is {target.path}, outside the workspace"
            return Reason(self._config.outside, name, said, remember=_for_good("read", target))
        default = self._config.edits if writes else self._config.reads
        said = f"no rule matches; {'edits' if writes else 'reads'} are {_DONE[default]} by default"
        return Reason(default, name, said, remember=_for_good(kind_of(tool), target))

    # --- commands -------------------------------------------------------------------------------------------------

    def _line(self, tool: str, line: str) -> Iterator[Reason]:
        try:
            commands = unwrap(read_script(line))
        except Unreadable as reason:
            # a rule that denies every command, or allows every one, needs no reading
            ruled = next((rule for rule in self._rules if rule.names(tool) and rule.pattern in (None, "*")), None)
            piece = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
            yield Reason(ruled.verdict, piece, f"rule {ruled}") if ruled else Reason("ask", piece, str(reason))
            return
        directories: list[str | None] = [WORKSPACE]
        for command in commands:
            yield from self._simple(tool, command, directories)
            _follow(command, directories)

    def _simple(self, tool: str, command: Simple, directories: Sequence[str | None]) -> Iterator[Reason]:
        for name, _ in command.variables:
            if _RULING_VARIABLE.fullmatch(name):
                yield Reason("ask", f"{name}=…", "it can make a command run something else")
        for redirect in command.redirects:
            yield from self._redirect(redirect, directories)
        if not command.words:
            return
        yield self._command(tool, command)
        written = _written(command)
        for word in command.words[1:]:
            yield from self._argument(word, any(word is other for other in written), directories)

    def _command(self, tool: str, command: Simple) -> Reason:
        words = [word.text for word in command.words]
        piece = " ".join(word.raw for word in command.words)
        unsure = None
        for rule in self._rules:
            matches = rule.matches_command(words) if rule.names(tool) else False
            if matches and not (unsure and rule.verdict == "allow"):
                return Reason(rule.verdict, piece, f"rule {rule}")
            if matches is None:
                unsure = unsure or Reason("ask", piece, f"it could be meant by rule {rule}")
        if unsure:
            return unsure
        if self._config.builtin:
            if builtin.is_safe(words):
                return Reason("allow", piece, "it only reads and prints")
            for rule in builtin.ASK:
                if rule.names(tool) and rule.matches_command(words) is not False:
                    return Reason("ask", piece, f"rule {rule}, which is built in", builtin.narrowest(words))
        said = f"no rule matches; commands are {_DONE[self._config.runs]} by default"
        return Reason(self._config.runs, piece, said, builtin.narrowest(words))

    def _redirect(self, redirect: Redirect, directories: Sequence[str | None]) -> list[Reason]:
        tool = "write_file" if redirect.writes else "read_file"
        if redirect.target.text is None:
            return [Reason("ask", redirect.target.raw, "only a run would tell which file this is")]
        if redirect.target.text.startswith(("/dev/tcp/", "/dev/udp/")):
            return [Reason("ask", redirect.target.raw, "it is a connection to another machine")]
        return self._path(tool, redirect.target.text, redirect.writes, directories)

    def _argument(self, word: Word, written: bool, directories: Sequence[str | None]) -> Iterator[Reason]:
        """A word that may be a path: written, it must lie inside; read, only what a rule says of it counts, for most
        words are no paths at all."""
        if word.text is None:
            if written and (parent := _parent_of_pattern(word.raw)) is not None:
                yield from self._path("write_file", parent, True, directories)
            elif written:
                yield Reason("ask", word.raw, "only a run would tell which file this is")
            return
        name = word.text.partition("=")[2] if re.match(r"-?-?[\w-]+=", word.text) else word.text
        if not name or name.startswith("-"):
            return
        if written:
            yield from self._path("write_file", name, True, directories)
        known = [place for place in directories if place is not None] or [WORKSPACE]
        for place in known:
            for target in self._place.targets(name, place):
                ruled = self._ruled("read_file", name, target)
                if ruled is None and target.relative is None and not target.scratch and self._place.holds(target):
                    ruled = self._target("read_file", name, target, writes=False)
                if ruled is not None and ruled.verdict != "allow":
                    yield ruled


def _for_good(kind: Kind, target: Target) -> str:
    """The rule that allows one path; none where its name would be read as a pattern."""
    path = target.relative or target.path
    return "" if set(path) & set("*?") else f"{kind}({path})"


def _parent_of_pattern(raw: str) -> str | None:
    """The directory below which every match of a pattern lies; None where that is not certain."""
    found = re.fullmatch(r"([\w./-]*/)?[\w.-]*[*?][\w./*?-]*", raw)
    if found is None or ".." in raw.split("/") or re.search(r"(^|/)\.[^/]*[*?]", raw):  # `.*` matches `..`
        return None
    return found[1] or "."


def _written(command: Simple) -> Sequence[Word]:
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


def _follow(command: Simple, directories: list[str | None]) -> None:
    """After a `cd` a relative path is meant from another directory, or, where the `cd` failed, from the one before."""
    if not command.words or command.words[0].text not in ("cd", "pushd", "popd"):
        return
    target = command.words[1].text if len(command.words) == 2 else None
    if target is None or target.startswith("-") or command.words[0].text == "popd":
        directories.append(None)
        return
    start = [WORKSPACE] if target.startswith(("/", "~")) else directories
    moved = [None if place is None else posixpath.join(place, posixpath.expanduser(target)) for place in start]
    directories += [place for place in dict.fromkeys(moved) if place not in directories]
    if len(directories) > _MAX_DIRECTORIES:
        directories[:] = [None]


def _decide(reasons: list[Reason]) -> Decision:
    ordered = sorted(reasons, key=lambda reason: -STRICTNESS[reason.verdict])
    return Decision(ordered[0].verdict if ordered else "allow", tuple(ordered))
