"""Judges one call of a tool by the rules, and says which rule decided.

Owns `Judge`. A command line is taken apart (`permissions.shell`, `permissions.unwrap`). Each simple command, each file
a redirection opens, each variable set for a command and each path among its words is judged by itself, and the
strictest verdict is the line's. A pattern or a variable is every path it could be (`permissions.words`); a word that
could be any path is judged by the strictest that could be said of one. What cannot be taken apart is asked about, with
the reason. What the sandbox hides need not be asked about: it is not there. Asks nobody, runs nothing.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.config import parse
from etude.environments.base import WORKSPACE
from etude.harness.permissions import builtin, git_reads
from etude.harness.permissions.changes import parent_of_pattern, written_words
from etude.harness.permissions.course import leads_to, run_from
from etude.harness.permissions.decision import Decision, Reason, decide
from etude.harness.permissions.effort import TooMuch
from etude.harness.permissions.git_paths import INSTEAD, ignored, written
from etude.harness.permissions.gitconfig import may_open, obeyed, outside_of_tree
from etude.harness.permissions.literals import Word
from etude.harness.permissions.path_rules import DONE, PathRules
from etude.harness.permissions.paths import WorkspacePaths, lies_in
from etude.harness.permissions.reading import chooses, follows, opens, takes_untracked
from etude.harness.permissions.rules import OWN, PermissionConfig, Rule, kind_of
from etude.harness.permissions.shell import FOUND, Redirect, SimpleCommand, Unreadable, read_script
from etude.harness.permissions.unwrap import unwrap
from etude.harness.permissions.variables import SETS_BY_NAME, named, rules_others
from etude.harness.permissions.walks import met, starts, tells_ripgrep
from etude.harness.permissions.words import Values, could_be_option, pieces, settled, taken_apart

_SEARCHES = {"grep", "glob", "codebase_search", "read_lints"}
_READS_ALL = {"grep", "codebase_search"}
_READS = "it only reads and prints"
_PRINTS = {"echo", "printf", "test", "[", "basename", "dirname"}
"""What they are told they only print or look up: a variable's value among it is no reading outside the workspace."""
_REMOVE = {"rm", "rmdir", "unlink"}
_UNSEEN = "only a run would tell which repository lies there"
_SHOWN = 400
_MOST_WORDS, _LONGEST, _MOST_PIECES = 1_000, 4_096, 256
"""Of one command; letters of one word; paths that could be in it."""


class Judge:
    """The rules of one session, over one workspace. Rules added meanwhile hold from then on."""

    def __init__(
        self,
        config: PermissionConfig,
        paths: WorkspacePaths | None = None,
        env: Mapping[str, str] | None = None,
        hidden: Sequence[str] = (),
        guarded: Callable[[str, bool], str] | None = None,
    ) -> None:
        """`env` is what commands find in their environment, this process's own if it is not given. `hidden` are real
        paths that the sandbox has taken out of it; `guarded` says why it would not let a path of the workspace be
        written (or, if so asked, removed), or nothing: no answer of a user's would help, so nobody is asked."""
        self._config = config
        self._paths = paths or WorkspacePaths()
        self._env = os.environ if env is None else env
        self._files = PathRules(config, self._paths, hidden, guarded)

    def allow(self, rule: str) -> None:
        """Add a rule that allows, as the user chose it when asked. Raises ConfigError for what is none."""
        parse({"allow": [rule]}, PermissionConfig, "permissions")
        self._files.add(Rule(rule, "allow"))

    def judge(self, tool: str, arguments: Mapping[str, Any]) -> Decision:
        """Whether this call may be made; to ask, where something cannot be looked at: a process ends meanwhile."""
        self._files.look_again()
        reasons: list[Reason] = []
        try:
            reasons.extend(self._reasons(tool, arguments))
        except TooMuch as reason:
            reasons.insert(0, Reason("ask", tool, str(reason)))
        except RecursionError:
            reasons.insert(0, Reason("ask", tool, "it is nested too deeply"))
        except OSError as error:
            reasons.append(Reason("ask", tool, f"what it names cannot be looked at: {error}"))
        except Exception as error:  # a name with a nul in it, or a fault of ours: neither allows it, or ends a rollout
            reasons.append(Reason("ask", tool, f"it cannot be judged: {error}"))
        return decide(reasons)

    def _reasons(self, tool: str, arguments: Mapping[str, Any]) -> Iterator[Reason]:
        match kind_of(tool):
            case _ if tool in OWN:
                yield Reason("allow", tool, "it touches nothing but the session")
            case "run":
                yield from self._line(tool, str(arguments.get("command", "")))
            case "other":
                unruled = Reason(self._config.others, tool, "no rule names it", remember=tool)
                yield self._files.ruled(tool, tool, None) or unruled
            case kind:
                paths = arguments.get("paths", arguments.get("path", "."))
                names = [str(path) for path in paths] if isinstance(paths, list) else [str(paths)]
                for name in names:
                    yield from self._files.path(tool, name, kind == "edit")
                    yield from self._searched(tool, name)

    def _searched(self, tool: str, name: str) -> Iterator[Reason]:
        """A tool that goes through all below a path reads what rules speak of there, unless the sandbox hides it."""
        if tool in _SEARCHES and self._paths.root is not None:
            top = os.path.realpath(self._paths.on_host(posixpath.expanduser(name)))
            for found in self._files.left().below(top):
                yield Reason("ask", name, f"{found} lies below it: rule {self._files.left().by_path[found]}")
            if tool in _READS_ALL:
                yield from self._met(top, [tool, name], links=False, content=True, listed=True)

    # --- commands -------------------------------------------------------------------------------------------------

    def _line(self, tool: str, line: str) -> Iterator[Reason]:
        try:
            commands = unwrap(read_script(line))
        except Unreadable as reason:
            # a rule that denies every command, or allows every one, needs no reading
            ruled = next((rule for rule in self._files.rules if rule.names(tool) and rule.pattern in (None, "*")), None)
            piece = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
            yield Reason(ruled.verdict, piece, f"rule {ruled}") if ruled else Reason("ask", piece, str(reason))
            return
        courses = list(run_from(commands, self._env))
        values = Values(line, commands, self._env, {place for _, places in courses for place in places})
        yield from (Reason("ask", told, "it says what rg passes over, and runs it") for told in tells_ripgrep(commands))
        for count, (command, directories) in enumerate(courses):
            yield from self._simple(tool, command, directories, values)
            yield from self._halfway(command, commands[:count], directories)
        if self._files.reopened:  # `echo x 3< FILE > /dev/fd/3` writes to it
            for command, directories in courses:
                for redirect in (replace(each, writes=True) for each in command.redirects if not each.writes):
                    yield from self._redirect(redirect, directories, values)

    def _simple(
        self, tool: str, command: SimpleCommand, directories: Sequence[str | None], values: Values
    ) -> Iterator[Reason]:
        set_by_name = command.words[1:] if command.words and command.words[0].text in SETS_BY_NAME else ()
        given = [(name, word.text) for name, word in command.variables]
        for name, value in (*given, *((name, None) for word in set_by_name for name in named(word.text or ""))):
            if rules_others(name, value):
                yield Reason("ask", f"{name}=…", "it can make a command run something else")
        texts = [word.raw for word in (*command.words, *(each.target for each in command.redirects))]
        if len(texts) > _MOST_WORDS or any(len(text) > _LONGEST for text in texts):
            raise TooMuch
        if command.loops:
            listed = [word for _, word in command.variables]
            names = [self._names(word, directories, values) for word in listed]
            yield from self._unquoted(listed, names)
            for name in {
                name for word, found in zip(listed, names, strict=True) if word.text is None for name in found or ()
            }:
                yield from self._files.argument(name, directories)
        for redirect in command.redirects:
            yield from self._redirect(redirect, directories, values)
        if not command.words:
            return
        names = [self._names(word, directories, values) for word in command.words]
        words = settled(command, names)
        reason = self._command(tool, command, words)
        yield reason
        ends = leads_to(command, list(directories), self._env) or ()
        back = any(
            end is not None and lies_in(posixpath.normpath(end), (WORKSPACE,)) for end in ends
        )  # `cd src; …; cd ..`
        written, removes = written_words(command), posixpath.basename(words[0] or "") in _REMOVE
        others = git_reads.places(words, directories, self._paths) if words[0] == "git" else ()
        for at, (word, found) in enumerate(zip(command.words[1:], names[1:], strict=True), 1):
            if any(word is other for other in written):
                yield from self._written_word(word, directories, removes)
            for name in () if chooses(words, at) else found or ():
                passed = back or (words[0] in _PRINTS and word.parts is not None)
                yield from self._files.argument(name, directories, outside=not passed)
                yield from self._files.argument(name, others, outside=False) if others else ()
        if reason.verdict == "allow":
            yield from self._unnamed(command, words, names, directories, reason.by == _READS)
            if FOUND in command.words:
                names = [self._names(word, directories, values) for word in command.found_by]
                found_by = settled(replace(command, words=command.found_by), names)
                yield from self._walk(found_by, names, directories, "below", links=True)

    def _halfway(
        self, command: SimpleCommand, before: Sequence[SimpleCommand], places: Sequence[str | None]
    ) -> Iterator[Reason]:
        """The first file that git would be refused when it has written others already."""
        here = places[0] if len(places) == 1 else None
        if not (self._files.guarded and self._paths.root and here):
            return
        root = self._paths.root.resolve()
        for path, why in written(command, before, lambda name: self._paths.on_host(name, here)):
            inside = path.is_relative_to(root) and str(path.relative_to(root))
            if inside and (refused := self._files.refused(inside)):
                yield Reason("deny", command.raw, f"{inside}: {why}, and stop halfway; {refused}. {INSTEAD}")
                return

    # --- what a command opens -------------------------------------------------------------------------------------

    def _names(self, word: Word, directories: Sequence[str | None], values: Values) -> list[str] | None:
        """Every path that a word could be, and that could be in it; None where that could be any, or an option."""
        if word.raw.startswith(("<(", ">(")):
            return ["/dev/fd/63"]
        readings = values.readings(word)
        if readings is None or could_be_option(word, readings):
            return None
        found: list[str] = []
        for reading in readings:
            if (literal := reading.literal) is not None:
                found += pieces(literal)
                if len(found) > _MOST_PIECES:
                    raise TooMuch
                continue
            for place in directories if not reading.pattern.startswith("/") else (WORKSPACE,):
                matches = None if place is None else self._paths.matches(reading.pattern, place, self._files.effort)
                if matches is None or any(name.startswith("-") for name in matches):  # which are options then
                    return None
                looped = itertools.product(reading.looped, values.places)
                if reading.split and taken_apart(
                    reading, matches, (at and self._paths.matches(each, at, self._files.effort) for each, at in looped)
                ):
                    return None
                found += [*matches, reading.pattern]  # a pattern below /proc matches otherwise for who runs it
        return list(dict.fromkeys(found))

    def _unnamed(
        self,
        command: SimpleCommand,
        words: Sequence[str | None],
        names: Sequence[list[str] | None],
        directories: Sequence[str | None],
        built_in: bool,
    ) -> Iterator[Reason]:
        """What an allowed command may open beside the paths among its words."""
        kind = opens(words)
        if kind == "nothing":
            yield from self._unquoted(command.words, names)
            return
        unknown = [
            word.raw for word, found in zip(command.words, names, strict=True) if found is None and word != FOUND
        ]
        if kind is not None and None in directories:
            unknown.append("the directory it runs in")
        if unknown and self._could_be_refused(built_in):
            said = "which files are read" if unknown[0] == "…" else f"what is read by {unknown[0]}"
            yield Reason("ask", command.raw or " ".join(unknown), f"only a run would tell {said}")
        if kind in ("lists", "below"):
            yield from self._walk(words, names, directories, kind, links=follows(words))
        if words[0] == "git" and self._paths.root is not None and (kind or takes_untracked(words)):
            yield from self._repository(command, words, names, kind or "untracked", directories, built_in)

    def _unquoted(self, words: Sequence[Word], names: Sequence[list[str] | None]) -> Iterator[Reason]:
        """Without quotes, what only a run would tell could be a pattern: to match it a directory is listed."""
        bare = [word for word, found in zip(words, names, strict=True) if found is None and not word.quoted]
        if bare and self._could_be_refused(built_in=False):
            yield Reason("ask", bare[0].raw, "without quotes it could be a pattern, and match what a rule speaks of")

    def _repository(
        self,
        command: SimpleCommand,
        words: Sequence[str | None],
        names: Sequence[list[str] | None],
        kind: str,
        directories: Sequence[str | None],
        built_in: bool,
    ) -> Iterator[Reason]:
        """What git opens for the sake of the repository that it finds; and what it runs, where no rule of the user's
        allows the command: it runs in the sandbox, as what they have allowed does. A secret by the built-in rules is
        one to git where it compares files that it does not track, or prints what it does not keep."""
        for here in git_reads.starts(words, directories, self._paths):
            unseen = self._paths.is_private(str(here)) * _UNSEEN
            if built_in and (why := obeyed(here, self._paths.root) or unseen):
                yield Reason("ask", command.raw, why)
            lists, all_files = not {"diff", "grep"} & set(words), kind == "untracked"
            compared = outside_of_tree(here, sorted(git_reads.named(words, names, here, self._paths)))
            for found in self._files.left().by_path if kind in ("tracked", "untracked") else ():
                if may_open(here, found, lists, all_files) or lies_in(found, compared):
                    yield Reason("ask", command.raw, f"it may read {found}: rule {self._files.left().by_path[found]}")
            if kind == "tracked" and self._config.builtin:
                for top in compared:
                    yield from self._met(top, words, links=False, content=True)
                found_here = git_reads.shown(here, words, self._paths, self._files.links, self._files.effort)
                yield from self._asked(found_here, str(here), words)

    def _could_be_refused(self, built_in: bool) -> bool:
        """Whether there is a path that a command could not read unasked. Where a rule of the user's allows the command,
        only their rules on paths count."""
        left = self._files.left()
        if left.by_path or not left.complete:
            return True
        return built_in and (self._config.builtin or {self._config.reads, self._config.outside} != {"allow"})

    def _walk(
        self,
        words: Sequence[str | None],
        names: Sequence[list[str] | None],
        directories: Sequence[str | None],
        kind: str,
        links: bool,
    ) -> Iterator[Reason]:
        """Everything below what a command names is read: the files that rules speak of, and where links lead."""
        for top in starts(words, names, directories, self._paths):
            for found in self._files.left().below(top):
                if kind == "below" or os.path.isdir(found):
                    rule = self._files.left().by_path[found]
                    yield Reason("ask", _shown(words), f"it reads {found}: rule {rule}")
            yield from self._met(top, words, links, kind == "below")

    def _met(
        self, top: str, words: Sequence[str | None], links: bool, content: bool, listed: bool = False
    ) -> Iterator[Reason]:
        """The first that a walk comes to and that may not be read unasked: where a link leads, and, where the content
        of files is read, what the built-in rules take for a secret. To hide such from commands would break the
        project's own: its server reads `.env`."""
        secrets = self._files.links if content and self._config.builtin else None
        yield from self._asked(met(top, words, links, secrets, self._files.effort), top, words, listed)

    def _asked(
        self, found: Iterable[str | None], top: str, words: Sequence[str | None], listed: bool = False
    ) -> Iterator[Reason]:
        for path in found:
            if path is None:
                yield Reason("ask", top, "it holds too many directories to look at what lies in them")
            elif not lies_in(path, self._files.hidden) and not (listed and ignored(Path(path))):
                for reason in (
                    each for name in self._paths.as_named(path) for each in self._files.argument(name, [WORKSPACE])
                ):
                    yield Reason("ask", _shown(words), f"it reads {path}: {reason.by}", reason.remember)
                    return

    def _command(self, tool: str, command: SimpleCommand, settled: Sequence[str | None]) -> Reason:
        words = [word.text for word in command.words]
        piece = " ".join(word.raw for word in command.words)
        unsure = None
        for rule in self._files.rules:
            matches = rule.matches_command(words) if rule.names(tool) else False
            if matches and not (unsure and rule.verdict == "allow"):
                return Reason(rule.verdict, piece, f"rule {rule}")
            if matches is None:
                unsure = unsure or Reason("ask", piece, f"it could be meant by rule {rule}")
        if unsure:
            return unsure
        if self._config.builtin:
            if opens(settled) is not None:
                return Reason("allow", piece, _READS)
            for rule in builtin.ASK:
                if rule.names(tool) and rule.matches_command(words) is not False:
                    return Reason("ask", piece, f"rule {rule}, which is built in", builtin.exactly(words))
        said = f"no rule matches; commands are {DONE[self._config.runs]} by default"
        return Reason(self._config.runs, piece, said, builtin.narrowest(words))

    def _redirect(self, redirect: Redirect, directories: Sequence[str | None], values: Values) -> list[Reason]:
        tool = "write_file" if redirect.writes else "read_file"
        known = None
        if redirect.target.text is not None:
            known = [redirect.target.text]
        elif not redirect.writes:
            known = self._names(redirect.target, directories, values)
        if known is None:
            return [Reason("ask", redirect.target.raw, "only a run would tell which file this is")]
        if any(name.startswith(("/dev/tcp/", "/dev/udp/")) for name in known):
            return [Reason("ask", redirect.target.raw, "it is a connection to another machine")]
        if redirect.writes and re.search(r"(^|/)-|[\s*?\[\\]", known[0]):
            return [Reason("ask", redirect.target.raw, "to who matches it this name is an option, or several words")]
        return [
            reason for name in known if name for reason in self._files.path(tool, name, redirect.writes, directories)
        ]

    def _written_word(self, word: Word, directories: Sequence[str | None], removes: bool) -> Iterator[Reason]:
        """A word that names what is changed: it must lie inside."""
        if word.text is not None:
            name = word.text.partition("=")[2] if re.match(r"-?-?[\w-]+=", word.text) else word.text
            if name and not name.startswith("-"):
                yield from self._files.path("write_file", name, True, directories, removes)
        elif (parent := parent_of_pattern(word.raw)) is not None:
            yield from self._files.path("write_file", parent, True, directories, removes)
        else:
            yield Reason("ask", word.raw, "only a run would tell which file this is")


def _shown(words: Sequence[str | None]) -> str:
    return " ".join(word or "…" for word in words)
